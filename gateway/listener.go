package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"go.uber.org/zap"

	"basegate/config"
	"basegate/http1/server"
	"basegate/proxy"
)

// listener is one HTTP server on one address.
type listener struct {
	name    string
	address string
	server  httpServer
	socket  net.Listener
	failed  chan error // the server ended by itself
	ended   chan struct{}
}

// httpServer is the server of net/http, or the HTTP/1.1 fast path in front of it.
type httpServer interface {
	Serve(socket net.Listener) error
	Shutdown(ctx context.Context) error
	Close() error
}

// overTLS is net/http's server under TLS.
type overTLS struct {
	*http.Server
	config.TLS
}

// Serve implements server.
func (s overTLS) Serve(socket net.Listener) error { return s.ServeTLS(socket, s.Cert, s.Key) }

// newServer makes net/http's server, whose requests end with the context requests.
func newServer(requests context.Context, readHeaderTimeout time.Duration, handler http.Handler, log *zap.Logger) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	errorLog, _ := zap.NewStdLogAt(log.Named("http"), zap.DebugLevel) // the only error is an unknown level
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       5 * time.Minute, // of a connection between two requests
		MaxHeaderBytes:    64 << 10,
		Protocols:         protocols,
		ErrorLog:          errorLog,
		BaseContext:       func(net.Listener) context.Context { return requests },
	}
}

// newPublicServer is over TLS where there is a certificate; without, completions have a server before net/http's.
func newPublicServer(requests context.Context, files config.TLS, standard *http.Server) httpServer {
	if files.Cert != "" {
		return overTLS{standard, files}
	}
	return server.New(requests, proxy.CompletionsPath, standard)
}

func newListener(name, address string, s httpServer) *listener {
	return &listener{name: name, address: address, server: s, failed: make(chan error, 1), ended: make(chan struct{})}
}

func (l *listener) start(ctx context.Context) error {
	socket, err := (&net.ListenConfig{}).Listen(ctx, "tcp", l.address)
	if err != nil {
		return fmt.Errorf("listen on %s (%s): %w", l.address, l.name, err)
	}
	l.socket = socket
	go l.serve()
	return nil
}

func (l *listener) serve() {
	defer close(l.ended)
	if err := l.server.Serve(l.socket); !errors.Is(err, http.ErrServerClosed) {
		l.failed <- fmt.Errorf("serve %s: %w", l.name, err)
	}
}

func (l *listener) addr() net.Addr { return l.socket.Addr() }

// stop closes the socket and waits for the requests under way, or cuts them off when ctx ends.
func (l *listener) stop(ctx context.Context) error {
	err := l.server.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, l.server.Close())
	}
	<-l.ended
	return err
}
