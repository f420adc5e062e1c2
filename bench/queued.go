package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"time"
)

// queuedRequests is how many requests queue for the one slot of their key; queueTimeout limits the wait until all are
// queued.
const (
	queuedRequests = 10_000
	queueTimeout   = 30 * time.Second
)

// queuedMemory is the resident memory that the gateway uses for idle connections, and for the requests that queue on
// them in addition, in bytes.
type queuedMemory struct {
	connections, requests int64
}

// String returns the memory as a sentence.
func (m queuedMemory) String() string {
	return fmt.Sprintf("%d queued requests of 1 KB: %.0f MB of memory, on connections that take %.0f MB idle",
		queuedRequests, float64(m.requests)/1e6, float64(m.connections)/1e6)
}

var errNotQueued = errors.New("not all requests are queued")

// measureQueued queues requests behind one that the backend never responds to.
func measureQueued(ctx context.Context, p programs) (m *queuedMemory, err error) {
	backend := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			io.Copy(io.Discard, r.Body) //nolint:errcheck // net/http notices a client disconnect only after the body is read
			<-r.Context().Done()
		}
	}))
	defer backend.Close()
	b, err := newTestbed(p)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	b.upstream = backend.Listener.Addr().String()
	g, admin, err := b.startGateway(ctx, 1)
	if err != nil {
		return nil, err
	}
	before, err := g.process.residentMemory()
	if err != nil {
		return nil, err
	}
	connections := make([]net.Conn, queuedRequests)
	for i := range connections {
		if connections[i], err = usedConn(ctx, g.address); err != nil {
			return nil, err
		}
		defer connections[i].Close() // all of them when the function returns
	}
	idle, err := g.process.residentMemory()
	if err != nil {
		return nil, err
	}
	request := g.request(completionsPath, fmt.Appendf(nil, `{"model": %q, "prompt": %q}`, model, strings.Repeat("word ", 200)))
	for _, conn := range connections {
		if _, err := conn.Write(request); err != nil {
			return nil, fmt.Errorf("send: %w", err)
		}
	}
	if err := awaitMetric(ctx, admin+"/metrics", "basegate_admission_waiting_requests "+strconv.Itoa(queuedRequests-1)); err != nil {
		return nil, err
	}
	after, err := g.process.residentMemory()
	if err != nil {
		return nil, err
	}
	return &queuedMemory{idle - before, after - idle}, nil
}

// usedConn returns a connection that has served a request.
func usedConn(ctx context.Context, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	if _, err := io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: bench\r\n\r\n"); err != nil {
		return conn, fmt.Errorf("send: %w", err)
	}
	if _, err := conn.Read(make([]byte, 4096)); err != nil {
		return conn, fmt.Errorf("read: %w", err)
	}
	return conn, nil
}

// awaitMetric waits until the metrics contain the line.
func awaitMetric(ctx context.Context, url, line string) error {
	ctx, cancel := context.WithTimeout(ctx, queueTimeout)
	defer cancel()
	client := &http.Client{Timeout: queueTimeout}
	defer client.CloseIdleConnections()
	poll := time.NewTicker(100 * time.Millisecond)
	defer poll.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return fmt.Errorf("read metrics: %w", err)
		}
		resp, err := client.Do(req)
		if err != nil {
			return fmt.Errorf("read metrics: %w", err)
		}
		text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20)) //nolint:forbidigo // bounded
		resp.Body.Close()
		if err == nil && strings.Contains(string(text), "\n"+line+"\n") {
			return nil
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: no %q", errNotQueued, line)
		}
	}
}
