package database_test

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"basegate/database"
	"basegate/internal/poll"
)

func TestWritesFailWhileAnotherProcessHoldsTheLock(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "base.db")
	log, logged := observedLogger()
	db := openWith(t, database.Settings{Path: path, LockWait: time.Second}, log)
	createNotes(t, db)
	other, err := sql.Open("sqlite3", "file:"+path+"?_txlock=immediate")
	must(t, err)
	defer other.Close()
	held, err := other.Begin()
	must(t, err)
	for id := range 3 {
		if err := db.WriteGrouped(t.Context(), note(id)); !errors.Is(err, database.ErrUnavailable) || !database.IsBusy(err) {
			t.Errorf("with the lock held: got error %v, want ErrUnavailable for a busy database", err)
		}
	}
	if db.Ping(t.Context()) == nil {
		t.Error("Ping succeeded while the lock is held")
	}
	must(t, held.Rollback())
	poll.Until(t, "the database recovers without a write", func() bool { return db.Ping(t.Context()) == nil })
	must(t, db.WriteGrouped(t.Context(), note(1)))
	if n := logged.FilterMessage("the database cannot be written").Len(); n != 1 {
		t.Errorf("the beginning of the outage was logged %d times, want once", n)
	}
	if n := logged.FilterMessage("the database can be written again").Len(); n != 1 {
		t.Errorf("the end of the outage was logged %d times, want once", n)
	}
}

func TestWritesFailWhileTheDiskIsFull(t *testing.T) {
	db := openNotes(t, database.Settings{Path: filepath.Join(t.TempDir(), "base.db")})
	limitPages := func(pages int) {
		// SQLite fails in the same way on a full disk and on a file that may not grow.
		must(t, db.WriteExclusive(t.Context(), execute(fmt.Sprintf("PRAGMA max_page_count = %d", pages))))
	}
	limitPages(1)
	big := execute("INSERT INTO notes (id, text) VALUES (1, $1)", string(make([]byte, 1<<20)))
	if err := db.WriteGrouped(t.Context(), big); !errors.Is(err, database.ErrUnavailable) {
		t.Errorf("alone in a transaction: got error %v, want ErrUnavailable", err)
	}
	release := block(t, db)
	small, large := db.Submit(note(2)), db.Submit(big)
	release()
	if err := large.Wait(t.Context()); !errors.Is(err, database.ErrUnavailable) {
		t.Errorf("in a batch: got error %v, want ErrUnavailable", err)
	}
	if err := small.Wait(t.Context()); (err == nil) != (count(t, db, "id = 2") == 1) {
		t.Errorf("the small write returned error %v, which does not agree with the table", err)
	}
	limitPages(1_000_000)
	must(t, db.WriteGrouped(t.Context(), big))
	must(t, db.Ping(t.Context()))
}

func move(t *testing.T, from, to string) {
	t.Helper()
	for _, end := range []string{"", "-wal", "-shm"} {
		if err := os.Rename(from+end, to+end); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
}

func TestAMissingFileIsNotCreatedAndWritesResumeWhenItReturns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "base.db")
	db := openNotes(t, database.Settings{Path: path})
	must(t, db.WriteGrouped(t.Context(), note(1)))
	move(t, path, path+".away")
	if err := db.WriteGrouped(t.Context(), note(2)); !errors.Is(err, database.ErrUnavailable) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without the file: got error %v, want ErrUnavailable and ErrNotExist", err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("an empty database was created")
	}
	move(t, path+".away", path)
	must(t, db.WriteGrouped(t.Context(), note(3)))
	if n := count(t, db, "id IN (1, 3)"); n != 2 {
		t.Errorf("%d notes, want 2", n)
	}
	must(t, db.Ping(t.Context()))
}

func TestAReplacedFileIsReopened(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "base.db")
	log, logged := observedLogger()
	db := openWith(t, database.Settings{Path: path}, log)
	createNotes(t, db)
	must(t, db.WriteGrouped(t.Context(), note(1)))
	move(t, path, path+".old")

	fresh, err := database.Open(t.Context(), database.Settings{Path: path + ".new"}, log)
	must(t, err)
	createNotes(t, fresh)
	must(t, fresh.WriteGrouped(t.Context(), note(10)))
	must(t, fresh.Close())
	move(t, path+".new", path)

	poll.Until(t, "Read returns the new file", func() bool {
		var n int
		err := db.Read().QueryRowContext(t.Context(), "SELECT count(*) FROM notes WHERE id = 10").Scan(&n)
		return err == nil && n == 1
	})
	must(t, db.WriteGrouped(t.Context(), note(11)))
	if n := count(t, db, "true"); n != 2 {
		t.Errorf("%d notes, want the new file's 2", n)
	}
	if logged.FilterMessage("database reopened").Len() != 1 {
		t.Error("the reopening was not logged exactly once")
	}
	if n := count(t, open(t, path), "id = 11"); n != 1 {
		t.Error("the write did not go to the new file")
	}
}

func TestAnEmptyFileInTheDatabasesPlaceIsMigrated(t *testing.T) {
	path := filepath.Join(t.TempDir(), "base.db")
	db := openNotes(t, database.Settings{Path: path})
	for _, end := range []string{"", "-wal", "-shm"} {
		must(t, os.Remove(path+end))
	}
	must(t, os.WriteFile(path, nil, 0o600))
	var revision int
	must(t, db.WriteGrouped(t.Context(), func(tx database.Tx) error {
		return tx.QueryRowContext(t.Context(), "SELECT revision FROM keys_revision").Scan(&revision)
	}))
}

func TestReopeningIsRetriedUntilItSucceeds(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "base.db")
	db := openNotes(t, database.Settings{Path: path})
	move(t, path, path+".away")
	must(t, os.WriteFile(path, []byte("garbage that is long enough to have a header, but for none of a database's.........................."), 0o600))
	for range 3 {
		if err := db.WriteGrouped(t.Context(), note(1)); !errors.Is(err, database.ErrUnavailable) {
			t.Errorf("with garbage in its place: got error %v, want ErrUnavailable", err)
		}
	}
	must(t, os.Remove(path))
	move(t, path+".away", path)
	poll.Until(t, "the database recovers", func() bool { return db.Ping(t.Context()) == nil })
	must(t, db.WriteGrouped(t.Context(), note(2)))
}
