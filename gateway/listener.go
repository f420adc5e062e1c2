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
)

// listener is one HTTP server on one address.
type listener struct {
	name    string
	address string
	tls     config.TLS // empty: plain HTTP
	server  *http.Server
	socket  net.Listener
	failed  chan error // the server ended by itself
	ended   chan struct{}
}

// newListener makes a server whose requests end with the context requests.
func newListener(requests context.Context, name, address string, tls config.TLS, readHeaderTimeout time.Duration, handler http.Handler, log *zap.Logger) *listener {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	errorLog, _ := zap.NewStdLogAt(log.Named("http"), zap.DebugLevel) // the only error is an unknown level
	return &listener{
		name: name, address: address, tls: tls,
		server: &http.Server{
			Handler:           handler,
			ReadHeaderTimeout: readHeaderTimeout,
			IdleTimeout:       5 * time.Minute, // of a connection between two requests
			MaxHeaderBytes:    64 << 10,
			Protocols:         protocols,
			ErrorLog:          errorLog,
			BaseContext:       func(net.Listener) context.Context { return requests },
		},
		failed: make(chan error, 1),
		ended:  make(chan struct{}),
	}
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
	var err error
	if l.tls.Cert != "" {
		err = l.server.ServeTLS(l.socket, l.tls.Cert, l.tls.Key)
	} else {
		err = l.server.Serve(l.socket)
	}
	if !errors.Is(err, http.ErrServerClosed) {
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
