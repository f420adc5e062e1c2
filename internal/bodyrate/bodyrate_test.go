package bodyrate_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"basegate/internal/bodyrate"
)

// slowConn is the connection of a client that sends a number of bytes each second.
type slowConn struct {
	http.ResponseWriter
	deadline time.Time
	rate     int
	left     int
}

func (c *slowConn) SetReadDeadline(deadline time.Time) error {
	c.deadline = deadline
	return nil
}

func (c *slowConn) Read(p []byte) (int, error) {
	if c.left == 0 {
		return 0, io.EOF
	}
	time.Sleep(min(time.Second, time.Until(c.deadline)))
	if !time.Now().Before(c.deadline) {
		return 0, os.ErrDeadlineExceeded
	}
	n := min(c.rate, c.left, len(p))
	c.left -= n
	return n, nil
}

func TestBodyHasALeastRate(t *testing.T) {
	for _, c := range []struct {
		name        string
		rate, bytes int
		lasts       time.Duration // how long the body is read
		fails       bool
	}{
		{"one byte per second", 1, 1 << 20, 2 * bodyrate.Window, true},
		{"under the rate", bodyrate.MinBytes / 21, 16 << 20, 2 * bodyrate.Window, true},
		{"above the rate", bodyrate.MinBytes / 4, 1 << 20, 64 * time.Second, false},
		{"above the rate, but for too long", bodyrate.MinBytes / 4, 16 << 20, bodyrate.Timeout, true},
		{"short", 1, 15, 15 * time.Second, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn := &slowConn{ResponseWriter: httptest.NewRecorder(), rate: c.rate, left: c.bytes}
				r := bodyrate.New(conn, conn)
				time.Sleep(time.Hour) // a wait for something else
				began := time.Now()
				var err error
				for buffer := make([]byte, bodyrate.MinBytes); err == nil; {
					_, err = r.Read(buffer)
				}
				if errors.Is(err, io.EOF) {
					err = nil
				}
				if failed := err != nil; failed != c.fails {
					t.Errorf("got error %v, want a failure: %t", err, c.fails)
				}
				if lasted := time.Since(began); lasted != c.lasts {
					t.Errorf("the body was read for %v, want %v", lasted, c.lasts)
				}
				if r.End(); !conn.deadline.IsZero() {
					t.Error("the read deadline stays set after the body")
				}
			})
		})
	}
}

// A server that stores what it has read may take its time.
func TestTimeBetweenReadsDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := &slowConn{ResponseWriter: httptest.NewRecorder(), rate: bodyrate.MinBytes, left: 10 * bodyrate.MinBytes}
		r := bodyrate.New(conn, conn)
		buffer := make([]byte, bodyrate.MinBytes)
		for range 10 {
			if _, err := r.Read(buffer); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
		}
	})
}
