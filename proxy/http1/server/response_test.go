package server_test

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestResponseIsChunkedUnlessItsLengthIsSet(t *testing.T) {
	s := start(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Length") != "" {
			w.Header().Set("Content-Length", "5")
		}
		w.WriteHeader(http.StatusTeapot)
		io.WriteString(w, "")
		io.WriteString(w, "hel")
		io.WriteString(w, "lo")
	})
	for fields, want := range map[string]string{
		"X-Length: yes\r\n": "Content-Length: 5\r\n",
		"":                  "Transfer-Encoding: chunked\r\n",
	} {
		c := dial(t, s.address)
		c.send(post("", fields, "Connection: close\r\n"))
		got := c.readToEnd()
		head, _, _ := strings.Cut(got, "\r\n\r\n")
		if !strings.HasPrefix(got, "HTTP/1.1 418 I'm a teapot\r\n") || !strings.Contains(head+"\r\n", want) || !strings.Contains(head, "\r\nDate: ") {
			t.Errorf("got %q, want status 418 with %q and a Date", got, want)
		}
		c = dial(t, s.address)
		for range 2 {
			if got := c.roundTrip(post("", fields)); got.Body != "hello" {
				t.Errorf("got %+v, want the body hello", got)
			}
		}
	}
}

func TestResponseOfAHandlerThatWritesNothingIsEmpty(t *testing.T) {
	s := startBoth(t, func(w http.ResponseWriter, r *http.Request) {
		if status, err := strconv.Atoi(r.Header.Get("X-Status")); err == nil {
			w.WriteHeader(status)
		}
	})
	s.compare(t, step{post(""), 1}, step{post("", "X-Status: 500\r\n"), 1}, step{post("", "X-Status: 200\r\n"), 1})
}

// Neither a second WriteHeader nor a later change of the header has an effect.
func TestHeadIsWrittenOnce(t *testing.T) {
	s := startBoth(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header()["X-Many"] = []string{"b", "a", "b"}
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(http.StatusAccepted)
		w.Header().Set("X-Late", "yes")
		w.WriteHeader(http.StatusBadRequest)
		io.WriteString(w, "hello")
		w.Header().Set("X-Later", "yes")
	})
	s.compare(t, step{post(""), 1}, step{post(""), 1})
}

func TestFlushSendsBeforeTheHandlerReturns(t *testing.T) {
	received := make(chan struct{})
	s := start(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Length") != "" {
			w.Header().Set("Content-Length", "6")
		}
		for _, b := range []byte("events") {
			w.Write([]byte{b})
			if err := http.NewResponseController(w).Flush(); err != nil {
				t.Error(err)
			}
			<-received
		}
	})
	for _, fields := range []string{"", "X-Length: yes\r\n"} {
		c := dial(t, s.address)
		c.send(post("", fields))
		got, err := http.ReadResponse(c.reader, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []byte("events") {
			var one [1]byte
			if _, err := io.ReadFull(got.Body, one[:]); err != nil || one[0] != want {
				t.Fatalf("got %q, error %v, want %q", one, err, want)
			}
			received <- struct{}{}
		}
		if rest, err := io.ReadAll(got.Body); err != nil || len(rest) > 0 {
			t.Errorf("after the last flush: got %q, error %v, want the end of the body", rest, err)
		}
	}
}

// The sizes are around that of a buffer: no byte is lost or comes from another response.
func TestResponsesOfAnySizeAreComplete(t *testing.T) {
	all := make([]byte, 5<<20)
	rand.Read(all)
	s := start(t, func(w http.ResponseWriter, r *http.Request) {
		size, _ := strconv.Atoi(r.Header.Get("X-Size"))
		piece, _ := strconv.Atoi(r.Header.Get("X-Piece"))
		if r.Header.Get("X-Length") != "" {
			w.Header().Set("Content-Length", strconv.Itoa(size))
		}
		for p := range slices.Chunk(all[:size], piece) {
			if n, err := w.Write(p); n != len(p) || err != nil {
				t.Errorf("Write returned %d of %d, error %v", n, len(p), err)
			}
		}
	})
	for _, length := range []string{"", "X-Length: yes\r\n"} {
		for _, size := range []int{1, 3900, 4000, 4090, 4096, 4100, 100 << 10, 5 << 20} {
			for _, piece := range []int{1, 7, 1000, 3890, 4083, 4084, 4085, 4086, 4091, 4096, 5000, 100 << 10, 5 << 20} {
				if size/piece > 3_000 || piece > 2*size {
					continue
				}
				c := dial(t, s.address)
				for range 2 {
					got := c.roundTrip(post("", length, fmt.Sprintf("X-Size: %d\r\nX-Piece: %d\r\n", size, piece)))
					if got.Body != string(all[:size]) {
						t.Errorf("%q, %d bytes in writes of %d: got %d bytes that differ from those written", length, size, piece, len(got.Body))
					}
				}
				c.Close()
			}
		}
	}
}

