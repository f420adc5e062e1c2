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

func TestBackupIsAConsistentSnapshot(t *testing.T) {
	path := filepath.Join(t.TempDir(), "base.db")
	db := openNotes(t, database.Settings{Path: path})
	ctx, stop := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	writing.Go(func() { // two notes in each transaction, so that a torn snapshot has an odd number
		for i := 1; ctx.Err() == nil; i += 2 {
			must(t, db.WriteExclusive(t.Context(), execute("INSERT INTO notes (id, text) VALUES ($1, 'a'), ($2, 'b')", i, i+1)))
		}
	})
	to := filepath.Join(t.TempDir(), "copy.db")
	contents, err := database.Backup(t.Context(), path, to)
	must(t, err)
	stop()
	writing.Wait()
	info, err := os.Stat(to)
	must(t, err)
	if contents.Bytes != info.Size() || contents.SchemaVersion == 0 {
		t.Errorf("the backup is described as %+v, want its %d bytes and its schema version", contents, info.Size())
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode is %v, want 0600", info.Mode().Perm())
	}
	if left, err := os.ReadDir(filepath.Dir(to)); err != nil || len(left) != 1 {
		t.Errorf("files in the target directory: %v (error %v), want only the backup", left, err)
	}
	restored, err := database.Open(t.Context(), database.Settings{Path: to}, zap.NewNop())
	must(t, err)
	defer restored.Close()
	var notes int
	must(t, restored.Read().QueryRowContext(t.Context(), "SELECT count(*) FROM notes").Scan(&notes))
	if notes%2 != 0 {
		t.Errorf("%d notes, want an even number", notes)
	}
	must(t, restored.WriteExclusive(t.Context(), execute("INSERT INTO notes (id, text) VALUES (1000000, 'c')")))
}

func TestBackupDoesNotOverwriteAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "base.db")
	openNotes(t, database.Settings{Path: path})
	to := filepath.Join(t.TempDir(), "there.db")
	must(t, os.WriteFile(to, []byte("mine"), 0o600))
	if _, err := database.Backup(t.Context(), path, to); !errors.Is(err, database.ErrExists) {
		t.Errorf("got error %v, want ErrExists", err)
	}
	if text, err := os.ReadFile(to); err != nil || string(text) != "mine" {
		t.Errorf("the existing file holds %q (error %v), want it unchanged", text, err)
	}
	if _, err := database.Backup(t.Context(), path, filepath.Join(t.TempDir(), "nowhere", "copy.db")); err == nil {
		t.Error("a missing target directory is not an error")
	}
}
