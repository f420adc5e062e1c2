package database_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"go.uber.org/zap"

	"basegate/database"
)

func TestABackupIsTheDatabaseOfOneMoment(t *testing.T) {
	db := openNotes(t, database.Settings{Path: filepath.Join(t.TempDir(), "base.db")})
	ctx, stop := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	writing.Go(func() { // two notes at a time, so that a copy of half a moment shows
		for i := 1; ctx.Err() == nil; i += 2 {
			must(t, db.WriteExclusive(t.Context(), execute("INSERT INTO notes (id, text) VALUES ($1, 'a'), ($2, 'b')", i, i+1)))
		}
	})
	to := filepath.Join(t.TempDir(), "copy.db")
	must(t, db.Backup(t.Context(), to))
	stop()
	writing.Wait()
	info, err := os.Stat(to)
	must(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("others may read it: %v", info.Mode())
	}
	if left, err := os.ReadDir(filepath.Dir(to)); err != nil || len(left) != 1 {
		t.Errorf("something stays beside it: %v %v", left, err)
	}
	restored, err := database.Open(t.Context(), database.Settings{Path: to}, zap.NewNop())
	must(t, err)
	defer restored.Close()
	var notes int
	must(t, restored.Read().QueryRowContext(t.Context(), "SELECT count(*) FROM notes").Scan(&notes))
	if notes%2 != 0 {
		t.Errorf("%d notes", notes)
	}
	must(t, restored.WriteExclusive(t.Context(), execute("INSERT INTO notes (id, text) VALUES (1000000, 'c')")))
}

func TestABackupOverwritesNothing(t *testing.T) {
	db := openNotes(t, database.Settings{})
	to := filepath.Join(t.TempDir(), "there.db")
	must(t, os.WriteFile(to, []byte("mine"), 0o600))
	if err := db.Backup(t.Context(), to); !errors.Is(err, database.ErrExists) {
		t.Errorf("got %v", err)
	}
	if text, err := os.ReadFile(to); err != nil || string(text) != "mine" {
		t.Errorf("%q %v", text, err)
	}
	if err := db.Backup(t.Context(), filepath.Join(t.TempDir(), "nowhere", "copy.db")); err == nil {
		t.Error("a folder that is not there is no error")
	}
}
