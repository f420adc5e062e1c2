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

// What a handler gives up is not to look whole. The log says where another panic was, and not its value, which may hold a
// prompt.
func TestAPanicCutsTheConnection(t *testing.T) {
	core, logs := observer.New(zap.DebugLevel)
	s := serve(t, listen(t), &http.Server{ErrorLog: zap.NewStdLog(zap.New(core)), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Begin") != "" {
			io.WriteString(w, "begun")
			http.NewResponseController(w).Flush()
		} else if r.Header.Get("X-Write") != "" {
			io.WriteString(w, "begun")
		}
		if r.Header.Get("X-Abort") != "" {
			panic(http.ErrAbortHandler)
		}
		panic("a secret")
	})})
	for _, begin := range []string{"", "X-Write: yes\r\n", "X-Begin: yes\r\n"} {
		for _, abort := range []string{"X-Abort: yes\r\n", ""} {
			c := dial(t, s.address)
			c.say(post("", begin, abort))
			got, err := c.hear()
			if err == nil || strings.Contains(begin, "Begin") != (got.Body == "begun") {
				t.Errorf("%s%s: got %+v, %v", begin, abort, got, err)
			}
			var logged string
			for _, entry := range logs.TakeAll() {
				logged += entry.Message
			}
			if (abort == "") != strings.Contains(logged, "cut_test.go") || strings.Contains(logged, "secret") {
				t.Errorf("%s%s: logged %q", begin, abort, logged)
			}
		}
	}
}

func TestAClientThatDoesNotReadEndsTheWrite(t *testing.T) {
	errs := make(chan error, 1)
	s := start(t, func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		if err := control.SetWriteDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
			t.Error(err)
		}
		some, err := make([]byte, 64<<10), error(nil)
		for err == nil {
			_, err = w.Write(some)
		}
		if _, again := w.Write(some[:1]); !errors.Is(again, err) {
			t.Errorf("then %v", again)
		}
		if again := control.Flush(); !errors.Is(again, err) {
			t.Errorf("at last %v", again)
		}
		errs <- err
	})
	c := dial(t, s.address)
	c.say(post(""))
	if err := wait(t, "the write ends", errs); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if got := c.heard(); strings.HasSuffix(got, "0\r\n\r\n") {
		t.Error("it looks whole")
	}
}

// A deadline that has passed behind one answer is not the next one's.
func TestADeadlineForWritesHoldsForOneAnswer(t *testing.T) {
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
		control.SetWriteDeadline(time.Now().Add(-time.Second)) // when all is out
	})
	c := dial(t, s.address)
	for _, do := range []string{"", "", "X-Do: lifted\r\n", ""} {
		if got := c.ask(post("", do)); got.Body != "hello" || got.Close {
			t.Errorf("%s: got %+v", do, got)
		}
	}
	if got := c.ask(strings.Replace(post("", "X-Do: lifted\r\n"), path, path+"?other=server", 1)); got.Body != "hello" {
		t.Errorf("given over: got %+v", got)
	}
	c = dial(t, s.address)
	c.say(post("", "X-Do: passed\r\n"))
	if got := c.heard(); got != "" {
		t.Errorf("got %q", got)
	}
}

func TestABodyThatStallsEndsTheRead(t *testing.T) {
	s := start(t, func(w http.ResponseWriter, r *http.Request) {
		if err := http.NewResponseController(w).SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
			t.Error(err)
		}
		if _, err := io.ReadAll(r.Body); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		w.WriteHeader(http.StatusRequestTimeout)
		io.WriteString(w, "too late")
	})
	for _, size := range []int{0, 1, 10 << 10} {
		c := dial(t, s.address)
		request := post(strings.Repeat("x", 20<<10))
		c.say(request[:len(request)-20<<10+size])
		if got := c.mustHear(); got.Body != "too late" || !got.Close {
			t.Errorf("%d bytes: got %+v", size, got)
		}
		c.heard()
	}
}

// The client is to see why it was refused, and not a reset.
func TestAnAnswerBeforeTheBodyArrivesWhole(t *testing.T) {
	want := strings.Repeat("no! ", 10_000)
	s := start(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusRequestEntityTooLarge)
		io.WriteString(w, want)
	})
	for _, size := range []int{1, 100, 10 << 10, 2 << 20} {
		c := dial(t, s.address)
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			io.WriteString(c, post(strings.Repeat("x", size))) // may fail: nobody reads on for ever
		}()
		if got := c.mustHear(); got.Body != want || !strings.HasPrefix(got.Line, "HTTP/1.1 413") || !got.Close {
			t.Errorf("%d bytes: got %s, %d bytes, close %t", size, got.Line, len(got.Body), got.Close)
		}
		c.Close()
		wait(t, "the client has sent", sent)
	}
}