func TestHeadLargerThanABufferIsComplete(t *testing.T) {
	s := startBoth(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		for i := range 300 {
			w.Header().Set(fmt.Sprintf("X-%d", i), strings.Repeat("y", 100))
		}
		io.WriteString(w, strings.Repeat("z", 10_000))
		http.NewResponseController(w).Flush()
		io.WriteString(w, "end")
	})
	s.compare(t, step{post(""), 1}, step{post(""), 1})
}

func TestBodyMustHaveTheLengthOfContentLength(t *testing.T) {
	s := start(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "5")
		switch r.Header.Get("X-Do") {
		case "more":
			if n, err := io.WriteString(w, "hello!"); n != 0 || !errors.Is(err, http.ErrContentLength) {
				t.Errorf("writing too much at once returned %d, %v, want 0, %v", n, err, http.ErrContentLength)
			}
			io.WriteString(w, "hello")
			if n, err := io.WriteString(w, "!"); n != 0 || !errors.Is(err, http.ErrContentLength) {
				t.Errorf("writing one byte too many returned %d, %v, want 0, %v", n, err, http.ErrContentLength)
			}
		case "less":
			io.WriteString(w, "hell")
		case "head":
			w.WriteHeader(http.StatusOK)
		}
	})
	c := dial(t, s.address)
	if got := c.roundTrip(post("", "X-Do: more\r\n")); got.Body != "hello" {
		t.Errorf("got %+v, want the body hello", got)
	}
	for _, do := range []string{"less", "head"} {
		c := dial(t, s.address)
		c.send(post("", "X-Do: "+do+"\r\n"))
		if got, err := c.readResponse(); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: got %+v, error %v, want %v", do, got, err, io.ErrUnexpectedEOF)
		}
	}
}

// The response must not look complete: the handler has declared a length and written nothing.
func TestDeclaredLengthWithoutABodyIsAnIncompleteResponse(t *testing.T) {
	s := startBoth(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "5") })
	s.compare(t, step{post(""), 1})
}

func TestLineBreaksInAFieldValueAddNoField(t *testing.T) {
	s := start(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["X-Test"] = []string{"a\r\nX-Evil: 1", "b\nX-Evil: 2", "c\rX-Evil: 3", "d\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"}
	})
	c := dial(t, s.address)
	for range 2 {
		if got := c.roundTrip(post("")); got.Header.Get("X-Evil") != "" || len(got.Header["X-Test"]) != 4 {
			t.Errorf("got %+v, want four X-Test fields and no X-Evil", got)
		}
	}
}

// Like net/http, the server leaves out fields with an invalid name.
func TestInvalidFieldNamesAreLeftOut(t *testing.T) {
	s := start(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["X-Test: a\r\nX-Evil"] = []string{"1"}
		w.Header()[""] = []string{"2"}
	})
	c := dial(t, s.address)
	c.send(post("", "Connection: close\r\n"))
	if got := c.readToEnd(); strings.Contains(got, "Evil") || strings.Contains(got, "\r\n: ") {
		t.Errorf("got %q, want neither field", got)
	}
}

// A response with both Transfer-Encoding and Content-Length is ambiguous.
func TestHandlerCannotSetTransferEncodingBesideALength(t *testing.T) {
	for _, encoding := range []string{"chunked", "identity"} {
		s := start(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Transfer-Encoding", encoding)
			w.Header().Set("Content-Length", "5")
			io.WriteString(w, "hello")
		})
		c := dial(t, s.address)
		c.send(post("", "Connection: close\r\n"))
		if got := c.readToEnd(); strings.Contains(got, "Transfer-Encoding:") && strings.Contains(got, "Content-Length:") {
			t.Errorf("got %q, want only one of Transfer-Encoding and Content-Length", got)
		}
	}
}

func TestHandlerCanCloseTheConnection(t *testing.T) {
	s := startBoth(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", r.Header.Get("X-Connection"))
		w.Header().Set("Content-Type", "text/plain")
		io.WriteString(w, "hello")
	})
	for _, connection := range []string{"close", "keep-alive"} {
		s.compare(t, step{post("", "X-Connection: "+connection+"\r\n"), 1})
		s.compare(t, step{post("", "X-Connection: "+connection+"\r\n", "Connection: close\r\n"), 1})
	}
}
