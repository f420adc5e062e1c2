package batch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/iotest"

	"basegate/batch/storage"
)

// flakyStore returns bodies that break after some bytes.
type flakyStore struct {
	storage.Store
	after int64
}

func (s flakyStore) Open(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	body, err := s.Store.Open(ctx, name, offset, length)
	if err != nil {
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(io.LimitReader(body, s.after), iotest.ErrReader(io.ErrUnexpectedEOF)), body}, nil
}

func newParts(t *testing.T, texts ...string) (storage.Store, []part) {
	t.Helper()
	store, err := storage.OpenDisk(t.TempDir())
	must(t, err)
	t.Cleanup(func() { must(t, store.Close()) })
	var parts []part
	end := int64(0)
	for i, text := range texts {
		p := part{fmt.Sprint("part", i), end, end + int64(len(text))}
		must(t, store.Put(t.Context(), p.object, []byte(text), true))
		parts, end = append(parts, p), p.end
	}
	return store, parts
}

// A file of which the storage has lost bytes is not taken for a shorter one.
func TestFileThatHasLostBytesIsNotReadAsAShorterOne(t *testing.T) {
	store, parts := newParts(t, "one\n", "two\n")
	for lost, want := range map[int64]error{0: nil, 4: io.ErrUnexpectedEOF} {
		parts[1].end = 8 + lost
		r := &fileReader{ctx: t.Context(), service: &Service{store: store}, parts: parts, size: 8 + lost}
		defer r.Close()
		if text, err := io.ReadAll(r); string(text) != "one\ntwo\n" || !errors.Is(err, want) {
			t.Errorf("%d bytes lost: got %q, %v, want error %v", lost, text, err, want)
		}
		if _, err := r.Seek(2, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(r); string(text) != "e\ntwo\n" || !errors.Is(err, want) {
			t.Errorf("%d bytes lost, from 2 on: got %q, %v, want error %v", lost, text, err, want)
		}
	}
}

func TestFileIsReadOverConnectionsThatBreak(t *testing.T) {
	store, parts := newParts(t, "one\ntwo\n", "three\n", "four\n")
	r := &fileReader{ctx: t.Context(), service: &Service{store: flakyStore{store, 3}}, parts: parts, size: 17, offset: 2}
	defer r.Close()
	if text, err := io.ReadAll(r); string(text) != "e\ntwo\nthree\nfou" || err != nil {
		t.Errorf("got %q, %v", text, err)
	}
	broken := &fileReader{ctx: t.Context(), service: &Service{store: flakyStore{store, 0}}, parts: parts, size: 17}
	defer broken.Close()
	if text, err := io.ReadAll(broken); len(text) > 0 || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("without progress: got %q, %v", text, err)
	}
}
