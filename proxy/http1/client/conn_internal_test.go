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
	"testing/synctest"
	"time"
)

// fakeConn is a connection that reads from Reader and discards what is written.
type fakeConn struct{ io.Reader }

func (fakeConn) Write(p []byte) (int, error)      { return len(p), nil }
func (fakeConn) Close() error                     { return nil }
func (fakeConn) LocalAddr() net.Addr              { return nil }
func (fakeConn) RemoteAddr() net.Addr             { return nil }
func (fakeConn) SetDeadline(time.Time) error      { return nil }
func (fakeConn) SetReadDeadline(time.Time) error  { return nil }
func (fakeConn) SetWriteDeadline(time.Time) error { return nil }

// FuzzResponseHead compares with net/http: any response is parsed, or rejected, as net/http does after at most
// maxInterim heads, and its body is the same.
func FuzzResponseHead(f *testing.F) {
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
		c := newConn(origin{}, fakeConn{bytes.NewReader(text)})
		got, err := c.readHead(req)

		reference := bufio.NewReader(bytes.NewReader(text))
		var want *http.Response
		var wantErr error
		for range maxInterim {
			if want, wantErr = http.ReadResponse(reference, req); wantErr != nil || want.StatusCode >= http.StatusOK {
				break
			}
		}
		if wantErr == nil && want.StatusCode < http.StatusOK {
			wantErr = errInterim
		}
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("%q: got error %v, want %v", text, err, wantErr)
		}
		if err != nil {
			return
		}
		if got.StatusCode != want.StatusCode || !maps.EqualFunc(got.Header, want.Header, slices.Equal) {
			t.Fatalf("%q: got %d %v, want %d %v", text, got.StatusCode, got.Header, want.StatusCode, want.Header)
		}
		body, err := io.ReadAll(got.Body)
		wantBody, wantErr := io.ReadAll(want.Body)
		if !bytes.Equal(body, wantBody) || (err == nil) != (wantErr == nil) {
			t.Fatalf("%q: got body %q, error %v, want %q, %v", text, body, err, wantBody, wantErr)
		}
	})
}

// vLLM closes a connection that has been idle for 5 s.
func TestEachIdleConnectionIsClosedAfterItsTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = 4 * time.Second
		transport := New(Settings{IdleTimeout: timeout})
		origins := []origin{{"http", "one"}, {"http", "two"}, {"http", "one"}}
		idleFor := make([]time.Duration, len(origins))
		for i, o := range origins {
			ours, backend := net.Pipe()
			transport.putIdle(newConn(o, ours))
			since := time.Now()
			go func() {
				_, _ = backend.Read(make([]byte, 1)) // until it is closed
				idleFor[i] = time.Since(since)
			}()
			<-time.After(100 * time.Millisecond)
		}
		<-time.After(2 * timeout)
		synctest.Wait()
		for i, got := range idleFor {
			if got != timeout {
				t.Errorf("connection %d was closed after %v, want %v", i, got, timeout)
			}
		}
		if transport.expiry != nil {
			t.Error("the timer still runs")
		}
		transport.CloseIdleConnections()
	})
}

func TestEndlessHeadIsRejectedAtItsLimit(t *testing.T) {
	source := &countingReader{Reader: io.MultiReader(strings.NewReader("HTTP/1.1 200 OK\r\n"), repeatReader("A: b\r\n"))}
	c := newConn(origin{}, fakeConn{source})
	if _, err := c.readHead(&http.Request{Method: http.MethodPost}); !errors.Is(err, errHead) || source.n > maxHead+readSize {
		t.Errorf("got error %v after %d bytes, want %v after at most %d", err, source.n, errHead, maxHead+readSize)
	}
}

// repeatReader repeats its text without end.
type repeatReader string

func (r repeatReader) Read(p []byte) (n int, _ error) {
	for len(p)-n >= len(r) {
		n += copy(p[n:], r)
	}
	return max(n, copy(p, r)), nil
}

// countingReader counts the bytes read.
type countingReader struct {
	io.Reader
	n int
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += n
	return n, err
}

// FuzzRequestHead checks that no value of a forwarded header field can add a field or a request: the backend parses one
// request with exactly the fields and the body that were sent.
func FuzzRequestHead(f *testing.F) {
	for _, value := range []string{"application/json", "", " ", "a\r\nContent-Length: 0\r\n\r\nGET / HTTP/1.1", "a\nb: c", "\x00", "é", "\xff", "a\tb", strings.Repeat("x", 20_000)} {
		f.Add("00-abc-def-01", value, []byte(`{"model":"m"}`))
	}
	f.Fuzz(func(t *testing.T, parent, value string, body []byte) {
		sent := &bytes.Buffer{}
		header := http.Header{"Traceparent": {parent}, "Accept": {value, "text/event-stream"}, "Content-Type": {"application/json"}}
		c := newConn(origin{}, &recordingConn{Writer: sent})
		req := &http.Request{
			Method: http.MethodPost, URL: &url.URL{Scheme: "http", Host: "backend", Path: "/v1/completions"}, Header: header,
			Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
		}
		if err := c.writeRequest(req); err != nil {
			if !errors.Is(err, errField) || !strings.ContainsFunc(parent+value, isControl) {
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
			t.Fatalf("the backend parses %v and body %q, error %v, want %v and %q; %d bytes are left over", got.Header, text, err, want, body, reader.Buffered())
		}
	})
}

// isControl returns whether a header field's value must not contain r.
func isControl(r rune) bool { return r < ' ' && r != '\t' || r == '\x7f' }

// recordingConn writes to Writer what is sent on it.
type recordingConn struct {
	fakeConn
	io.Writer
}

func (r *recordingConn) Write(p []byte) (int, error) { return r.Writer.Write(p) }
