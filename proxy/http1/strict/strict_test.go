package strict_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"

	"go.uber.org/goleak"

	"basegate/proxy/http1/strict"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// readConn is a connection that reads from Reader.
type readConn struct {
	net.Conn
	io.Reader
}

func (c readConn) Read(p []byte) (int, error) { return c.Reader.Read(p) }

const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// What a connection carries, and the end of the part that is passed on unchanged; the rest is refused.
var streams = []struct{ valid, refused string }{
	{"GET / HTTP/1.1\r\nHost: a\r\n\r\n", ""},
	{"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", ""},
	{"GET / HTTP/1.1", "\nHost: a\r\n\r\n"},
	{"GET / HTTP/1.1\r", "Host: a\r\n\r\n"},
	{"GET / HTTP/1.1\r\n", " Host: a\r\n\r\n"},
	{"GET / HTTP/1.1\r\n", "\tHost: a\r\n\r\n"},
	{"GET / HTTP/1.1\r\n", "\n"},
	{"GET / HTTP/1.1\r\nHost: a\r\nX: b", "\nY: c\r\n\r\n"},
	{"GET / HTTP/1.1\r\nHost: a\r\nX: b\r", "Y: c\r\n\r\n"},
	{"GET / HTTP/1.1\r\nHost: a\r\nX: b\r\n", " c\r\n\r\n"},
	{"GET / HTTP/1.1\r\nHost: a\r\nX: b\r\n\r", "\r\n"},
	{"GET / HTTP/1.1\r\nHost: a\r\nX: b\r\n\r", "X"},
	{"GET / HTTP/1.1\r\nHost: a\r\nX", "\n\r\n"},
	{"GET / HTTP/1.0\r\nHost: a", "\n\r\n"},
	{"GET / HTTP/1.0\r\nHost: a\r\n", " b\r\n\r\n"},
	{"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1", "\n\r\n"},
	{"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n\n\n \rGET / HTTP/1.1\r\nHost: a", "\n\n"},
	{"POST / HTTP/1.1\r\nHost: a\r\ncontent-LENGTH: \t4 \r\n\r\n\n\n \rGET / HTTP/1.1\r\nHost: a", "\n\n"},
	{"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nContent-Length: 4\r\n\r\n\n\n \rGET / HTTP/1.1\r\nHost: a", "\n\n"},
	{"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n\r\n\n\rGET / HTTP/1.1\r\nHost: a\r\n", "\n"},
	{"POST / HTTP/1.1\r\nHost: a\r\nContent-Lengths: 4\r\n\r\nabcd", "\n"},
	{"POST / HTTP/1.1\r\nHost: a\r\nX: Content-Length: 4\r\n\r\nabcd", "\n"},
	{"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5000000000\r\n\r\n\n\n\n", ""},
	{"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999999999\r\n\r\n\n\n\n", ""},
	{"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\n\n\n", ""},
	{"POST / HTTP/1.1\r\nHost: a\r\nTRANSFER-encoding:x\r\nContent-Length: 1\r\n\r\n\n\n\n", ""},
	{"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encodings: chunked\r\n\r\nabcd", "\n"},
	{preface + "\n\n\n", ""},
	{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r", "\r"},
	{"PRI * HTTP/2.0\r\n\r\nSM\r\n", "\n\r\n"},
	{"GET / HTTP/1.1\r\n\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\nx", "\n"},
	{"POST / HTTP/1.1\r\nContent-Length: 24\r\n\r\n" + preface + "x", "\n"},
	{"", ""},
	{"\r\n\n", ""},
}

// net/http would respond to any other expectation than 100-continue without the handler.
func TestUnknownExpectationsAreBlanked(t *testing.T) {
	for value, want := range map[string]string{
		"100-continue": "100-continue", "100-Continue \t": "100-Continue \t", "": "", " ": " ",
		"something-else": "              ", "1": " ", "100-continu": "           ", "100-continue, a": "               ",
		"100-continue x": "              ", "100-continue  \tx y": "                  ", "100-continuex": "             ", "100-continue 100-continue": "                         ",
		"100- continue": "             ", "a, 100-continue": "               ", ":": " ",
	} {
		head := "POST / HTTP/1.1\r\nHost: a\r\nexpect: %s\r\nX: 100-y\r\n\r\n"
		want := fmt.Sprintf(head, want)
		for name, reader := range splits {
			got, err := io.ReadAll(strict.NewConn(readConn{Reader: reader(strings.NewReader(fmt.Sprintf(head, value)))}, nil))
			if string(got) != want || err != nil {
				t.Errorf("Expect: %q, %s, is passed on as %q, error %v, want %q", value, name, got, err, want)
			}
		}
	}
}

// splits deliver a text in pieces.
var splits = map[string]func(io.Reader) io.Reader{
	"at once": func(r io.Reader) io.Reader { return r }, "by single bytes": iotest.OneByteReader, "by halves": iotest.HalfReader,
	"its end with its bytes": iotest.DataErrReader,
}

func TestOnlyStrictHeadsPass(t *testing.T) {
	for _, s := range streams {
		want := s.valid
		if s.refused != "" {
			want += "\x00\r\n\r\n"
		}
		for name, reader := range splits {
			got, err := io.ReadAll(strict.NewConn(readConn{Reader: reader(strings.NewReader(s.valid + s.refused))}, nil))
			rest, passed := strings.CutPrefix(string(got), want)
			if !passed || strings.Trim(rest, "\x00") != "" || err != nil {
				t.Errorf("%q, then %q, %s: got %q, error %v", s.valid, s.refused, name, got, err)
			}
		}
	}
}

// A reader with little room gets the refusal in pieces, and nothing of what was refused.
func TestRefusalIsReadInPieces(t *testing.T) {
	c := strict.NewConn(readConn{Reader: strings.NewReader("GET / HTTP/1.1\nHost: a\r\n\r\n")}, nil)
	got, err := io.ReadAll(iotest.OneByteReader(c))
	if want := "GET / HTTP/1.1\x00\r\n\r\n"; !strings.HasPrefix(string(got), want) || strings.Contains(string(got), "Host") || err != nil {
		t.Errorf("got %q, error %v, want %q and then NULs", got, err, want)
	}
}

// FuzzConn checks that net/http never gets a request whose head has a bare CR or LF or a folded line, however the
// stream is split, and that a stream of strict heads passes unchanged.
func FuzzConn(f *testing.F) {
	for _, s := range streams {
		f.Add([]byte(s.valid+s.refused), uint8(0))
		f.Add([]byte(s.valid+s.refused), uint8(7))
	}
	f.Fuzz(func(t *testing.T, text []byte, size uint8) {
		source := bytes.NewReader(text)
		var pieces io.Reader = source
		if size > 0 {
			pieces = &pieceReader{source, int(size)}
		}
		var passed bytes.Buffer
		reader := bufio.NewReader(io.TeeReader(strict.NewConn(readConn{Reader: pieces}, nil), &passed))
		strictSoFar := true
		for start := 0; ; {
			for b, err := reader.Peek(1); err == nil && (b[0] == '\r' || b[0] == '\n'); b, err = reader.Peek(1) {
				reader.Discard(1)
				start++
			}
			req, err := http.ReadRequest(reader)
			if err != nil {
				break
			}
			head := passed.Bytes()[start : passed.Len()-reader.Buffered()]
			if problem := checkHead(head); problem != "" {
				t.Fatalf("%q: net/http accepts the head %q, which has %s", text, head, problem)
			}
			if len(req.TransferEncoding) > 0 || req.ProtoMajor == 1 && req.ProtoMinor == 0 || req.Method == "PRI" {
				strictSoFar = false // the last request of its connection; what follows may be anything
				break
			}
			if _, err := io.Copy(io.Discard, req.Body); err != nil {
				break
			}
			start = passed.Len() - reader.Buffered()
		}
		io.Copy(io.Discard, reader)
		blanks := bytes.Contains(bytes.ToLower(text), []byte("expect"))
		if strictSoFar && !blanks && !bytes.Contains(text, []byte{0}) && !bytes.Contains(passed.Bytes(), []byte{0}) && !bytes.Equal(passed.Bytes(), text) {
			t.Fatalf("%q is passed on as %q", text, passed.Bytes())
		}
	})
}

// checkHead returns what makes a head not strict.
func checkHead(head []byte) string {
	text, terminated := strings.CutSuffix(string(head), "\r\n\r\n")
	if !terminated {
		return "no empty line"
	}
	for i, line := range strings.Split(text, "\r\n") {
		switch {
		case strings.ContainsAny(line, "\r\n"):
			return "a bare CR or LF"
		case i > 0 && (strings.HasPrefix(line, " ") || strings.HasPrefix(line, "\t")):
			return "a folded line"
		}
	}
	return ""
}

// pieceReader reads at most size bytes at a time.
type pieceReader struct {
	source io.Reader
	size   int
}

func (r *pieceReader) Read(p []byte) (int, error) { return r.source.Read(p[:min(len(p), r.size)]) }

// serve serves the handler on a connection in memory, and returns what the server sends in response to text. The client
// ends its side after the text, or waits if open is set.
func serve(t *testing.T, handler http.HandlerFunc, text string, open bool) string {
	t.Helper()
	accepted, client := net.Pipe()
	received := readConn{accepted, strings.NewReader(text)}
	if open {
		received.Reader = io.MultiReader(received.Reader, accepted)
	}
	listener := &singleListener{conns: make(chan net.Conn, 1), closed: make(chan struct{})}
	listener.conns <- received
	server := &http.Server{Handler: strict.NewHandler(handler), DisableGeneralOptionsHandler: true}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(strict.NewListener(listener)) }()
	got, err := io.ReadAll(client)
	if err != nil {
		t.Errorf("read response: %v", err)
	}
	server.Close()
	<-ended
	return string(got)
}

