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

func TestAnAnswerKeepsItsLengthAndIsInChunksOtherwise(t *testing.T) {
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
		c.say(post("", fields, "Connection: close\r\n"))
		got := c.heard()
		head, _, _ := strings.Cut(got, "\r\n\r\n")
		if !strings.HasPrefix(got, "HTTP/1.1 418 I'm a teapot\r\n") || !strings.Contains(head+"\r\n", want) || !strings.Contains(head, "\r\nDate: ") {
			t.Errorf("got %q, want %q", got, want)
		}
		c = dial(t, s.address)
		for range 2 {
			if got := c.ask(post("", fields)); got.Body != "hello" {
				t.Errorf("got %+v", got)
			}
		}
	}
}

func TestAHandlerThatSaysNothingHasAnEmptyAnswer(t *testing.T) {
	p := startPair(t, func(w http.ResponseWriter, r *http.Request) {
		if status, err := strconv.Atoi(r.Header.Get("X-Status")); err == nil {
			w.WriteHeader(status)
		}
	})
	p.compare(t, said{post(""), 1}, said{post("", "X-Status: 500\r\n"), 1}, said{post("", "X-Status: 200\r\n"), 1})
}

// The first word on the status and the headers is the last.
func TestAHeadIsWrittenOnce(t *testing.T) {
	p := startPair(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header()["X-Many"] = []string{"b", "a", "b"}
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(http.StatusAccepted)
		w.Header().Set("X-Late", "yes")
		w.WriteHeader(http.StatusBadRequest)
		io.WriteString(w, "hello")
		w.Header().Set("X-Later", "yes")
	})
	p.compare(t, said{post(""), 1}, said{post(""), 1})
}

func TestWhatIsFlushedArrivesBeforeTheHandlerEnds(t *testing.T) {
	arrived := make(chan struct{})
	s := start(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Length") != "" {
			w.Header().Set("Content-Length", "6")
		}
		for _, b := range []byte("events") {
			w.Write([]byte{b})
			if err := http.NewResponseController(w).Flush(); err != nil {
				t.Error(err)
			}
			<-arrived
		}
	})
	for _, fields := range []string{"", "X-Length: yes\r\n"} {
		c := dial(t, s.address)
		c.say(post("", fields))
		got, err := http.ReadResponse(c.reader, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []byte("events") {
			var one [1]byte
			if _, err := io.ReadFull(got.Body, one[:]); err != nil || one[0] != want {
				t.Fatalf("got %q, %v", one, err)
			}
			arrived <- struct{}{}
		}
		if rest, err := io.ReadAll(got.Body); err != nil || len(rest) > 0 {
			t.Errorf("got %q, %v", rest, err)
		}
	}
}

// An answer is whole however it is written, and no buffer of one is in another.
func TestLargeAnswersArriveWhole(t *testing.T) {
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
				t.Errorf("wrote %d of %d, %v", n, len(p), err)
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
					got := c.ask(post("", length, fmt.Sprintf("X-Size: %d\r\nX-Piece: %d\r\n", size, piece)))
					if got.Body != string(all[:size]) {
						t.Errorf("%q %d in pieces of %d: %d came", length, size, piece, len(got.Body))
					}
				}
				c.Close()
			}
		}
	}
}

// A head that has no room in a buffer is whole too.
func TestManyHeadersArriveWhole(t *testing.T) {
	p := startPair(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		for i := range 300 {
			w.Header().Set(fmt.Sprintf("X-%d", i), strings.Repeat("y", 100))
		}
		io.WriteString(w, strings.Repeat("z", 10_000))
		http.NewResponseController(w).Flush()
		io.WriteString(w, "end")
	})
	p.compare(t, said{post(""), 1}, said{post(""), 1})
}

func TestAnAnswerIsNeitherLongerNorShorterThanItsLength(t *testing.T) {
	s := start(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "5")
		switch r.Header.Get("X-Do") {
		case "more":
			if n, err := io.WriteString(w, "hello!"); n != 0 || !errors.Is(err, http.ErrContentLength) {
				t.Errorf("wrote %d, %v", n, err)
			}
			io.WriteString(w, "hello")
			if n, err := io.WriteString(w, "!"); n != 0 || !errors.Is(err, http.ErrContentLength) {
				t.Errorf("wrote %d, %v", n, err)
			}
		case "less":
			io.WriteString(w, "hell")
		case "head":
			w.WriteHeader(http.StatusOK)
		}
	})
	c := dial(t, s.address)
	if got := c.ask(post("", "X-Do: more\r\n")); got.Body != "hello" {
		t.Errorf("got %+v", got)
	}
	for _, do := range []string{"less", "head"} {
		c := dial(t, s.address)
		c.say(post("", "X-Do: "+do+"\r\n"))
		if got, err := c.hear(); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: got %+v, %v", do, got, err)
		}
	}
}

// A handler that has promised a length, and then writes nothing, has not answered: it must not look as if it had.
func TestAnAnswerOfALengthIsNotEmptyBecauseNothingWasWritten(t *testing.T) {
	p := startPair(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "5") })
	p.compare(t, said{post(""), 1})
}

func TestAHeadersValueCannotBringAnother(t *testing.T) {
	s := start(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["X-Test"] = []string{"a\r\nX-Evil: 1", "b\nX-Evil: 2", "c\rX-Evil: 3", "d\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"}
	})
	c := dial(t, s.address)
	for range 2 {
		if got := c.ask(post("")); got.Header.Get("X-Evil") != "" || len(got.Header["X-Test"]) != 4 {
			t.Errorf("got %+v", got)
		}
	}
}

// net/http leaves out what is no name.
func TestAHeadersNameCannotBringAnother(t *testing.T) {
	s := start(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["X-Test: a\r\nX-Evil"] = []string{"1"}
		w.Header()[""] = []string{"2"}
	})
	c := dial(t, s.address)
	c.say(post("", "Connection: close\r\n"))
	if got := c.heard(); strings.Contains(got, "Evil") || strings.Contains(got, "\r\n: ") {
		t.Errorf("got %q", got)
	}
}

// Two ways to say where an answer ends are one too many.
func TestAHandlersOwnEncodingDoesNotStandBesideALength(t *testing.T) {
	for _, encoding := range []string{"chunked", "identity"} {
		s := start(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Transfer-Encoding", encoding)
			w.Header().Set("Content-Length", "5")
			io.WriteString(w, "hello")
		})
		c := dial(t, s.address)
		c.say(post("", "Connection: close\r\n"))
		if got := c.heard(); strings.Contains(got, "Transfer-Encoding:") && strings.Contains(got, "Content-Length:") {
			t.Errorf("got %q", got)
		}
	}
}

func TestAHandlerCanEndTheConnection(t *testing.T) {
	p := startPair(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", r.Header.Get("X-Connection"))
		w.Header().Set("Content-Type", "text/plain")
		io.WriteString(w, "hello")
	})
	for _, connection := range []string{"close", "keep-alive"} {
		p.compare(t, said{post("", "X-Connection: "+connection+"\r\n"), 1})
		p.compare(t, said{post("", "X-Connection: "+connection+"\r\n", "Connection: close\r\n"), 1})
	}
}
