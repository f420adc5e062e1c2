package batch

import (
	"errors"
	"io"
	"testing"

	"basegate/batch/storage"
)

// A file of which the storage has lost bytes is not taken for a shorter one.
func TestFileThatHasLostBytesIsNotReadAsAShorterOne(t *testing.T) {
	store, err := storage.OpenDisk(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if err := store.Append(t.Context(), "a", 0, []byte("one\ntwo\n")); err != nil {
		t.Fatal(err)
	}
	for size, want := range map[int64]error{8: nil, 12: io.ErrUnexpectedEOF} {
		r := &objectReader{ctx: t.Context(), service: &Service{store: store}, file: File{object: "a", Bytes: size}}
		defer r.Close()
		if text, err := io.ReadAll(r); string(text) != "one\ntwo\n" || !errors.Is(err, want) {
			t.Errorf("size %d: got %q, %v, want error %v", size, text, err, want)
		}
		if _, err := r.Seek(4, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(r); string(text) != "two\n" || !errors.Is(err, want) {
			t.Errorf("size %d, from 4 on: got %q, %v, want error %v", size, text, err, want)
		}
	}
}
