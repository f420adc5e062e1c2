package database_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"basegate/database"
	"basegate/internal/poll"
)

// unflushed returns how many pages of the write-ahead log the kernel has in memory and not on disk, which a power failure
// would lose.
func unflushed(t *testing.T, path string) uint64 {
	t.Helper()
	file, err := os.Open(path + "-wal")
	must(t, err)
	defer file.Close()
	var pages unix.Cachestat_t
	err = unix.Cachestat(uint(file.Fd()), &unix.CachestatRange{}, &pages, 0)
	if errors.Is(err, unix.ENOSYS) {
		t.Skip("this kernel has no cachestat, which came with Linux 6.5")
	}
	must(t, err)
	return pages.Dirty + pages.Writeback
}

// copyFiles copies the database and its log: what is on disk if both were flushed.
func copyFiles(t *testing.T, from, to string) {
	t.Helper()
	for _, suffix := range []string{"", "-wal"} {
		data, err := os.ReadFile(from + suffix)
		must(t, err)
		must(t, os.WriteFile(to+suffix, data, 0o600))
	}
}

// skipOnMemory skips the test if the folder is in memory, where no page is ever flushed.
func skipOnMemory(t *testing.T, folder string) {
	t.Helper()
	var fs unix.Statfs_t
	must(t, unix.Statfs(folder, &fs))
	if fs.Type == unix.TMPFS_MAGIC {
		t.Skip("the temporary folder is a tmpfs")
	}
}

func TestCommitIsFlushedBeforeItsWriteCompletes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "base.db")
	skipOnMemory(t, filepath.Dir(path))
	db := openNotes(t, database.Settings{Path: path})
	for id := range 20 {
		must(t, db.WriteGrouped(t.Context(), note(id)))
		if n := unflushed(t, path); n != 0 {
			t.Fatalf("%d pages of the log are not on disk after a commit", n)
		}
	}
}

func TestPowerFailureLosesWhatFollowsTheLastFlushAndNoMore(t *testing.T) {
	folder := t.TempDir()
	path, image := filepath.Join(folder, "base.db"), filepath.Join(folder, "image.db")
	skipOnMemory(t, folder)
	db := openNotes(t, database.Settings{Path: path, Flush: time.Hour})
	for id := range 1000 {
		must(t, db.WriteGrouped(t.Context(), note(id)))
	}
	if unflushed(t, path) == 0 {
		t.Error("commits are flushed although the setting says once an hour")
	}
	must(t, db.Flush(t.Context()))
	if n := unflushed(t, path); n != 0 {
		t.Fatalf("%d pages of the log are not on disk after a flush", n)
	}
	copyFiles(t, path, image)
	must(t, db.WriteGrouped(t.Context(), note(1000)))
	if unflushed(t, path) == 0 {
		t.Error("a commit is flushed although the setting says once an hour")
	}
	after := open(t, image)
	var verdict string
	must(t, after.Read().QueryRowContext(t.Context(), "PRAGMA integrity_check").Scan(&verdict))
	if n := count(t, after, "true"); n != 1000 || verdict != "ok" {
		t.Errorf("after a power failure there are %d notes and the file is %q, want the 1000 flushed ones", n, verdict)
	}
}

func TestLogIsFlushedPeriodicallyAndAtTheEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "base.db")
	skipOnMemory(t, filepath.Dir(path))
	db := openNotes(t, database.Settings{Path: path, Flush: 10 * time.Millisecond})
	for id := range 3 {
		must(t, db.WriteGrouped(t.Context(), note(id)))
		poll.Until(t, "the log is flushed", func() bool { return unflushed(t, path) == 0 })
	}
	slow, err := database.Open(t.Context(), database.Settings{Path: path, Flush: time.Hour}, zap.NewNop())
	must(t, err)
	must(t, slow.WriteGrouped(t.Context(), note(3)))
	must(t, slow.Close()) // the other DB keeps the log open, so that SQLite does not write it back now
	if n := unflushed(t, path); n != 0 {
		t.Errorf("%d pages of the log are not on disk after Close", n)
	}
}

func TestFailedFlushRefusesWritesUntilOneSucceeds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "base.db")
	db := openNotes(t, database.Settings{Path: path, Flush: time.Hour})
	must(t, db.WriteGrouped(t.Context(), note(1)))
	must(t, os.Rename(path+"-wal", path+"-moved"))
	must(t, os.Symlink(path+"-wal", path+"-wal")) // cannot be opened
	if err := db.Flush(t.Context()); !errors.Is(err, database.ErrUnavailable) {
		t.Errorf("a flush that fails returns %v, want ErrUnavailable", err)
	}
	if err := db.WriteError(); !errors.Is(err, database.ErrUnavailable) {
		t.Errorf("after a failed flush, WriteError is %v, want ErrUnavailable", err)
	}
	must(t, db.WriteGrouped(t.Context(), note(2)))
	if err := db.WriteError(); !errors.Is(err, database.ErrUnavailable) {
		t.Errorf("after a commit that is not flushed, WriteError is %v, want ErrUnavailable", err)
	}
	must(t, os.Remove(path+"-wal"))
	must(t, os.Rename(path+"-moved", path+"-wal"))
	must(t, db.Flush(t.Context()))
	must(t, db.WriteError())
}
