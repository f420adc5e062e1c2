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
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidwall/gjson"

	"basegate/internal/wait"
	"basegate/mockvllm"
)

// Commands of this program's children.
const (
	upstreamCommand     = "upstream"
	reverseProxyCommand = "reverseproxy"
)

// Paths of the requests of the load.
const (
	completionsPath   = "/v1/completions"
	chatPath          = "/v1/chat/completions"
	loglikelihoodPath = "/v1/loglikelihood"
)

// postsPath tells how many POST requests a replayer has had.
const postsPath = "/bench/posts"

// uvicornIdleTimeout is the time after which vLLM's server closes an idle connection.
const uvicornIdleTimeout = 5 * time.Second

// serveReverseProxy serves the proxy that the ratios refer to, a plain httputil.ReverseProxy, until ctx ends. It keeps as
// many idle connections as the gateway does: with net/http's default of two per host the benchmark would measure dialling.
func serveReverseProxy(ctx context.Context, o childOptions) error {
	to := &url.URL{Scheme: "http", Host: o.Target}
	server := &http.Server{Addr: o.Listen, ReadHeaderTimeout: time.Minute, Handler: &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport: &http.Transport{MaxIdleConnsPerHost: 4096, DisableCompression: true},
	}}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })() // the process ends either way
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}

func serveUpstream(ctx context.Context, o childOptions) error {
	p, err := newReplayer(ctx, o)
	if err != nil {
		return err
	}
	return p.serve(ctx)
}

// replayer responds to completions with recorded responses of a mock, and lets the mock respond to other requests. It does
// without net/http's server, which would use more CPU time than the proxy that is measured.
type replayer struct {
	listener net.Listener
	mock     *mockvllm.Server
	model    *mockvllm.Server // responds where the prompt matters
	options  childOptions
	places   chan struct{} // holds an element for each request that runs; nil: any number run

	// Streams of several tokens are held until release is closed: they repeat their second event. nil: none is held.
	release chan struct{}
	open    atomic.Int64 // held streams that have begun

	posts atomic.Int64 // requests, but for probes

	mu       sync.Mutex
	recorded map[responseKey][][]byte // what is written, each by one write
}

// responseKey holds what the mock's constant response to a request depends on.
type responseKey struct {
	path          string
	stream, usage bool
	tokens        int64
	scored        string // the body, if log-probabilities are asked for: they depend on it
}

func newReplayer(ctx context.Context, o childOptions) (*replayer, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	p := &replayer{
		listener: listener, options: o, recorded: map[responseKey][][]byte{},
		mock:  mockvllm.New(mockvllm.Options{Models: []string{model}, ChatTemplate: mockvllm.TemplateChatML, Instant: true}),
		model: mockvllm.New(mockvllm.Options{Models: []string{model}}),
	}
	if o.Held {
		p.release = make(chan struct{})
	}
	if o.Places > 0 {
		p.places = make(chan struct{}, o.Places)
	}
	return p, nil
}

func (p *replayer) serve(ctx context.Context) error {
	defer p.mock.Close()
	defer p.model.Close()
	defer context.AfterFunc(ctx, func() { _ = p.listener.Close() })() // the process ends either way
	var connections sync.WaitGroup
	defer connections.Wait()
	for {
		conn, err := p.listener.Accept()
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
		if err != nil || !p.respond(ctx, conn, r, body) || r.Close {
			return
		}
	}
}

// maxBody limits a request body, in bytes.
const maxBody = 16 << 20

// respond writes the response to a request. It asks the mock once for each response that it records. It returns false if the
// connection is closed.
func (p *replayer) respond(ctx context.Context, conn net.Conn, r *http.Request, body []byte) bool {
	path := r.URL.Path
	if path == postsPath {
		count := strconv.FormatInt(p.posts.Load(), 10)
		return write(conn, fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(count), count))
	}
	if r.Method == http.MethodPost {
		p.posts.Add(1)
	}
	if r.Method != http.MethodPost || path != completionsPath && path != chatPath {
		return write(conn, p.record(ctx, p.mock, r.Method, path, body)...)
	}
	if p.places != nil {
		p.places <- struct{}{}
		defer func() { <-p.places }()
	}
	fields := gjson.GetManyBytes(body, "stream", "max_tokens", "stream_options.include_usage", "logprobs", "prompt_logprobs")
	key := responseKey{path: path, stream: fields[0].Bool(), tokens: fields[1].Int(), usage: fields[2].Bool()}
	by := p.mock
	if fields[3].Exists() || fields[4].Exists() {
		key.scored, by = string(body), p.model
	}
	p.mu.Lock()
	if p.recorded[key] == nil {
		p.recorded[key] = p.record(ctx, by, r.Method, path, body)
	}
	parts := p.recorded[key]
	p.mu.Unlock()
	if p.release != nil && key.tokens > 1 {
		return p.hold(ctx, conn, parts)
	}
	if p.options.Delay > 0 {
		wait.For(ctx, p.options.Delay)
	}
	for i, part := range parts {
		if p.options.Pace > 0 && 0 < i && i <= int(key.tokens) { // usage and [DONE] follow at once
			wait.For(ctx, p.options.Pace)
		}
		if !write(conn, part) {
			return false
		}
	}
	return true
}

// hold writes the events of a held stream: the first, the second until release, and then the last ones.
func (p *replayer) hold(ctx context.Context, conn net.Conn, parts [][]byte) bool {
	next := time.NewTicker(p.options.Pace)
	defer next.Stop()
	for sent := 0; write(conn, parts[min(sent, 1)]); sent++ {
		if sent == 0 {
			p.open.Add(1)
		}
		select {
		case <-next.C:
		case <-ctx.Done():
			return false
		case <-p.release:
			return write(conn, parts[len(parts)-4:]...) // a finish among them, [DONE], and the end of the body
		}
	}
	return false
}

func write(conn net.Conn, parts ...[]byte) bool {
	for _, part := range parts {
		if _, err := conn.Write(part); err != nil {
			return false
		}
	}
	return true
}

// record asks a mock for the response to a request, and encodes it for HTTP/1.1 as net/http would write it: a stream in
// chunks of the size of its buffer, or of one event if events are sent at intervals.
func (p *replayer) record(ctx context.Context, by *mockvllm.Server, method, path string, body []byte) [][]byte {
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(ctx, method, path, bytes.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	by.ServeHTTP(w, r)
	contentType := w.Header().Get("Content-Type")
	next := fmt.Appendf(nil, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\n", w.Code, http.StatusText(w.Code), contentType)
	if !strings.HasPrefix(contentType, "text/event-stream") {
		return [][]byte{fmt.Appendf(next, "Content-Length: %d\r\n\r\n%s", w.Body.Len(), w.Body.Bytes())}
	}
	next = append(next, "Transfer-Encoding: chunked\r\n\r\n"...)
	chunks := slices.Chunk(w.Body.Bytes(), chunkSize)
	if p.options.Pace > 0 {
		chunks = bytes.SplitAfterSeq(w.Body.Bytes(), eventEnd)
	}
	var parts [][]byte
	for chunk := range chunks {
		if len(chunk) == 0 {
			break // behind the last event
		}
		parts = append(parts, fmt.Appendf(next, "%x\r\n%s\r\n", len(chunk), chunk))
		next = nil
	}
	return append(parts, []byte("0\r\n\r\n"))
}

// chunkSize is the most that one write of a stream holds, in bytes: the size of net/http's buffer.
const chunkSize = 4 << 10
