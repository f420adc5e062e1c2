package database_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"basegate/database"
)

// names lists a folder.
func names(t *testing.T, folder string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(folder)
	must(t, err)
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

// writerFunc is an io.Writer.
type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

var errReaderGone = errors.New("the reader is gone")

// Writing to a pipe without a reader ends the process before it can clean up, so the copy must have no name by then.
func TestBackupToAWriterLeavesNoCopyWhenItsReaderGoes(t *testing.T) {
	path, temporary := filepath.Join(t.TempDir(), "base.db"), t.TempDir()
	openNotes(t, database.Settings{Path: path})
	var during [][]string
	_, err := database.BackupTo(t.Context(), path, temporary, writerFunc(func([]byte) (int, error) {
		during = append(during, names(t, temporary))
		return 0, errReaderGone
	}))
	if !errors.Is(err, errReaderGone) || len(during) != 1 || len(during[0]) > 0 {
		t.Errorf("got %v, and %v beside the database when the reader was gone; want its error and nothing", err, during)
	}
}

// leave makes what a killed process leaves in a folder.
func leave(t *testing.T, folder string, files ...string) {
	t.Helper()
	must(t, os.MkdirAll(folder, 0o700))
	for _, name := range files {
		must(t, os.WriteFile(filepath.Join(folder, name), []byte("a copy"), 0o600))
	}
}

func TestCopiesThatKilledProcessesLeftAreSwept(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "base.db")
	openNotes(t, database.Settings{Path: path})
	before := names(t, folder)
	leave(t, filepath.Join(folder, ".basegate-copy-123"), "part.db", "part.db-journal")
	leave(t, filepath.Join(folder, ".basegate-copy-789"))
	others := []string{".backup-1", "basegate-copy-2"}
	for _, name := range others {
		leave(t, filepath.Join(folder, name), "part.db")
	}
	var copied bytes.Buffer
	_, err := database.BackupTo(t.Context(), path, folder, writerFunc(func(p []byte) (int, error) {
		return copied.Write(p)
	}))
	must(t, err)
	want := slices.Sorted(slices.Values(append(append(before, "base.db.last-backup"), others...)))
	if left := names(t, folder); !slices.Equal(left, want) {
		t.Errorf("the folder holds %v, want %v", left, want)
	}
}

func TestCopyInUseIsNotSwept(t *testing.T) {
	path, folder := filepath.Join(t.TempDir(), "base.db"), t.TempDir()
	openNotes(t, database.Settings{Path: path})
	dir, remove, err := database.MakeTemporary(folder)
	must(t, err)
	leave(t, dir, "part.db")
	must(t, database.SweepCopies(folder))
	if left := names(t, folder); len(left) != 1 {
		t.Errorf("the folder holds %v, want the copy that is in use", left)
	}
	must(t, remove())
	if left := names(t, folder); len(left) != 0 {
		t.Errorf("the folder holds %v, want nothing", left)
	}
}
