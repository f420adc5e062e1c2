package client

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

// scripted is a backend's side of a connection: what it sends is set, and what it gets is thrown away.
type scripted struct{ io.Reader }

func (scripted) Write(p []byte) (int, error)      { return len(p), nil }
func (scripted) Close() error                     { return nil }
func (scripted) LocalAddr() net.Addr              { return nil }
func (scripted) RemoteAddr() net.Addr             { return nil }
func (scripted) SetDeadline(time.Time) error      { return nil }
func (scripted) SetReadDeadline(time.Time) error  { return nil }
func (scripted) SetWriteDeadline(time.Time) error { return nil }

// Whatever a backend sends for a head, it is the one that net/http reads, behind a few interim answers; no more is read
// than a head may have, and the body is neither longer nor another.
func FuzzHead(f *testing.F) {
	for _, text := range []string{
		"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 500 No\r\nConnection: close\r\n\r\nrest", "HTTP/1.0 200\r\n\r\nrest",
		strings.Repeat("HTTP/1.1 102 Wait\r\n\r\n", 9), "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{} ", "HTTP/1.1 204 No Content\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", "HTTP/1.1 200 OK\nA: b\n c\n\n", "HTTP/1.1 99999 OK\r\n\r\n", "garbage\r\n\r\n", "",
	} {
		f.Add([]byte(text))
	}
	address := &url.URL{Scheme: "http", Host: "backend", Path: "/v1/completions"}
	f.Fuzz(func(t *testing.T, text []byte) {
		req := &http.Request{Method: http.MethodPost, URL: address, Header: http.Header{}}
		c := newConn(origin{}, scripted{bytes.NewReader(text)})
		got, err := c.receive(req)

		judge := bufio.NewReader(bytes.NewReader(text))
		var want *http.Response
		var failed error
		for range maxInterim {
			if want, failed = http.ReadResponse(judge, req); failed != nil || want.StatusCode >= http.StatusOK {
				break
			}
		}
		if failed == nil && want.StatusCode < http.StatusOK {
			failed = errInterim
		}
		if (err == nil) != (failed == nil) {
			t.Fatalf("%q: got %v, want %v", text, err, failed)
		}
		if err != nil {
			return
		}
		if got.StatusCode != want.StatusCode || !maps.EqualFunc(got.Header, want.Header, slices.Equal) {
			t.Fatalf("%q: got %d %v, want %d %v", text, got.StatusCode, got.Header, want.StatusCode, want.Header)
		}
		body, err := io.ReadAll(got.Body)
		whole, failed := io.ReadAll(want.Body)
		if !bytes.Equal(body, whole) || (err == nil) != (failed == nil) {
			t.Fatalf("%q: got %q, %v, want %q, %v", text, body, err, whole, failed)
		}
	})
}

// A head without end is not read to its end.
func TestAnEndlessHeadIsRefused(t *testing.T) {
	source := &counted{Reader: io.MultiReader(strings.NewReader("HTTP/1.1 200 OK\r\n"), endless("A: b\r\n"))}
	c := newConn(origin{}, scripted{source})
	if _, err := c.receive(&http.Request{Method: http.MethodPost}); !errors.Is(err, errHead) || source.n > maxHead+readSize {
		t.Errorf("%v after %d bytes", err, source.n)
	}
}

type endless string

func (e endless) Read(p []byte) (n int, _ error) {
	for len(p)-n >= len(e) {
		n += copy(p[n:], e)
	}
	return max(n, copy(p, e)), nil
}

type counted struct {
	io.Reader
	n int
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += n
	return n, err
}

// Whatever a client has put into a header that is passed on, the backend sees one request, and the header as one.
func FuzzRequestHead(f *testing.F) {
	for _, value := range []string{"application/json", "", " ", "a\r\nContent-Length: 0\r\n\r\nGET / HTTP/1.1", "a\nb: c", "\x00", "é", "\xff", "a\tb", strings.Repeat("x", 20_000)} {
		f.Add("00-abc-def-01", value, []byte(`{"model":"m"}`))
	}
	f.Fuzz(func(t *testing.T, parent, value string, body []byte) {
		sent := &bytes.Buffer{}
		header := http.Header{"Traceparent": {parent}, "Accept": {value, "text/event-stream"}, "Content-Type": {"application/json"}}
		c := newConn(origin{}, &recorded{Writer: sent})
		req := &http.Request{
			Method: http.MethodPost, URL: &url.URL{Scheme: "http", Host: "backend", Path: "/v1/completions"}, Header: header,
			Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
		}
		if err := c.send(req); err != nil {
			if !errors.Is(err, errField) || !strings.ContainsFunc(parent+value, control) {
				t.Fatal(err)
			}
			return
		}
		reader := bufio.NewReader(sent)
		got, err := http.ReadRequest(reader)
		if err != nil {
			t.Fatalf("%q %q: %v", parent, value, err)
		}
		trimmed := func(s string) string { return strings.Trim(s, " \t") }
		want := http.Header{"Traceparent": {trimmed(parent)}, "Accept": {trimmed(value), "text/event-stream"}, "Content-Type": {"application/json"}, "Content-Length": got.Header["Content-Length"]}
		text, err := io.ReadAll(got.Body)
		if !maps.EqualFunc(got.Header, want, slices.Equal) || !bytes.Equal(text, body) || err != nil || reader.Buffered() > 0 {
			t.Fatalf("the backend sees %v and %q, %v, want %v and %q; %d bytes are left over", got.Header, text, err, want, body, reader.Buffered())
		}
	})
}

// control tells whether a character has no place in a header.
func control(r rune) bool { return r < ' ' && r != '\t' || r == '\x7f' }

// recorded keeps what is sent.
type recorded struct {
	scripted
	io.Writer
}

func (r *recorded) Write(p []byte) (int, error) { return r.Writer.Write(p) }