// singleListener accepts one connection.
type singleListener struct {
	net.Listener
	conns  chan net.Conn
	closed chan struct{}
}

func (l *singleListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *singleListener) Close() error {
	close(l.closed)
	return nil
}

// A request that is in flight when a malformed one arrives behind it is not cancelled.
func TestRefusalDoesNotCancelTheRequestBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := serve(t, func(_ http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			synctest.Wait() // net/http has read on, to detect that the client disconnects
			if string(body) != "hello" || err != nil || r.Context().Err() != nil {
				t.Errorf("got body %q, error %v, context %v, want hello and no errors", body, err, r.Context().Err())
			}
		}, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhelloGET / HTTP/1.1\nHost: a\r\n\r\n"+strings.Repeat("x", 10_000), true)
		if !strings.HasPrefix(got, "HTTP/1.1 200 OK\r\n") || strings.Count(got, "HTTP/1.1") != 2 || !strings.Contains(got, "HTTP/1.1 400 ") {
			t.Errorf("got %q, want status 200, then 400", got)
		}
	})
}

// A second request could hide in the body of the first one if a proxy in front used the other of its two lengths.
func TestRequestOfAmbiguousLengthIsTheLastOfItsConnection(t *testing.T) {
	hidden := "GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n"
	for _, request := range []string{
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + hidden,
		"POST / HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n" + hidden,
		"OPTIONS * HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + hidden,
	} {
		got := serve(t, func(_ http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			if r.URL.Path == "/hidden" {
				t.Errorf("%q: the hidden request was served", request)
			}
		}, request, true)
		if strings.Count(got, "HTTP/1.") != 1 || !strings.Contains(got, "Connection: close\r\n") {
			t.Errorf("%q: got %q, want one response with Connection: close", request, got)
		}
	}
}

