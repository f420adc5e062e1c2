package proxy

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"testing/synctest"
	"time"
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

func (c *slowConn) Close() error { return nil }

func TestUploadHasALeastRate(t *testing.T) {
	for _, c := range []struct {
		name        string
		rate, bytes int
		lasts       time.Duration // how long the upload is read
		fails       bool
	}{
		{"one byte per second", 1, 1 << 20, 2 * uploadWindow, true},
		{"under the rate", minUpload / 21, 16 << 20, 2 * uploadWindow, true},
		{"above the rate", minUpload / 4, 1 << 20, 64 * time.Second, false},
		{"above the rate, but for too long", minUpload / 4, 16 << 20, uploadTimeout, true},
		{"short", 1, 15, 15 * time.Second, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn := &slowConn{ResponseWriter: httptest.NewRecorder(), rate: c.rate, left: c.bytes}
				r := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(nil))
				r.Body = conn
				u := newUpload(&exchange{w: conn, r: r})
				began := time.Now()
				var err error
				for buffer := make([]byte, minUpload); err == nil; {
					_, err = u.Read(buffer)
				}
				if errors.Is(err, io.EOF) {
					err = nil
				}
				if failed := err != nil; failed != c.fails {
					t.Errorf("got error %v, want a failure: %t", err, c.fails)
				}
				if lasted := time.Since(began); lasted != c.lasts {
					t.Errorf("the upload was read for %v, want %v", lasted, c.lasts)
				}
				if u.end(); !conn.deadline.IsZero() {
					t.Error("the read deadline stays set after the upload")
				}
			})
		})
	}
}
