package storage_test

import (
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"basegate/batch/storage"
	"basegate/internal/s3test"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// testStore is a store under test. reopen returns another store on the same objects, as a restarted process has it.
type testStore struct {
	t *testing.T
	storage.Store
	reopen func() storage.Store
	left   func() int // files or keys of all objects
}

// forEachStore runs a test with each implementation.
func forEachStore(t *testing.T, test func(testStore)) {
	t.Helper()
	t.Run("disk", func(t *testing.T) {
		folder := filepath.Join(t.TempDir(), "files")
		open := func() storage.Store {
			s, err := storage.OpenDisk(folder)
			must(t, err)
			t.Cleanup(func() { must(t, s.Close()) })
			return s
		}
		test(testStore{t, open(), open, func() int {
			left, err := os.ReadDir(folder)
			must(t, err)
			return len(left)
		}})
	})
	t.Run("s3", func(t *testing.T) {
		server := s3test.Start(t)
		open := func() storage.Store { return openS3(t, server) }
		test(testStore{t, open(), open, func() int { return len(server.Keys("")) }})
	})
}

func wantContent(t *testing.T, s storage.Store, name string, offset, length int64, want string) {
	t.Helper()
	r, err := s.Open(t.Context(), name, offset, length)
	must(t, err)
	defer r.Close()
	got, err := io.ReadAll(r)
	must(t, err)
	if string(got) != want {
		t.Errorf("got %.100q (%d bytes), want %.100q (%d bytes)", got, len(got), want, len(want))
	}
}

func TestPutObjectIsRead(t *testing.T) {
	forEachStore(t, func(s testStore) {
		t := s.t
		must(t, s.Put(t.Context(), "a", []byte("one\ntwo\nthree\n"), true))
		must(t, s.Put(t.Context(), "a", []byte("one\ntwo\nthree\n"), true)) // after an error, it is repeated
		store := s.reopen()
		wantContent(t, store, "a", 0, 14, "one\ntwo\nthree\n")
		wantContent(t, store, "a", 4, 3, "two")
		wantContent(t, store, "a", 2, 100, "e\ntwo\nthree\n")
		if n := s.left(); n != 1 {
			t.Errorf("%d files or keys are left, want 1", n)
		}
	})
}

func TestDeletedObjectIsGone(t *testing.T) {
	forEachStore(t, func(s testStore) {
		t := s.t
		must(t, s.Put(t.Context(), "a", []byte("one\n"), true))
		must(t, s.Put(t.Context(), "ab", []byte("another\n"), true))
		must(t, s.Delete(t.Context(), "a"))
		must(t, s.Delete(t.Context(), "a"))
		if _, err := s.Open(t.Context(), "a", 0, 1); !errors.Is(err, storage.ErrNotFound) {
			t.Errorf("got %v, want ErrNotFound", err)
		}
		wantContent(t, s, "ab", 0, 8, "another\n")
		if n := s.left(); n != 1 {
			t.Errorf("%d files or keys are left, want the other object's", n)
		}
	})
}

func TestNamesCannotLeaveTheFolder(t *testing.T) {
	forEachStore(t, func(s testStore) {
		t := s.t
		for _, name := range []string{"../outside", "..", ""} {
			if err := s.Put(t.Context(), name, []byte("x"), true); err == nil {
				t.Errorf("an object %q was written", name)
			}
			if _, err := s.Open(t.Context(), name+"/outside", 0, 1); err == nil {
				t.Errorf("%q can be read", name)
			}
		}
	})
}

func TestObjectsAreListedWithTheirSizes(t *testing.T) {
	forEachStore(t, func(s testStore) {
		want := map[string]int64{"a": 5, "b": 12, "c": 3}
		for name, size := range want {
			must(s.t, s.Put(s.t.Context(), name, make([]byte, size), true))
		}
		must(s.t, s.Put(s.t.Context(), "deleted", make([]byte, 9), true))
		must(s.t, s.Delete(s.t.Context(), "deleted"))
		got := map[string]int64{}
		must(s.t, s.List(s.t.Context(), func(name string, size int64) error {
			got[name] = size
			return nil
		}))
		if !maps.Equal(got, want) {
			s.t.Errorf("got %v, want %v", got, want)
		}
	})
}
