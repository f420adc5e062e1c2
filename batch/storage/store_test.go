package storage_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
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

func TestAppendsMakeAnObject(t *testing.T) {
	forEachStore(t, func(s testStore) {
		t := s.t
		must(t, s.Append(t.Context(), "a", 0, []byte("one\n")))
		must(t, s.Append(t.Context(), "a", 4, []byte("two\n")))
		wantContent(t, s, "a", 0, 8, "one\ntwo\n")
		wantContent(t, s, "a", 4, 3, "two")
		wantContent(t, s, "a", 2, 100, "e\ntwo\n")
		wantContent(t, s, "a", 100, 100, "")
		must(t, s.Append(t.Context(), "a", 8, []byte("three\n")))
		wantContent(t, s, "a", 0, 14, "one\ntwo\nthree\n")
		must(t, s.Finish(t.Context(), "a", 14))
		must(t, s.Finish(t.Context(), "a", 14))
		wantContent(t, s, "a", 2, 8, "e\ntwo\nth")
	})
}

func TestAppendDiscardsWhatLiesBehindItsOffset(t *testing.T) {
	forEachStore(t, func(s testStore) {
		t := s.t
		must(t, s.Append(t.Context(), "a", 0, []byte("one\n")))
		must(t, s.Append(t.Context(), "a", 4, []byte("a longer line that was never recorded\n")))
		must(t, s.reopen().Append(t.Context(), "a", 4, []byte("two\n")))
		wantContent(t, s, "a", 0, 1000, "one\ntwo\n")
		must(t, s.Append(t.Context(), "a", 2, []byte("ce\n"))) // in the middle of an append
		wantContent(t, s, "a", 0, 1000, "once\n")
		must(t, s.Append(t.Context(), "a", 0, []byte("new\n")))
		wantContent(t, s, "a", 0, 1000, "new\n")
		if n := s.left(); n != 1 {
			t.Errorf("%d files or keys are left, want 1", n)
		}
	})
}

func TestAppendNoticesLostBytes(t *testing.T) {
	forEachStore(t, func(s testStore) {
		t := s.t
		must(t, s.Append(t.Context(), "a", 0, []byte("one\n")))
		if err := s.Append(t.Context(), "a", 8, []byte("three\n")); !errors.Is(err, storage.ErrShort) {
			t.Errorf("got %v, want ErrShort", err)
		}
		if err := s.Append(t.Context(), "missing", 8, []byte("three\n")); err == nil {
			t.Error("an append to an object that does not exist succeeded")
		}
	})
}

func TestDeletedObjectIsGone(t *testing.T) {
	forEachStore(t, func(s testStore) {
		t := s.t
		must(t, s.Append(t.Context(), "a", 0, []byte("one\n")))
		must(t, s.Append(t.Context(), "a", 4, []byte("two\n")))
		must(t, s.Append(t.Context(), "ab", 0, []byte("another\n")))
		wantContent(t, s, "a", 0, 8, "one\ntwo\n")
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
			if err := s.Append(t.Context(), name, 0, []byte("x")); err == nil {
				t.Errorf("an append to %q succeeded", name)
			}
			if _, err := s.Open(t.Context(), name+"/outside", 0, 1); err == nil {
				t.Errorf("%q can be read", name)
			}
		}
	})
}

// Random appends, a part of which repeat or discard earlier ones or come from a restarted process, leave the bytes that a
// buffer in memory has.
func TestRandomAppendsLeaveWhatWasAppended(t *testing.T) {
	forEachStore(t, func(s testStore) {
		t := s.t
		random := rand.New(rand.NewPCG(1, 2))
		var want []byte
		store := s.Store
		for i := range 150 {
			offset := len(want)
			switch random.IntN(8) {
			case 0:
				offset = random.IntN(len(want) + 1)
			case 1:
				store = s.reopen()
			}
			data := []byte(strings.Repeat(fmt.Sprintf("%d,", i), 1+random.IntN(2000)))
			want = append(want[:offset], data...)
			must(t, store.Append(t.Context(), "a", int64(offset), data))
			if i%10 == 0 {
				from := random.IntN(len(want))
				wantContent(t, store, "a", int64(from), int64(len(want)-from), string(want[from:]))
			}
		}
		wantContent(t, store, "a", 0, int64(len(want)), string(want))
		must(t, store.Finish(t.Context(), "a", int64(len(want))))
		wantContent(t, store, "a", 0, int64(len(want)), string(want))
		if n := s.left(); n != 1 {
			t.Errorf("a finished object has %d files or keys, want 1", n)
		}
	})
}

// A reader goes on while the object grows and its parts are merged.
func TestReadersSeeAnObjectThatIsFinishedMeanwhile(t *testing.T) {
	forEachStore(t, func(s testStore) {
		t := s.t
		piece := bytes.Repeat([]byte("x"), 100_000)
		var want []byte
		for i := range 20 {
			piece[0] = byte('a' + i)
			must(t, s.Append(t.Context(), "a", int64(len(want)), piece))
			want = append(want, piece...)
		}
		r, err := s.Open(t.Context(), "a", 0, int64(len(want)))
		must(t, err)
		defer r.Close()
		got := make([]byte, 150_000)
		_, err = io.ReadFull(r, got)
		must(t, err)
		must(t, s.reopen().Finish(t.Context(), "a", int64(len(want))))
		rest, err := io.ReadAll(r)
		must(t, err)
		if got = append(got, rest...); !bytes.Equal(got, want) {
			t.Errorf("read %d bytes that differ from the %d that were written", len(got), len(want))
		}
	})
}

func TestObjectsAreListedWithTheirSizes(t *testing.T) {
	forEachStore(t, func(s testStore) {
		want := map[string]int64{"a": 5, "b": 12, "c": 3}
		for name, size := range want {
			must(s.t, s.Append(s.t.Context(), name, 0, make([]byte, size-2)))
			must(s.t, s.Append(s.t.Context(), name, size-2, make([]byte, 2)))
		}
		must(s.t, s.Append(s.t.Context(), "deleted", 0, make([]byte, 9)))
		must(s.t, s.Delete(s.t.Context(), "deleted"))
		got := map[string]int64{}
		must(s.t, s.Store.(storage.Lister).List(s.t.Context(), func(name string, size int64) error {
			got[name] = size
			return nil
		}))
		if !maps.Equal(got, want) {
			s.t.Errorf("got %v, want %v", got, want)
		}
	})
}