func TestMalformedChunksAreRecognizable(t *testing.T) {
	head := "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
	for body, want := range map[string]error{
		"hello\r\n":                          strict.ErrChunks,
		"5\r\nhello":                         io.ErrUnexpectedEOF,
		"5\r\nhello\r\n":                     io.ErrUnexpectedEOF,
		"5\r\nhello\r\n0\r\n\r\n":            nil,
		"5\r\nhello\r\n0\r\nX: y\r\n\r\n":    nil,
		"5\r\nhelloX\r\n0\r\n\r\n":           strict.ErrChunks,
		"5\nhello\r\n0\r\n\r\n":              strict.ErrChunks,
		"5\r\nhello\r\nx\r\n":                strict.ErrChunks,
		"5\r\nhello\r\n-1\r\n":               strict.ErrChunks,
		"fffffffffffffffff\r\n":              strict.ErrChunks,
		strings.Repeat("f", 5000):            strict.ErrChunks,
		"5\r\nhello\r\n0\r\nX y\r\n\r\n":     strict.ErrChunks,
		"5\r\nhello\r\n0\r\nX: \x00\r\n\r\n": strict.ErrChunks,
	} {
		var got error
		serve(t, func(_ http.ResponseWriter, r *http.Request) { _, got = io.ReadAll(r.Body) }, head+body, false)
		if !errors.Is(got, want) {
			t.Errorf("%q: got error %v, want %v", body, got, want)
		}
	}
}

// repeatedReader reads the same request again and again.
type repeatedReader string

func (r repeatedReader) Read(p []byte) (int, error) { return copy(p, r), nil }

func BenchmarkConn(b *testing.B) {
	for name, body := range map[string]int{"small body": 200, "large body": 3500} {
		b.Run(name, func(b *testing.B) {
			request := "POST /v1/completions HTTP/1.1\r\nHost: gateway:8080\r\nAuthorization: Bearer acs-bm-0123456789012345678901234567890123456789012\r\n" +
				"User-Agent: OpenAI/Python 1.99.1\r\nAccept: application/json\r\nContent-Type: application/json\r\nAccept-Encoding: gzip, deflate\r\n" +
				"X-Stainless-Lang: python\r\nX-Stainless-Package-Version: 1.99.1\r\nX-Stainless-OS: Linux\r\nX-Stainless-Arch: x64\r\n" +
				"X-Stainless-Runtime: CPython\r\nX-Stainless-Runtime-Version: 3.12.3\r\nX-Stainless-Async: async:asyncio\r\n" +
				fmt.Sprintf("Content-Length: %d\r\n\r\n", body) + strings.Repeat("x", body)
			c := strict.NewConn(readConn{Reader: repeatedReader(request)}, nil)
			buffer := make([]byte, len(request))
			b.SetBytes(int64(len(request)))
			b.ReportAllocs()
			for b.Loop() {
				if n, err := c.Read(buffer); n != len(request) || err != nil || buffer[0] != 'P' {
					b.Fatalf("got %d bytes, error %v", n, err)
				}
			}
		})
	}
}
