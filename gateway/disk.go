package gateway

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"basegate/history"
	"basegate/notify"
)

const (
	diskInterval = time.Minute
	gib          = 1 << 30

	// A file system is nearly full if less than lowBytes are free, or less than lowShare of it and lowAtMost.
	lowBytes  = gib
	lowShare  = 0.05
	lowAtMost = 20 * gib
)

// nearlyFull reports whether a file system is nearly full. One that was needs a quarter more free space not to be, so
// that it does not alarm at every file that comes and goes.
func nearlyFull(free, size uint64, was bool) bool {
	if was {
		free -= free / 5
	}
	return free < lowBytes || free < lowAtMost && float64(free) < lowShare*float64(size)
}

// diskSpace returns the bytes that are free for the gateway, and all, of the file system of a path.
func diskSpace(path string) (free, size uint64, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return 0, 0, fmt.Errorf("read free space: %w", err)
	}
	block := uint64(s.Bsize) //nolint:gosec // positive; its type depends on the system
	return s.Bavail * block, s.Blocks * block, nil
}

// watchDisk reports when the file system of the database becomes nearly full, until ctx ends.
func (g *Gateway) watchDisk(ctx context.Context, space func(path string) (free, size uint64, err error)) {
	folder := filepath.Dir(g.booted.Database.Path)
	tick := time.NewTicker(diskInterval)
	defer tick.Stop()
	full := false
	for {
		free, size, err := space(folder)
		switch was := full; {
		case err != nil:
			g.log.Debug("the free disk space is not known", zap.Error(err))
		default:
			if full = nearlyFull(free, size, was); full && !was {
				g.onDiskLow(free, size)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (g *Gateway) onDiskLow(free, size uint64) {
	detail := fmt.Sprintf("%.1f of %.1f GiB are free on the disk of the database", float64(free)/gib, float64(size)/gib)
	g.log.Warn("the disk of the database is nearly full", zap.Uint64("free_bytes", free), zap.Uint64("size_bytes", size))
	g.history.Add(history.Event{Kind: history.DiskLow, Detail: detail})
	g.notifier.Notify(notify.Notice{Kind: string(history.DiskLow), Text: "the disk is nearly full", Detail: detail, Subject: "disk"})
}

// startDiskWatch starts watchDisk, and registers its stop. The disk of a PostgreSQL server is that server's to watch.
func (g *Gateway) startDiskWatch(ctx context.Context) {
	if g.booted.Database.Postgres() {
		return
	}
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		g.watchDisk(watching, diskSpace)
	}()
	g.onClose("disk watch", func() { stop(); <-ended })
}
