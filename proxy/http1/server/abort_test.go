package server_test

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// A response that a handler aborts must not look complete. Any other panic is logged with its stack, but without its
// value, which may contain a prompt.
func TestPanicClosesTheConnection(t *testing.T) {
	core, logs := observer.New(zap.DebugLevel)
	s := serve(t, listen(t), &http.Server{ErrorLog: zap.NewStdLog(zap.New(core)), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Flush") != "" {
			io.WriteString(w, "partial")
			http.NewResponseController(w).Flush()
		} else if r.Header.Get("X-Write") != "" {
			io.WriteString(w, "partial")
		}
		if r.Header.Get("X-Abort") != "" {
			panic(http.ErrAbortHandler)
		}
		panic("a secret")
	})})
	for _, progress := range []string{"", "X-Write: yes\r\n", "X-Flush: yes\r\n"} {
		for _, abort := range []string{"X-Abort: yes\r\n", ""} {
			c := dial(t, s.address)
			c.send(post("", progress, abort))
			got, err := c.readResponse()
			if err == nil || strings.Contains(progress, "Flush") != (got.Body == "partial") {
				t.Errorf("%s%s: got %+v, error %v, want an error, after what was flushed", progress, abort, got, err)
			}
			var logged string
			for _, entry := range logs.TakeAll() {
				logged += entry.Message
			}
			if (abort == "") != strings.Contains(logged, "abort_test.go") || strings.Contains(logged, "secret") {
				t.Errorf("%s%s: logged %q, want the stack of an unexpected panic only, without its value", progress, abort, logged)
			}
		}
	}
}

func TestWriteDeadlineEndsAWriteThatTheClientDoesNotRead(t *testing.T) {
	errs := make(chan error, 1)
	s := start(t, func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		if err := control.SetWriteDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
			t.Error(err)
		}
		data, err := make([]byte, 64<<10), error(nil)
		for err == nil {
			_, err = w.Write(data)
		}
		if _, again := w.Write(data[:1]); !errors.Is(again, err) {
			t.Errorf("the next write failed with %v, want %v", again, err)
		}
		if again := control.Flush(); !errors.Is(again, err) {
			t.Errorf("the flush failed with %v, want %v", again, err)
		}
		errs <- err
	})
	c := dial(t, s.address)
	c.send(post(""))
	if err := receive(t, "the write ends", errs); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the write failed with %v, want %v", err, os.ErrDeadlineExceeded)
	}
	if got := c.readToEnd(); strings.HasSuffix(got, "0\r\n\r\n") {
		t.Error("the response looks complete")
	}
}

// A write deadline that passes after a response does not affect the next one.
func TestWriteDeadlineHoldsForOneResponse(t *testing.T) {
	s := start(t, func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		switch r.Header.Get("X-Do") {
		case "passed":
			control.SetWriteDeadline(time.Now().Add(-time.Second))
		case "lifted":
			control.SetWriteDeadline(time.Now().Add(-time.Second))
			control.SetWriteDeadline(time.Time{})
		}
		w.Header().Set("Content-Length", "5")
		io.WriteString(w, "hello")
		control.Flush()
		control.SetWriteDeadline(time.Now().Add(-time.Second)) // after everything is sent
	})
	c := dial(t, s.address)
	for _, do := range []string{"", "", "X-Do: lifted\r\n", ""} {
		if got := c.roundTrip(post("", do)); got.Body != "hello" || got.Close {
			t.Errorf("%s: got %+v, want the body hello on an open connection", do, got)
		}
	}
	if got := c.roundTrip(strings.Replace(post("", "X-Do: lifted\r\n"), path, path+"?other=server", 1)); got.Body != "hello" {
		t.Errorf("handed off: got %+v, want the body hello", got)
	}
	c = dial(t, s.address)
	c.send(post("", "X-Do: passed\r\n"))
	if got := c.readToEnd(); got != "" {
		t.Errorf("past the deadline: got %q, want nothing", got)
	}
}

func TestReadDeadlineEndsTheReadOfAStalledBody(t *testing.T) {
	s := start(t, func(w http.ResponseWriter, r *http.Request) {
		if err := http.NewResponseController(w).SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
			t.Error(err)
		}
		if _, err := io.ReadAll(r.Body); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the read failed with %v, want %v", err, os.ErrDeadlineExceeded)
		}
		w.WriteHeader(http.StatusRequestTimeout)
		io.WriteString(w, "too late")
	})
	for _, size := range []int{0, 1, 10 << 10} {
		c := dial(t, s.address)
		request := post(strings.Repeat("x", 20<<10))
		c.send(request[:len(request)-20<<10+size])
		if got := c.mustReadResponse(); got.Body != "too late" || !got.Close {
			t.Errorf("after %d bytes of the body: got %+v, want the response and a closed connection", size, got)
		}
		c.readToEnd()
	}
}

// The client must receive the response instead of a reset, although it is still sending.
func TestResponseBeforeTheBodyIsReadArrivesCompletely(t *testing.T) {
	want := strings.Repeat("too large. ", 4_000)
	s := start(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusRequestEntityTooLarge)
		io.WriteString(w, want)
	})
	for _, size := range []int{1, 100, 10 << 10, 2 << 20} {
		c := dial(t, s.address)
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			io.WriteString(c, post(strings.Repeat("x", size))) // may fail: the server stops reading after a while
		}()
		if got := c.mustReadResponse(); got.Body != want || !strings.HasPrefix(got.Line, "HTTP/1.1 413") || !got.Close {
			t.Errorf("body of %d bytes: got %s, %d bytes, close %t, want 413, %d bytes, true", size, got.Line, len(got.Body), got.Close, len(want))
		}
		c.Close()
		receive(t, "the client has sent", sent)
	}
}
