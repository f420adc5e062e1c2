package storage_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"basegate/storage"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func openDisk(t *testing.T) (*storage.Disk, string) {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "files")
	d, err := storage.OpenDisk(folder)
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	return d, folder
}

func wantContent(t *testing.T, d storage.Store, name string, offset, length int64, want string) {
	t.Helper()
	r, err := d.Open(t.Context(), name, offset, length)
	must(t, err)
	defer r.Close()
	got, err := io.ReadAll(r)
	must(t, err)
	if string(got) != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestAppendsMakeAnObject(t *testing.T) {
	d, folder := openDisk(t)
	must(t, d.Append(t.Context(), "a", 0, []byte("one\n")))
	must(t, d.Append(t.Context(), "a", 4, []byte("two\n")))
	wantContent(t, d, "a", 0, 8, "one\ntwo\n")
	wantContent(t, d, "a", 4, 3, "two")
	wantContent(t, d, "a", 2, 100, "e\ntwo\n")
	for path, want := range map[string]os.FileMode{folder: 0o700 | os.ModeDir, filepath.Join(folder, "a"): 0o600} {
		info, err := os.Stat(path)
		must(t, err)
		if info.Mode() != want {
			t.Errorf("%s has mode %v, want %v", path, info.Mode(), want)
		}
	}
}

func TestAppendDiscardsWhatLiesBehindItsOffset(t *testing.T) {
	d, _ := openDisk(t)
	must(t, d.Append(t.Context(), "a", 0, []byte("one\n")))
	must(t, d.Append(t.Context(), "a", 4, []byte("a longer line that was never recorded\n")))
	must(t, d.Append(t.Context(), "a", 4, []byte("two\n")))
	wantContent(t, d, "a", 0, 1000, "one\ntwo\n")
	must(t, d.Append(t.Context(), "a", 0, []byte("new\n")))
	wantContent(t, d, "a", 0, 1000, "new\n")
}

func TestAppendNoticesLostBytes(t *testing.T) {
	d, _ := openDisk(t)
	must(t, d.Append(t.Context(), "a", 0, []byte("one\n")))
	if err := d.Append(t.Context(), "a", 8, []byte("three\n")); !errors.Is(err, storage.ErrShort) {
		t.Errorf("got %v, want ErrShort", err)
	}
	if err := d.Append(t.Context(), "missing", 8, []byte("three\n")); err == nil {
		t.Error("an append to an object that does not exist succeeded")
	}
}

func TestDeletedObjectIsGone(t *testing.T) {
	d, folder := openDisk(t)
	must(t, d.Append(t.Context(), "a", 0, []byte("one\n")))
	must(t, d.Delete(t.Context(), "a"))
	must(t, d.Delete(t.Context(), "a"))
	if _, err := d.Open(t.Context(), "a", 0, 1); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("got %v, want ErrNotFound", err)
	}
	left, err := os.ReadDir(folder)
	must(t, err)
	if len(left) > 0 {
		t.Errorf("the folder holds %v", left)
	}
}

func TestNamesCannotLeaveTheFolder(t *testing.T) {
	d, folder := openDisk(t)
	must(t, os.WriteFile(filepath.Join(filepath.Dir(folder), "outside"), []byte("secret"), 0o600))
	if err := d.Append(t.Context(), "../outside", 0, []byte("x")); err == nil {
		t.Error("an append outside of the folder succeeded")
	}
	if _, err := d.Open(t.Context(), "../outside", 0, 1); err == nil {
		t.Error("an object outside of the folder can be read")
	}
}
