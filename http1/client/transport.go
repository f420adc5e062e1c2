// Package upstream is the HTTP/1.1 client that requests go to the backends by: an http.RoundTripper that does all its
// work on the caller's goroutine. net/http's own passes each request and each answer between three, which costs a small
// completion more than everything else that the gateway does with it. What is asked, and what an answer means, is for
// others to say.
package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"
)

// Settings say how long connections may take and last.
type Settings struct {
	ConnectTimeout time.Duration // for the connection, and for the TLS handshake
	IdleTimeout    time.Duration // of an unused connection; it should be under the backend's own
	TLS            *tls.Config   // nil: the system's roots
}

// Transport keeps connections to backends and sends requests over them. It is safe for concurrent use. A request is made
// once: whether one that failed may be made again is for the caller to judge. Bodies must say their length, proxies of the
// environment are not used, and no answer is decompressed.
type Transport struct {
	settings Settings
	dialer   net.Dialer

	mu    sync.Mutex
	idle  map[origin][]*conn // the one used last at the end
	sweep *time.Timer        // closes what has been idle for too long; nil while nothing is idle
}

// origin is what a connection is good for.
type origin struct{ scheme, host string }

var (
	errScheme = errors.New("the scheme is neither http nor https")
	errLength = errors.New("the body does not say its length")
)

// New makes a Transport.
func New(s Settings) *Transport {
	return &Transport{
		settings: s,
		dialer:   net.Dialer{Timeout: s.ConnectTimeout, KeepAlive: 30 * time.Second},
		idle:     map[origin][]*conn{},
	}
}

var chunkedOnly = []string{"chunked"}

// RoundTrip implements http.RoundTripper. When the request's context ends, so does the connection; what failed then fails
// with the context's cause.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		defer req.Body.Close()
	}
	if req.ContentLength < 0 || req.ContentLength == 0 && req.Body != nil && req.Body != http.NoBody {
		return nil, errLength
	}
	c, err := t.connect(req.Context(), req.URL)
	if err != nil {
		return nil, caused(req.Context(), err)
	}
	c.watch(req.Context())
	answer, err := c.ask(req)
	if err != nil {
		c.drop()
		return nil, caused(req.Context(), err)
	}
	b := &body{from: answer.Body, transport: t, conn: c, ctx: req.Context(), last: answer.Close}
	if answer.Body != http.NoBody && slices.Equal(answer.TransferEncoding, chunkedOnly) {
		b.from = &chunked{conn: c}
	}
	answer.Body = b
	return answer, nil
}

// caused is why something failed: the context's end, where it has ended.
func caused(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// connect takes an idle connection, or makes one.
func (t *Transport) connect(ctx context.Context, address *url.URL) (*conn, error) {
	o := origin{address.Scheme, address.Host}
	if c := t.take(o); c != nil {
		return c, nil
	}
	port := address.Port()
	switch {
	case o.scheme != "http" && o.scheme != "https":
		return nil, errScheme
	case port == "":
		port = o.scheme // which is the name of its port
	}
	connected, err := t.dialer.DialContext(ctx, "tcp", net.JoinHostPort(address.Hostname(), port))
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	c := newConn(o, connected)
	if o.scheme == "https" {
		if err := t.secure(ctx, c, address.Hostname()); err != nil {
			connected.Close()
			return nil, fmt.Errorf("TLS handshake: %w", err)
		}
	}
	return c, nil
}

func (t *Transport) secure(ctx context.Context, c *conn, name string) error {
	ctx, cancel := context.WithTimeout(ctx, t.settings.ConnectTimeout)
	defer cancel()
	settings := t.settings.TLS.Clone()
	if settings == nil {
		settings = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if settings.ServerName == "" {
		settings.ServerName = name
	}
	settings.NextProtos = []string{"http/1.1"}
	secured := tls.Client(c.Conn, settings)
	if err := secured.HandshakeContext(ctx); err != nil {
		return err //nolint:wrapcheck // by the caller
	}
	c.Conn = secured
	return nil
}

// take takes the idle connection that was used last and is still open.
func (t *Transport) take(o origin) *conn {
	for {
		c := t.pop(o)
		if c == nil || c.sound() && time.Since(c.since) < t.settings.IdleTimeout {
			return c
		}
		c.Close()
	}
}

func (t *Transport) pop(o origin) *conn {
	t.mu.Lock()
	defer t.mu.Unlock()
	idle := t.idle[o]
	if len(idle) == 0 {
		return nil
	}
	c := idle[len(idle)-1]
	idle[len(idle)-1] = nil
	t.idle[o] = idle[:len(idle)-1]
	return c
}

// keep puts a connection aside for the next request.
func (t *Transport) keep(c *conn) {
	c.since = time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.idle[c.origin] = append(t.idle[c.origin], c)
	if t.sweep == nil {
		t.sweep = time.AfterFunc(t.settings.IdleTimeout, t.closeExpired)
	}
}

// closeExpired closes what has been idle for too long, and comes again as long as anything is idle.
func (t *Transport) closeExpired() {
	t.mu.Lock()
	defer t.mu.Unlock()
	expired := time.Now().Add(-t.settings.IdleTimeout)
	for o, idle := range t.idle {
		fresh := 0
		for fresh < len(idle) && !idle[fresh].since.After(expired) {
			idle[fresh].Close()
			fresh++
		}
		if fresh == len(idle) {
			delete(t.idle, o)
			continue
		}
		t.idle[o] = append(idle[:0:0], idle[fresh:]...)
	}
	if len(t.idle) == 0 {
		t.sweep = nil
		return
	}
	t.sweep.Reset(t.settings.IdleTimeout / 2) //nolint:mnd // twice in a lifetime is soon enough
}

// CloseIdleConnections closes the connections that serve no request.
func (t *Transport) CloseIdleConnections() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, idle := range t.idle {
		for _, c := range idle {
			c.Close()
		}
	}
	clear(t.idle)
	if t.sweep != nil {
		t.sweep.Stop()
		t.sweep = nil
	}
}
