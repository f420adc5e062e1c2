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
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidwall/gjson"

	"basegate/mockvllm"
)

// Commands of this program's children.
const (
	upstreamCommand     = "upstream"
	reverseProxyCommand = "reverseproxy"
)

// Paths of the requests of the load.
const (
	completionsPath = "/v1/completions"
	chatPath        = "/v1/chat/completions"
)

// uvicornIdleTimeout is the time after which vLLM's server closes an idle connection.
const uvicornIdleTimeout = 5 * time.Second

// serveReverseProxy serves the proxy that the ratios refer to, a plain httputil.ReverseProxy, until ctx ends. It keeps as
// many idle connections as the gateway does: with net/http's default of two per host the benchmark would measure dialling.
func serveReverseProxy(ctx context.Context, o childOptions) error {
	to := &url.URL{Scheme: "http", Host: o.Target}
	return serveHTTP(ctx, o.Listen, &http.Server{ReadHeaderTimeout: time.Minute, Handler: &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport: &http.Transport{MaxIdleConnsPerHost: 4096, DisableCompression: true},
	}})
}

// serveUpstream serves a mock vLLM with constant responses until ctx ends: recorded ones if they take no time.
func serveUpstream(ctx context.Context, o childOptions) error {
	mock := mockvllm.New(mockvllm.Options{
		Models: []string{model}, ChatTemplate: mockvllm.TemplateChatML, Instant: true, TokenDelay: o.Pace, FirstDelay: o.Delay, MaxNumSeqs: o.Places,
	})
	defer mock.Close()
	if o.Pace == 0 && o.Delay == 0 {
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.Listen)
		if err != nil {
			return fmt.Errorf("listen: %w", err)
		}
		return newReplayer(mock).serve(ctx, listener)
	}
	return serveHTTP(ctx, o.Listen, &http.Server{
		Handler: mock, ReadHeaderTimeout: time.Minute, IdleTimeout: uvicornIdleTimeout,
		BaseContext: func(net.Listener) context.Context { return ctx },
	})
}

// serveHTTP serves on a host:port until ctx ends.
func serveHTTP(ctx context.Context, listen string, server *http.Server) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })() // the process ends either way
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}

// replayer responds to completions with recorded responses of a mock, and lets the mock respond to other requests. It does
// without net/http's server, which would use more CPU time than the proxy that is measured.
type replayer struct {
	mock http.Handler

	mu       sync.Mutex
	recorded map[responseKey][][]byte // what is written, each by one write
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

// serve serves until ctx ends.
func (p *replayer) serve(ctx context.Context, listener net.Listener) error {
	defer context.AfterFunc(ctx, func() { _ = listener.Close() })() // the process ends either way
	var connections sync.WaitGroup
	defer connections.Wait()
	for {
		conn, err := listener.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		connections.Go(func() { p.serveConn(ctx, conn) })
	}
}

// serveConn responds to the requests of a connection until it is idle for too long, or the client closes it.
func (p *replayer) serveConn(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })() // closed either way
	from := bufio.NewReader(conn)
	for {
		if conn.SetReadDeadline(time.Now().Add(uvicornIdleTimeout)) != nil {
			return
		}
		r, err := http.ReadRequest(from)
		if err != nil {
			return
		}
		body, err := io.ReadAll(io.LimitReader(r.Body, maxBody))
		if err != nil {
			return
		}
		for _, part := range p.response(ctx, r, body) {
			if _, err := conn.Write(part); err != nil {
				return
			}
		}
		if r.Close {
			return
		}
	}
}

// maxBody limits a request body, in bytes.
const maxBody = 16 << 20

// response returns the response to a request as the byte slices to write one by one. It asks the mock once for each of those
// that it records.
func (p *replayer) response(ctx context.Context, r *http.Request, body []byte) [][]byte {
	path := r.URL.Path
	if r.Method != http.MethodPost || path != completionsPath && path != chatPath {
		return encode(record(ctx, p.mock, r.Method, path, body))
	}
	fields := gjson.GetManyBytes(body, "stream", "max_tokens", "stream_options.include_usage")
	key := responseKey{path: path, stream: fields[0].Bool(), tokens: fields[1].Int(), usage: fields[2].Bool()}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.recorded[key] == nil {
		p.recorded[key] = encode(record(ctx, p.mock, r.Method, path, body))
	}
	return p.recorded[key]
}

// record sends one request to a handler and returns its response.
func record(ctx context.Context, handler http.Handler, method, path string, body []byte) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(ctx, method, path, bytes.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	handler.ServeHTTP(w, r)
	return w
}

// chunkSize is the most that one write of a stream holds, in bytes: the size of net/http's buffer.
const chunkSize = 4 << 10

// encode encodes a response for HTTP/1.1, as net/http would write it.
func encode(w *httptest.ResponseRecorder) [][]byte {
	contentType := w.Header().Get("Content-Type")
	head := fmt.Appendf(nil, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\n", w.Code, http.StatusText(w.Code), contentType)
	if !strings.HasPrefix(contentType, "text/event-stream") {
		return [][]byte{fmt.Appendf(head, "Content-Length: %d\r\n\r\n%s", w.Body.Len(), w.Body.Bytes())}
	}
	var parts [][]byte
	next := append(head, "Transfer-Encoding: chunked\r\n\r\n"...)
	for chunk := range slices.Chunk(w.Body.Bytes(), chunkSize) {
		parts = append(parts, fmt.Appendf(next, "%x\r\n%s\r\n", len(chunk), chunk))
		next = nil
	}
	return append(parts, []byte("0\r\n\r\n"))
}

// heldUpstream sends an event at intervals on each stream until release, when all streams end. Streams of one token end at
// once. To other requests, such as probes, it responds with an empty 200.
type heldUpstream struct {
	*httptest.Server

	first, rest []byte        // of a recorded stream, the first event and what follows it
	every       time.Duration // between two events of a stream
	release     chan struct{} // closed to end the streams
	open        atomic.Int64  // streams that have begun
}

func newHeldUpstream(ctx context.Context, every time.Duration) *heldUpstream {
	mock := mockvllm.New(mockvllm.Options{Models: []string{model}, Instant: true})
	defer mock.Close()
	u := &heldUpstream{every: every, release: make(chan struct{})}
	body := fmt.Appendf(nil, `{"model": %q, "prompt": "x", "max_tokens": 2, "stream": true, "stream_options": {"include_usage": true}}`, model)
	first, rest, _ := bytes.Cut(record(ctx, mock, http.MethodPost, completionsPath, body).Body.Bytes(), eventEnd)
	u.first, u.rest = slices.Concat(first, eventEnd), rest
	u.Server = httptest.NewServer(http.HandlerFunc(u.serve))
	return u
}

func (u *heldUpstream) close() {
	u.CloseClientConnections()
	u.Close()
}

func (u *heldUpstream) serve(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != completionsPath {
		return
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody))
	if err != nil {
		return
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	if gjson.GetBytes(body, "max_tokens").Int() == 1 {
		_, _ = w.Write(slices.Concat(u.first, u.rest)) // fails only if the proxy disconnected
		return
	}
	next := time.NewTicker(u.every)
	defer next.Stop()
	for sent := 0; ; sent++ {
		if _, err := w.Write(u.first); err != nil || http.NewResponseController(w).Flush() != nil {
			return
		}
		if sent == 0 {
			u.open.Add(1)
		}
		select {
		case <-next.C:
		case <-r.Context().Done():
			return
		case <-u.release:
			_, _ = w.Write(u.rest) // as above
			return
		}
	}
}
