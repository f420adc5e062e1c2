// Package logwriter writes the log without ever blocking the goroutine that logs: lines wait in a bounded buffer, and one
// goroutine writes them. A line that finds the buffer full, or whose write fails, is dropped and counted. Formats, levels
// and the exit code are left to its callers.
package logwriter

import (
	"bytes"
	"errors"
	"io"
	"sync"
	"time"

	"basegate/internal/wait"
)

// bufferSize limits the lines that wait, in bytes. As many bytes again may be in a write.
const bufferSize = 1 << 20

// gatherTime is how long lines wait for others to be written with them: each write takes a system call and wakes a thread.
// A kill of the process loses the lines of this time.
const gatherTime = 5 * time.Millisecond

// gatherBytes is how many bytes of lines are written at once.
const gatherBytes = 64 << 10

// ErrNotWritten is returned by Close if lines are still unwritten.
var ErrNotWritten = errors.New("the log's reader does not read")

// Writer is an io.Writer. Each Write is one or more whole lines.
type Writer struct {
	to   io.Writer
	wake chan struct{} // receives when there is something to do; buffered
	now  chan struct{} // receives when lines must not wait for others; buffered
	done chan struct{} // closed when the goroutine has returned

	mu      sync.Mutex
	waiting []byte // the lines to write next
	failing bool   // the last line was dropped, or its write failed
	closed  bool
	dropped uint64
}

// New returns a writer to the given one, which only this writer may use. Close ends its goroutine.
func New(to io.Writer) *Writer {
	w := &Writer{to: to, wake: make(chan struct{}, 1), now: make(chan struct{}, 1), done: make(chan struct{})}
	go w.run()
	return w
}

// Write implements io.Writer. It never blocks and never fails.
func (w *Writer) Write(lines []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || len(w.waiting)+len(lines) > bufferSize {
		w.drop(lines)
		return len(lines), nil
	}
	if w.waiting = append(w.waiting, lines...); len(w.waiting) > gatherBytes {
		wait.Wake(w.now)
	}
	wait.Wake(w.wake)
	return len(lines), nil
}

// Close writes the lines that wait and ends the goroutine. If a write lasts longer than the timeout, Close returns
// ErrNotWritten and abandons the goroutine, because nothing can interrupt a write to a terminal or a pipe.
func (w *Writer) Close(timeout time.Duration) error {
	w.mu.Lock()
	w.closed = true
	wait.Wake(w.wake)
	wait.Wake(w.now)
	w.mu.Unlock()
	expired := time.NewTimer(timeout)
	defer expired.Stop()
	select {
	case <-w.done:
		return nil
	case <-expired.C:
		return ErrNotWritten
	}
}

// Failing returns whether lines are being dropped. It becomes false when a line is written again.
func (w *Writer) Failing() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failing
}

// Dropped returns how many lines have been dropped.
func (w *Writer) Dropped() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dropped
}

// drop counts lines as dropped. The caller holds mu.
func (w *Writer) drop(lines []byte) {
	w.failing = true
	w.dropped += uint64(bytes.Count(lines, []byte{'\n'}))
}

// run writes the lines that wait until Close is called and none is left.
func (w *Writer) run() {
	defer close(w.done)
	var batch []byte
	torn, closed := false, false // torn: the last write ended within a line
	gathered := time.NewTimer(gatherTime)
	defer gathered.Stop()
	for !closed {
		<-w.wake
		gathered.Reset(gatherTime)
		select {
		case <-gathered.C:
		case <-w.now:
		}
		for batch, closed = w.next(batch); len(batch) > 0; batch, closed = w.next(batch) {
			if torn { // or the next line would continue the torn one
				w.to.Write([]byte{'\n'}) //nolint:errcheck // the next write reports it
			}
			n, err := w.to.Write(batch)
			if n > 0 {
				torn = batch[n-1] != '\n'
			}
			w.written(batch[n:], err)
		}
	}
}

// next returns the lines that wait, and keeps the memory of the batch before for those to come.
func (w *Writer) next(before []byte) (batch []byte, closed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	batch, w.waiting = w.waiting, before[:0]
	return batch, w.closed
}

// written records the result of a write that left some bytes unwritten if it failed.
func (w *Writer) written(unwritten []byte, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		w.failing = false
		return
	}
	w.drop(unwritten)
}
