package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tidwall/gjson"

	"basegate/mockvllm"
)

// upstreamCommand is the argument that makes this program the upstream of the load.
const upstreamCommand = "upstream"

// Paths of the requests of the load.
const (
	completionsPath = "/v1/completions"
	chatPath        = "/v1/chat/completions"
)

// uvicornIdleTimeout is the time after which vLLM's server closes an idle connection.
const uvicornIdleTimeout = 5 * time.Second

// serveUpstream serves a mock vLLM with constant responses until ctx ends. pace is the time between two events of a
// stream.
func serveUpstream(ctx context.Context, f childFlags) error {
	mock := mockvllm.New(mockvllm.Options{Models: []string{model}, ChatTemplate: mockvllm.TemplateChatML, Instant: true, TokenDelay: f.pace, MaxNumSeqs: f.places, FirstDelay: f.delay})
	defer mock.Close()
	server := &http.Server{
		Handler: mock, ReadHeaderTimeout: time.Minute, IdleTimeout: uvicornIdleTimeout,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	if f.pace == 0 && f.delay == 0 {
		server.Handler = newReplayer(mock)
	}
	return serveUntilDone(ctx, f.listen, server)
}

// replayer responds to completions with recorded responses of a mock. It hijacks a connection at its first
// completion and serves the completions that follow on it without net/http, which would use more CPU time than the proxy
// that is measured. Other requests, such as a gateway's probes, and clients that do not keep their connection are served by
// the mock.
type replayer struct {
	mock http.Handler

	mu       sync.Mutex
	recorded map[responseKey][][]byte
}

// responseKey holds what the mock's constant response to a request depends on.
type responseKey struct {
	path          string
	stream, usage bool
	tokens        int64
}

func newReplayer(mock http.Handler) *replayer {
	return &replayer{mock: mock, recorded: map[responseKey][][]byte{}}
}

// ServeHTTP implements http.Handler.
func (p *replayer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost || !isReplayed(r.URL.Path) || !r.ProtoAtLeast(1, 1) || r.Close || r.ContentLength < 0 {
		p.mock.ServeHTTP(w, r)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody)) //nolint:forbidigo // bounded
	if err != nil {
		return // the client sees its connection close
	}
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer conn.Close()
	defer context.AfterFunc(r.Context(), func() { _ = conn.Close() })() // closed either way
	p.serveConn(r.Context(), conn, buffered.Reader, r.URL.Path, body)
}

// serveConn responds to the request of this path and body and to those that follow on the connection. It returns at the
// first completion that is not of known length.
func (p *replayer) serveConn(ctx context.Context, conn net.Conn, from *bufio.Reader, path string, body []byte) {
	for {
		for _, part := range p.response(ctx, path, body) {
			if _, err := conn.Write(part); err != nil {
				return
			}
		}
		for isOther(from) {
			if err := p.serveOther(ctx, conn, from); err != nil {
				return
			}
		}
		var err error
		if path, body, err = readCompletion(from, body[:0]); err != nil {
			return
		}
	}
}

// isReplayed reports whether requests of the path get recorded responses.
func isReplayed(path string) bool { return path == completionsPath || path == chatPath }

// pathOf returns the path of a POST whose first line begins with start, if it gets recorded responses.
func pathOf(start []byte) (path string, ok bool) {
	for _, path := range []string{completionsPath, chatPath} {
		if bytes.HasPrefix(start, []byte("POST "+path+" ")) {
			return path, true
		}
	}
	return "", false
}

// isOther reports whether the next request on a connection gets no recorded response. Every head is longer than what it
// reads of it.
func isOther(from *bufio.Reader) bool {
	start, err := from.Peek(len("POST " + chatPath + " "))
	_, ok := pathOf(start)
	return err == nil && !ok
}

// serveOther lets the mock respond to the next request on a connection.
func (p *replayer) serveOther(ctx context.Context, conn net.Conn, from *bufio.Reader) error {
	r, err := http.ReadRequest(from)
	if err != nil {
		return fmt.Errorf("read a request: %w", err)
	}
	w := httptest.NewRecorder()
	p.mock.ServeHTTP(w, r.WithContext(ctx))
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return fmt.Errorf("read a request: %w", err)
	}
	return w.Result().Write(conn)
}

// response returns the response to a request as the byte slices to write one by one. It asks the mock for it once.
func (p *replayer) response(ctx context.Context, path string, body []byte) [][]byte {
	fields := gjson.GetManyBytes(body, "stream", "max_tokens", "stream_options.include_usage")
	key := responseKey{path: path, stream: fields[0].Bool(), tokens: fields[1].Int(), usage: fields[2].Bool()}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.recorded[key] == nil {
		p.recorded[key] = record(ctx, p.mock, path, body)
	}
	return p.recorded[key]
}

// chunkSize is the most that one write of a stream holds, in bytes: the size of net/http's buffer.
const chunkSize = 4 << 10

// record sends one request to the mock and encodes the response for HTTP/1.1, as net/http would write it.
func record(ctx context.Context, mock http.Handler, path string, body []byte) [][]byte {
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, path, bytes.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	mock.ServeHTTP(w, r)
	contentType := w.Header().Get("Content-Type")
	head := fmt.Appendf(nil, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\n", w.Code, http.StatusText(w.Code), contentType)
	if length := w.Header().Get("Content-Length"); length != "" {
		return [][]byte{fmt.Appendf(head, "Content-Length: %s\r\n\r\n%s", length, w.Body.Bytes())}
	}
	var parts [][]byte
	next := append(head, "Transfer-Encoding: chunked\r\n\r\n"...)
	for chunk := range slices.Chunk(w.Body.Bytes(), chunkSize) {
		parts = append(parts, fmt.Appendf(next, "%x\r\n%s\r\n", len(chunk), chunk))
		next = nil
	}
	return append(parts, []byte("0\r\n\r\n"))
}

var errNotCompletion = errors.New("not a completion of known length")

// maxBody limits a request body, in bytes.
const maxBody = 16 << 20

// readCompletion reads a request for a recorded response, and its body into body. Of the header fields it reads only
// Content-Length.
func readCompletion(from *bufio.Reader, body []byte) (path string, _ []byte, err error) {
	line, err := from.ReadSlice('\n')
	path, ok := pathOf(line)
	if err != nil || !ok {
		return "", nil, errors.Join(err, errNotCompletion)
	}
	length := -1
	for {
		line, err := from.ReadSlice('\n')
		if err != nil {
			return "", nil, fmt.Errorf("read header: %w", err)
		}
		name, value, found := bytes.Cut(bytes.TrimSpace(line), []byte(":"))
		if !found {
			break
		}
		if strings.EqualFold(string(name), "Content-Length") {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return "", nil, fmt.Errorf("read header: %w", err)
			}
		}
	}
	if length < 0 || length > maxBody {
		return "", nil, errNotCompletion
	}
	body = slices.Grow(body, length)[:length]
	if _, err := io.ReadFull(from, body); err != nil {
		return "", nil, fmt.Errorf("read body: %w", err)
	}
	return path, body, nil
}
