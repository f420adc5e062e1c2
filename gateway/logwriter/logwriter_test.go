package logwriter_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"basegate/gateway/logwriter"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// reader is where the log goes. Its Write blocks while stalled is open, and then does what answer does.
type reader struct {
	mu      sync.Mutex
	text    bytes.Buffer
	stalled chan struct{}
	answer  func(p []byte) (int, error)
}

func newReader() *reader {
	r := &reader{stalled: make(chan struct{})}
	r.answer = r.text.Write
	return r
}

func (r *reader) Write(p []byte) (int, error) {
	<-r.stalled
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.answer(p)
}

func (r *reader) set(answer func(p []byte) (int, error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = answer
}

func closeWriter(t *testing.T, w *logwriter.Writer) {
	t.Helper()
	if err := w.Close(time.Minute); err != nil {
		t.Errorf("close: %v", err)
	}
}

// flush waits, in a bubble, until the lines have been written, or their write has failed.
func flush() {
	time.Sleep(10 * time.Millisecond)
	synctest.Wait()
}

// Close does not wait for more lines.
func TestLinesOfAMomentShareOneWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReader()
		close(r.stalled)
		writes := 0
		r.set(func(p []byte) (int, error) {
			writes++
			return r.text.Write(p)
		})
		w := logwriter.New(r)
		for range 100 {
			io.WriteString(w, "line\n")
		}
		flush()
		if lines := strings.Count(r.text.String(), "\n"); lines != 100 || writes != 1 {
			t.Errorf("%d lines in %d writes, want 100 in one", lines, writes)
		}
		began := time.Now()
		io.WriteString(w, "line\n")
		closeWriter(t, w)
		if waited := time.Since(began); waited > 0 || strings.Count(r.text.String(), "\n") != 101 {
			t.Errorf("%d bytes after %v, want all at once", r.text.Len(), waited)
		}
	})
}

func TestCloseWritesEveryLineInOrder(t *testing.T) {
	r := newReader()
	close(r.stalled)
	w := logwriter.New(r)
	var want strings.Builder
	for i := range 10_000 {
		line := strings.Repeat("x", i%50) + "\n"
		want.WriteString(line)
		io.WriteString(w, line)
	}
	closeWriter(t, w)
	if r.text.String() != want.String() || w.Dropped() != 0 || w.Failing() {
		t.Errorf("got %d bytes, %d lines dropped, failing %t, want %d bytes and nothing dropped", r.text.Len(), w.Dropped(), w.Failing(), want.Len())
	}
}

func TestStalledReaderBlocksNoWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReader()
		w := logwriter.New(r)
		const lines = 100_000
		line := strings.Repeat("x", 99) + "\n"
		io.WriteString(w, line)
		time.Sleep(time.Second)
		synctest.Wait() // the first line is in a write that does not return
		for range lines - 1 {
			if n, err := io.WriteString(w, line); n != len(line) || err != nil {
				t.Fatalf("got %d, %v, want %d and no error", n, err, len(line))
			}
		}
		if !w.Failing() {
			t.Error("not failing while lines are dropped")
		}
		if err := w.Close(time.Second); !errors.Is(err, logwriter.ErrNotWritten) {
			t.Errorf("close: got error %v, want %v", err, logwriter.ErrNotWritten)
		}
		close(r.stalled)
		closeWriter(t, w)
		written := strings.Count(r.text.String(), line)
		if written*len(line) != r.text.Len() || written < 10_000 || uint64(written)+w.Dropped() != lines {
			t.Errorf("%d whole lines in %d bytes are written and %d dropped, want %d together", written, r.text.Len(), w.Dropped(), lines)
		}
	})
}

func TestFailedWritesAreCountedAndEndWhenTheReaderReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReader()
		close(r.stalled)
		w := logwriter.New(r)
		defer closeWriter(t, w)
		r.set(func([]byte) (int, error) { return 0, io.ErrClosedPipe })
		for range 3 {
			io.WriteString(w, "lost\n")
			flush()
		}
		if w.Dropped() != 3 || !w.Failing() {
			t.Errorf("%d lines dropped, failing %t, want 3 and true", w.Dropped(), w.Failing())
		}
		r.set(r.text.Write)
		io.WriteString(w, "written\n")
		flush()
		if r.text.String() != "written\n" || w.Dropped() != 3 || w.Failing() {
			t.Errorf("got %q, %d lines dropped, failing %t, want the last line alone", r.text.String(), w.Dropped(), w.Failing())
		}
	})
}

// A full disk takes a part of a line, and has room again later.
func TestLineBehindATornOneBeginsANewLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReader()
		close(r.stalled)
		w := logwriter.New(r)
		defer closeWriter(t, w)
		r.set(func(p []byte) (int, error) {
			r.text.Write(p[:3])
			return 3, io.ErrShortWrite
		})
		io.WriteString(w, "first\n")
		flush()
		r.set(r.text.Write)
		io.WriteString(w, "second\n")
		flush()
		if want := "fir\nsecond\n"; r.text.String() != want || w.Dropped() != 1 {
			t.Errorf("got %q, %d lines dropped, want %q and 1", r.text.String(), w.Dropped(), want)
		}
	})
}

func TestLinesAfterCloseAreDropped(t *testing.T) {
	r := newReader()
	close(r.stalled)
	w := logwriter.New(r)
	closeWriter(t, w)
	io.WriteString(w, "late\n")
	if w.Dropped() != 1 || r.text.Len() != 0 {
		t.Errorf("%d lines dropped, %q written, want 1 and nothing", w.Dropped(), r.text.String())
	}
}

func TestConcurrentLinesAreNotMixed(t *testing.T) {
	r := newReader()
	close(r.stalled)
	w := logwriter.New(r)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			line := strings.Repeat(string(rune('a'+i)), 80) + "\n"
			for range 500 {
				io.WriteString(w, line)
			}
		})
	}
	all.Wait()
	closeWriter(t, w)
	lines := strings.Split(strings.TrimSuffix(r.text.String(), "\n"), "\n")
	for _, line := range lines {
		if line != strings.Repeat(line[:1], 80) {
			t.Fatalf("mixed line %q", line)
		}
	}
	if len(lines) != 4000 {
		t.Errorf("%d lines, want 4000", len(lines))
	}
}

func BenchmarkWrite(b *testing.B) {
	w := logwriter.New(io.Discard)
	defer w.Close(time.Minute)
	line := []byte(strings.Repeat("x", 400) + "\n")
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			w.Write(line)
		}
	})
}
