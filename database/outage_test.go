package database_test

import (
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"basegate/database"
	"basegate/internal/poll"
)

func TestAForeignLockFailsWritesSoonAndPasses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "base.db")
	log, logged := observed()
	db := openWith(t, database.Settings{Path: path, LockWait: 20 * time.Millisecond}, log)
	makeNotes(t, db)
	other, err := sql.Open("sqlite3", "file:"+path+"?_txlock=immediate")
	must(t, err)
	defer other.Close()
	held, err := other.Begin()
	must(t, err)
	for id := range 3 {
		if err := db.WriteGrouped(t.Context(), note(id)); !errors.Is(err, database.ErrUnavailable) || !database.IsBusy(err) {
			t.Errorf("with the lock held: %v", err)
		}
	}
	if db.Ping(t.Context()) == nil {
		t.Error("Ping finds nothing wrong")
	}
	must(t, held.Rollback())
	poll.Until(t, "it recovers without being written to", func() bool { return db.Ping(t.Context()) == nil })
	must(t, db.WriteGrouped(t.Context(), note(1)))
	if n := logged.FilterMessage("the database cannot be written").Len(); n != 1 {
		t.Errorf("the outage was logged %d times", n)
	}
	if n := logged.FilterMessage("the database can be written again").Len(); n != 1 {
		t.Errorf("its end was logged %d times", n)
	}
}

func TestAFullDiskFailsWritesAndPasses(t *testing.T) {
	db := openNotes(t, database.Settings{})
	limit := func(pages int) {
		// What a full disk does, SQLite also does when the file may not grow.
		must(t, db.WriteExclusive(t.Context(), execute(map[bool]string{true: "PRAGMA max_page_count = 1", false: "PRAGMA max_page_count = 1000000"}[pages == 1])))
	}
	limit(1)
	big := execute("INSERT INTO notes (id, text) VALUES (1, $1)", string(make([]byte, 1<<20)))
	if err := db.WriteGrouped(t.Context(), big); !errors.Is(err, database.ErrUnavailable) {
		t.Errorf("alone: %v", err)
	}
	release := block(t, db)
	small, large := db.Submit(note(2)), db.Submit(big)
	release()
	if err := large.Wait(t.Context()); !errors.Is(err, database.ErrUnavailable) {
		t.Errorf("in a batch: %v", err)
	}
	if err := small.Wait(t.Context()); (err == nil) != (count(t, db, "id = 2") == 1) {
		t.Errorf("the other one was told %v", err)
	}
	limit(1000000)
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

func TestAFileThatIsGoneIsWaitedFor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "base.db")
	db := openNotes(t, database.Settings{Path: path})
	must(t, db.WriteGrouped(t.Context(), note(1)))
	move(t, path, path+".away")
	if err := db.WriteGrouped(t.Context(), note(2)); !errors.Is(err, database.ErrUnavailable) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without the file: %v", err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("an empty database was made")
	}
	move(t, path+".away", path)
	must(t, db.WriteGrouped(t.Context(), note(3)))
	if n := count(t, db, "id IN (1, 3)"); n != 2 {
		t.Errorf("%d of 2 notes", n)
	}
	must(t, db.Ping(t.Context()))
}

func TestAFileThatWasReplacedIsOpened(t *testing.T) {
	path := filepath.Join(t.TempDir(), "base.db")
	log, logged := observed()
	db := openWith(t, database.Settings{Path: path}, log)
	makeNotes(t, db)
	must(t, db.WriteGrouped(t.Context(), note(1)))
	move(t, path, path+".old")

	fresh, err := database.Open(t.Context(), database.Settings{Path: path + ".new"}, log)
	must(t, err)
	makeNotes(t, fresh)
	must(t, fresh.WriteGrouped(t.Context(), note(10)))
	must(t, fresh.Close())
	move(t, path+".new", path)

	poll.Until(t, "the new file is read", func() bool {
		var n int
		err := db.Read().QueryRowContext(t.Context(), "SELECT count(*) FROM notes WHERE id = 10").Scan(&n)
		return err == nil && n == 1
	})
	must(t, db.WriteGrouped(t.Context(), note(11)))
	if n := count(t, db, "true"); n != 2 {
		t.Errorf("%d notes, want the new file's 2", n)
	}
	if logged.FilterMessage("database opened again").Len() != 1 {
		t.Error("this was not logged once")
	}
	if n := count(t, open(t, path), "id = 11"); n != 1 {
		t.Error("the write went to another file")
	}
}

func TestAFileThatWasDeletedAndMadeAnewIsMigrated(t *testing.T) {
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

func TestWhatCannotBeOpenedAgainIsTriedAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "base.db")
	db := openNotes(t, database.Settings{Path: path})
	move(t, path, path+".away")
	must(t, os.WriteFile(path, []byte("garbage that is long enough to have a header, but for none of a database's.........................."), 0o600))
	for range 3 {
		if err := db.WriteGrouped(t.Context(), note(1)); !errors.Is(err, database.ErrUnavailable) {
			t.Errorf("with garbage in its place: %v", err)
		}
	}
	must(t, os.Remove(path))
	move(t, path+".away", path)
	poll.Until(t, "it recovers", func() bool { return db.Ping(t.Context()) == nil })
	must(t, db.WriteGrouped(t.Context(), note(2)))
}
