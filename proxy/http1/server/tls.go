package server

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"basegate/proxy/http1/strict"
)

// ServeTLS is like the ServeTLS method of s, whose Protocols must be HTTP/1 and HTTP/2, and checks the heads of HTTP/1
// requests as package strict does. It gets the certificate for each handshake. It returns after all its goroutines have
// ended; the end of ctx ends handshakes.
func ServeTLS(
	ctx context.Context, s *http.Server, listener net.Listener, certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error),
) error {
	ctx, cancel := context.WithCancel(ctx)
	t := tlsServer{Server: s, listener: newHandoffListener(listener), config: &tls.Config{
		GetCertificate: certificate, NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS12,
	}}
	var all sync.WaitGroup
	all.Go(func() {
		t.listener.acceptAll(
			func(c net.Conn) { all.Go(func() { t.handshake(ctx, c) }) },
			func(err error) { logf(s, "http: accept: %v; retrying", err) },
		)
	})
	err := s.Serve(t.listener)
	cancel()
	all.Wait()
	return err
}

// tlsServer hands connections to net/http after their TLS handshake, which says whether they are HTTP/1. Net/http does
// the handshake itself if a connection is a *tls.Conn, but then nothing can check what it reads.
type tlsServer struct {
	*http.Server
	listener *handoffListener
	config   *tls.Config
}

// handshake performs the handshake within ReadHeaderTimeout, as net/http does, and hands the connection off.
func (t *tlsServer) handshake(ctx context.Context, accepted net.Conn) {
	c := tls.Server(accepted, t.config)
	c.SetDeadline(deadlineAfter(t.ReadHeaderTimeout)) //nolint:errcheck // if it fails, so does the handshake
	if err := c.HandshakeContext(ctx); err != nil {
		t.reject(accepted, err)
		return
	}
	c.SetDeadline(time.Time{}) //nolint:errcheck // fails on a closed connection only, which net/http notices
	if state := c.ConnectionState(); state.NegotiatedProtocol != "h2" {
		t.listener.handoff(http1Conn{strict.NewConn(c, nil), state})
		return
	}
	t.listener.handoff(c)
}

// reject closes a connection whose handshake failed. A client that speaks HTTP without TLS gets net/http's response.
func (t *tlsServer) reject(c net.Conn, err error) {
	defer c.Close()
	logf(t.Server, "http: TLS handshake error from %s: %v", c.RemoteAddr(), err)
	var header tls.RecordHeaderError
	if !errors.As(err, &header) || header.Conn == nil {
		return
	}
	switch string(header.RecordHeader[:]) {
	case "GET /", "HEAD ", "POST ", "PUT /", "OPTIO":
		io.WriteString(c, "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n") //nolint:errcheck // best effort
	}
}

// http1Conn is an HTTP/1 connection over TLS.
type http1Conn struct {
	*strict.Conn
	state tls.ConnectionState
}

// ConnectionState makes net/http set the TLS field of requests.
func (c http1Conn) ConnectionState() tls.ConnectionState { return c.state }
