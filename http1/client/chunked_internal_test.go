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

// oneSided is a connection of which only the one side is there.
type oneSided struct {
	net.Conn
	source io.Reader
}

func (s oneSided) Read(p []byte) (int, error) { return s.source.Read(p) }

// read takes the chunks off text, given out by the source as it likes.
func read(source io.Reader, size int) (data []byte, loose bool, err error) {
	c := &chunked{conn: &conn{Conn: oneSided{source: source}}}
	p := make([]byte, size)
	for {
		n, err := c.Read(p)
		data = append(data, p[:n]...)
		if errors.Is(err, io.EOF) {
			left, err := io.ReadAll(source)
			return data, c.conn.loose || len(left) > 0, err
		}
		if err != nil {
			return data, false, err
		}
	}
}

func TestChunks(t *testing.T) {
	for _, c := range []struct {
		name, text, data string
		loose            bool
		fails            error
	}{
		{name: "none", text: "0\r\n\r\n"},
		{name: "one", text: "5\r\nhello\r\n0\r\n\r\n", data: "hello"},
		{name: "several", text: "2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", data: "hello"},
		{name: "line breaks among the data", text: "6\r\n\r\n0\r\n\r\r\n0\r\n\r\n", data: "\r\n0\r\n\r"},
		{name: "hexadecimal", text: "1A\r\n" + strings.Repeat("x", 26) + "\r\n0\r\n\r\n", data: strings.Repeat("x", 26)},
		{name: "padding", text: "5  \r\nhello\r\n0\t\r\n\r\n", data: "hello"},
		{name: "extensions", text: "5;a=b; c\r\nhello\r\n0;\r\n\r\n", data: "hello"},
		{name: "trailers", text: "5\r\nhello\r\n0\r\nA: b\r\nC: d\r\n\r\n", data: "hello"},
		{name: "more behind it", text: "5\r\nhello\r\n0\r\n\r\nHTTP", data: "hello", loose: true},
		{name: "cut in the data", text: "5\r\nhel", data: "hel", fails: io.ErrUnexpectedEOF},
		{name: "cut behind the data", text: "5\r\nhello", data: "hello", fails: io.ErrUnexpectedEOF},
		{name: "cut before the end", text: "5\r\nhello\r\n0\r\n", data: "hello", fails: io.ErrUnexpectedEOF},
		{name: "a trailer that is no header", text: "0\r\nhello\r\n\r\n", fails: errChunk},
		{name: "a trailer without a name", text: "0\r\n: b\r\n\r\n", fails: errChunk},
		{name: "no length", text: "\r\nhello", fails: errChunk},
		{name: "a length that is none", text: "xyz\r\n", fails: errChunk},
		{name: "a length behind a space", text: "5 5\r\nhello", fails: errChunk},
		{name: "a negative length", text: "-5\r\nhello", fails: errChunk},
		{name: "too long", text: "1000000000000000\r\n", fails: errChunk},
		{name: "longer than its length", text: "4\r\nhello\r\n", data: "hell", fails: errChunk},
		{name: "line feeds alone", text: "5\nhello\n0\n\n", fails: errChunk},
		{name: "an endless extension", text: "5;" + strings.Repeat("x", 1<<20), fails: errChunk},
		{name: "endless trailers", text: "0\r\n" + strings.Repeat("A: b\r\n", 1<<20), fails: errChunk},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, size := range []int{1, 3, 16, 4096} {
				for name, source := range map[string]io.Reader{
					"at once": strings.NewReader(c.text), "byte by byte": iotest.OneByteReader(strings.NewReader(c.text)),
					"with its end": iotest.DataErrReader(strings.NewReader(c.text)),
				} {
					data, loose, err := read(source, size)
					if string(data) != c.data || !errors.Is(err, c.fails) || loose && !c.loose {
						t.Errorf("%s, %d at a time: got %q, loose %v, %v", name, size, data, loose, err)
					}
					if c.loose && name == "at once" && !loose {
						t.Errorf("%d at a time: it is taken for clean", size)
					}
				}
			}
		})
	}
}

// FuzzChunked has net/http's reader for a judge: what that takes comes out alike, and what it refuses is refused.
func FuzzChunked(f *testing.F) {
	for _, seed := range []string{
		"0\r\n\r\n", "5\r\nhello\r\n0\r\n\r\n", "5;a=b\r\nhello\r\n0\r\nA: b\r\n\r\n", "5 \r\nhello\r\n0\r\n\r\n", "5\nhello", "fffffffffffffffff\r\n", "00000000000005\r\nhello\r\n0\r\n\r\n",
	} {
		f.Add([]byte(seed), 7)
	}
	f.Fuzz(func(t *testing.T, text []byte, size int) {
		size = 1 + (size&0xffff)%5000
		data, _, err := read(bytes.NewReader(text), size)
		want, failed := io.ReadAll(httputil.NewChunkedReader(bytes.NewReader(text)))
		if err == nil && (failed != nil || !bytes.Equal(data, want)) {
			t.Fatalf("%q: got %q, want %q, %v", text, data, want, failed)
		}
		if err != nil && failed == nil && !bytes.HasPrefix(want, data) {
			t.Fatalf("%q: got %q before %v, want %q", text, data, err, want)
		}
	})
}
