package client

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http/httputil"
	"strings"
	"testing"
	"testing/iotest"
)

// readOnlyConn is a connection that can only be read from.
type readOnlyConn struct {
	net.Conn
	source io.Reader
}

func (c readOnlyConn) Read(p []byte) (int, error) { return c.source.Read(p) }

// decodeAll decodes a chunked body from source with reads of the given size. unexpected is true if bytes followed the
// body.
func decodeAll(source io.Reader, size int) (data []byte, unexpected bool, err error) {
	c := &chunkedReader{conn: &conn{Conn: readOnlyConn{source: source}}}
	p := make([]byte, size)
	for {
		n, err := c.Read(p)
		data = append(data, p[:n]...)
		if errors.Is(err, io.EOF) {
			left, err := io.ReadAll(source)
			return data, c.conn.unexpectedBytes || len(left) > 0, err
		}
		if err != nil {
			return data, false, err
		}
	}
}

func TestChunkedDecoding(t *testing.T) {
	for _, c := range []struct {
		name, text, data string
		unexpected       bool
		wantErr          error
	}{
		{name: "no data", text: "0\r\n\r\n"},
		{name: "one chunk", text: "5\r\nhello\r\n0\r\n\r\n", data: "hello"},
		{name: "several chunks", text: "2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", data: "hello"},
		{name: "line breaks in the data", text: "6\r\n\r\n0\r\n\r\r\n0\r\n\r\n", data: "\r\n0\r\n\r"},
		{name: "hexadecimal length", text: "1A\r\n" + strings.Repeat("x", 26) + "\r\n0\r\n\r\n", data: strings.Repeat("x", 26)},
		{name: "padded length", text: "5  \r\nhello\r\n0\t\r\n\r\n", data: "hello"},
		{name: "extensions", text: "5;a=b; c\r\nhello\r\n0;\r\n\r\n", data: "hello"},
		{name: "trailers", text: "5\r\nhello\r\n0\r\nA: b\r\nC: d\r\n\r\n", data: "hello"},
		{name: "bytes after the body", text: "5\r\nhello\r\n0\r\n\r\nHTTP", data: "hello", unexpected: true},
		{name: "truncated in the data", text: "5\r\nhel", data: "hel", wantErr: io.ErrUnexpectedEOF},
		{name: "truncated after the data", text: "5\r\nhello", data: "hello", wantErr: io.ErrUnexpectedEOF},
		{name: "truncated before the last line", text: "5\r\nhello\r\n0\r\n", data: "hello", wantErr: io.ErrUnexpectedEOF},
		{name: "trailer without a colon", text: "0\r\nhello\r\n\r\n", wantErr: errChunk},
		{name: "trailer without a name", text: "0\r\n: b\r\n\r\n", wantErr: errChunk},
		{name: "empty length", text: "\r\nhello", wantErr: errChunk},
		{name: "length not hexadecimal", text: "xyz\r\n", wantErr: errChunk},
		{name: "digit after padding", text: "5 5\r\nhello", wantErr: errChunk},
		{name: "negative length", text: "-5\r\nhello", wantErr: errChunk},
		{name: "length of too many digits", text: "1000000000000000\r\n", wantErr: errChunk},
		{name: "data longer than its length", text: "4\r\nhello\r\n", data: "hell", wantErr: errChunk},
		{name: "bare line feeds", text: "5\nhello\n0\n\n", wantErr: errChunk},
		{name: "endless extension", text: "5;" + strings.Repeat("x", 1<<20), wantErr: errChunk},
		{name: "endless trailers", text: "0\r\n" + strings.Repeat("A: b\r\n", 1<<20), wantErr: errChunk},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, size := range []int{1, 3, 16, 4096} {
				for name, source := range map[string]io.Reader{
					"in one read": strings.NewReader(c.text), "byte by byte": iotest.OneByteReader(strings.NewReader(c.text)),
					"with EOF": iotest.DataErrReader(strings.NewReader(c.text)),
				} {
					data, unexpected, err := decodeAll(source, size)
					if string(data) != c.data || !errors.Is(err, c.wantErr) || unexpected && !c.unexpected {
						t.Errorf("%s, buffer of %d: got %q, unexpected bytes %t, error %v; want %q, %t, %v",
							name, size, data, unexpected, err, c.data, c.unexpected, c.wantErr)
					}
					if c.unexpected && name == "in one read" && !unexpected {
						t.Errorf("buffer of %d: the bytes after the body are not reported", size)
					}
				}
			}
		})
	}
}

// FuzzChunked compares with net/http's decoder: what this one accepts decodes to the same data, and what that one
// rejects this one rejects too.
func FuzzChunked(f *testing.F) {
	for _, seed := range []string{
		"0\r\n\r\n", "5\r\nhello\r\n0\r\n\r\n", "5;a=b\r\nhello\r\n0\r\nA: b\r\n\r\n", "5 \r\nhello\r\n0\r\n\r\n", "5\nhello", "fffffffffffffffff\r\n", "00000000000005\r\nhello\r\n0\r\n\r\n",
	} {
		f.Add([]byte(seed), 7)
	}
	f.Fuzz(func(t *testing.T, text []byte, size int) {
		size = 1 + (size&0xffff)%5000
		data, _, err := decodeAll(bytes.NewReader(text), size)
		want, wantErr := io.ReadAll(httputil.NewChunkedReader(bytes.NewReader(text)))
		if err == nil && (wantErr != nil || !bytes.Equal(data, want)) {
			t.Fatalf("%q: got %q, want %q, %v", text, data, want, wantErr)
		}
		if err != nil && wantErr == nil && !bytes.HasPrefix(want, data) {
			t.Fatalf("%q: got %q before error %v, want a prefix of %q", text, data, err, want)
		}
	})
}
