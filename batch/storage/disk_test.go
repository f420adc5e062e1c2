package storage_test

import (
	"os"
	"path/filepath"
	"testing"

	"basegate/batch/storage"
)

func TestFilesAreTheOwnersOnly(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "files")
	must(t, os.Mkdir(folder, 0o755))
	d, err := storage.OpenDisk(folder)
	must(t, err)
	defer d.Close()
	must(t, d.Put(t.Context(), "a", []byte("one\n"), true))
	for path, want := range map[string]os.FileMode{folder: 0o700 | os.ModeDir, filepath.Join(folder, "a"): 0o600} {
		info, err := os.Stat(path)
		must(t, err)
		if info.Mode() != want {
			t.Errorf("%s has mode %v, want %v", path, info.Mode(), want)
		}
	}
}

func TestFilesOutsideOfTheFolderCannotBeRead(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "files")
	d, err := storage.OpenDisk(folder)
	must(t, err)
	defer d.Close()
	must(t, os.WriteFile(filepath.Join(filepath.Dir(folder), "outside"), []byte("secret"), 0o600))
	if _, err := d.Open(t.Context(), "../outside", 0, 1); err == nil {
		t.Error("a file outside of the folder can be read")
	}
}
