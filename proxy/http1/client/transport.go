// Package client is an HTTP/1.1 client for requests to backends: an http.RoundTripper that pools connections and does
// all its work on the caller's goroutine. net/http's transport passes each request and each response between three
// goroutines, which costs a small completion more than everything else that the gateway does with it.
//
// It sends each request at most once, reuses a connection only after a complete response with nothing behind it, and
// never quotes a response in an error. Retries, and what a response means, are left to the caller.
package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Settings configures a Transport.
type Settings struct {
	ConnectTimeout time.Duration // limits the TCP connect and the TLS handshake, each
	IdleTimeout    time.Duration // closes an unused connection; must be shorter than the backend's own
	TLS            *tls.Config   // nil: the system's roots
}

// Transport is an http.RoundTripper that pools connections to backends. It is safe for concurrent use. It never
// retries a request, ignores the proxies of the environment and decompresses nothing. Request bodies must have a
// known length. A request with Close set has a new connection to itself.
type Transport struct {
	settings Settings
	dialer   net.Dialer

	mu     sync.Mutex
	idle   map[origin][]*conn // most recently used last
	expiry *time.Timer        // runs closeExpired; nil while no connection is idle
}

// origin identifies the server that a connection can be used for.
type origin struct{ scheme, host string }

var (
	errScheme = errors.New("the scheme is neither http nor https")
	errLength = errors.New("the request body has no known length")
)

// New returns a Transport.
func New(s Settings) *Transport {
	return &Transport{
		settings: s,
		dialer:   net.Dialer{Timeout: s.ConnectTimeout, KeepAlive: 30 * time.Second},
		idle:     map[origin][]*conn{},
	}
}

var chunkedOnly = []string{"chunked"}

// RoundTrip implements http.RoundTripper, and no longer reads the request's body when it returns. The end of the request's
// context breaks the connection; what fails after that returns the context's cause.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		defer req.Body.Close()
	}
	if req.ContentLength < 0 || req.ContentLength == 0 && req.Body != nil && req.Body != http.NoBody {
		return nil, errLength
	}
	c, err := t.connect(req)
	if err != nil {
		return nil, contextCause(req.Context(), err)
	}
	c.watchContext(req.Context())
	response, err := c.roundTrip(req)
	if err != nil {
		c.discard()
		return nil, contextCause(req.Context(), err)
	}
	b := &body{reader: response.Body, transport: t, conn: c, ctx: req.Context(), connClose: response.Close || req.Close}
	if response.Body != http.NoBody && slices.Equal(response.TransferEncoding, chunkedOnly) {
		b.reader = &chunkedReader{conn: c}
	}
	response.Body = b
	return response, nil
}

// contextCause returns the cause of ctx if it has ended, and err otherwise.
func contextCause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func (t *Transport) connect(req *http.Request) (*conn, error) {
	ctx, address := req.Context(), req.URL
	o := origin{address.Scheme, address.Host}
	if !req.Close {
		if c := t.getIdle(o); c != nil {
			return c, nil
		}
	}
	port := address.Port()
	switch {
	case o.scheme != "http" && o.scheme != "https":
		return nil, errScheme
	case port == "":
		port = o.scheme // also the service name of its port
	}
	connected, err := t.dialer.DialContext(ctx, "tcp", net.JoinHostPort(address.Hostname(), port))
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	c := newConn(o, connected)
	if o.scheme == "https" {
		if err := t.handshake(ctx, c, address.Hostname()); err != nil {
			connected.Close()
			return nil, fmt.Errorf("TLS handshake: %w", err)
		}
	}
	return c, nil
}

func (t *Transport) handshake(ctx context.Context, c *conn, serverName string) error {
	ctx, cancel := context.WithTimeout(ctx, t.settings.ConnectTimeout)
	defer cancel()
	settings := t.settings.TLS.Clone()
	if settings == nil {
		settings = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if settings.ServerName == "" {
		settings.ServerName = serverName
	}
	settings.NextProtos = []string{"http/1.1"}
	c.records = &recordConn{Conn: c.Conn}
	secured := tls.Client(c.records, settings)
	if err := secured.HandshakeContext(ctx); err != nil {
		return err
	}
	c.Conn = secured
	return nil
}

// getIdle takes the most recently used idle connection out of the pool, or returns nil. It closes those that are not usable.
func (t *Transport) getIdle(o origin) *conn {
	for {
		c := t.popIdle(o)
		if c == nil || c.usable() && time.Since(c.idleSince) < t.settings.IdleTimeout {
			return c
		}
		c.Close()
	}
}

func (t *Transport) popIdle(o origin) *conn {
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

func (t *Transport) putIdle(c *conn) {
	c.idleSince = time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.idle[c.origin] = append(t.idle[c.origin], c)
	if t.expiry == nil {
		t.expiry = time.AfterFunc(t.settings.IdleTimeout, t.closeExpired)
	}
}

// closeExpired closes the connections that have been idle for IdleTimeout, and reschedules itself for the next one that will have.
func (t *Transport) closeExpired() {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	expired, oldest := now.Add(-t.settings.IdleTimeout), now
	for o, idle := range t.idle {
		closed := 0
		for closed < len(idle) && !idle[closed].idleSince.After(expired) {
			idle[closed].Close()
			closed++
		}
		if closed == len(idle) {
			delete(t.idle, o)
			continue
		}
		t.idle[o] = slices.Delete(idle, 0, closed)
		if since := idle[0].idleSince; since.Before(oldest) {
			oldest = since
		}
	}
	if len(t.idle) == 0 {
		t.expiry = nil
		return
	}
	t.expiry.Reset(oldest.Sub(expired))
}

// CloseIdleConnections closes the connections that carry no request.
func (t *Transport) CloseIdleConnections() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, idle := range t.idle {
		for _, c := range idle {
			c.Close()
		}
	}
	clear(t.idle)
	if t.expiry != nil {
		t.expiry.Stop()
		t.expiry = nil
	}
}
