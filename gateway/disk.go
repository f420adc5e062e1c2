package gateway

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"basegate/console/history"
	"basegate/database"
	"basegate/gateway/notify"
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

// startDiskWatch reports when the file system of the database becomes nearly full. The disk of a PostgreSQL server is that
// server's to watch.
func (g *Gateway) startDiskWatch(ctx context.Context) {
	if g.booted.Database.Postgres() {
		return
	}
	folder := filepath.Dir(g.booted.Database.Path)
	full := false
	g.startEvery(ctx, "disk watch", diskInterval, func(ctx context.Context) {
		disk, err := database.ReadDisk(folder)
		if err != nil {
			g.log.Debug("the free disk space is not known", zap.Error(err))
			return
		}
		was := full
		if full = nearlyFull(disk.Available, disk.Size, was); full && !was {
			g.onDiskLow(ctx, disk.Available, disk.Size)
		}
	})
}

func (g *Gateway) onDiskLow(ctx context.Context, free, size uint64) {
	detail := fmt.Sprintf("%.1f of %.1f GiB are free on the disk of the database", float64(free)/gib, float64(size)/gib)
	g.log.Warn("the disk of the database is nearly full", zap.Uint64("free_bytes", free), zap.Uint64("size_bytes", size))
	g.history.Add(ctx, history.Event{Kind: history.DiskLow, Detail: detail})
	g.notifier.Notify(notify.Notice{Kind: string(history.DiskLow), Text: "the disk is nearly full", Detail: detail, Subject: "disk"})
}
