package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"

	"go.uber.org/zap"

	"basegate/gateway/config"
	"basegate/proxy"
	"basegate/proxy/http1/server"
	"basegate/proxy/http1/strict"
)

// listener is one HTTP server on one address. Clients that connect before its start wait.
type listener struct {
	name   string
	socket net.Listener
	server httpServer    // nil before it is built
	ended  chan struct{} // closed when the server has ended; nil before start
}

// httpServer is the server of net/http, or the HTTP/1.1 fast path in front of it.
type httpServer interface {
	Serve(socket net.Listener) error
	Shutdown(ctx context.Context) error
	Close() error
}

// strictServer is net/http's server with strict parsing of request heads.
type strictServer struct{ *http.Server }

func (s strictServer) Serve(socket net.Listener) error {
	return s.Server.Serve(strict.NewListener(socket))
}

// tlsServer is a strictServer with TLS.
type tlsServer struct {
	*http.Server
	certificate *certificate
	baseContext context.Context
}

func (s tlsServer) Serve(socket net.Listener) error {
	return server.ServeTLS(s.baseContext, s.Server, socket, s.certificate.get)
}

// newServer returns a net/http server. The contexts of its requests are derived from baseContext.
func newServer(baseContext context.Context, c config.Server, handler http.Handler, log *zap.Logger) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	errorLog, _ := zap.NewStdLogAt(log.Named("http"), zap.DebugLevel) // the only error is an unknown level
	return &http.Server{
		Handler:           strict.NewHandler(handler),
		ReadHeaderTimeout: c.ReadHeaderTimeout,
		IdleTimeout:       c.IdleTimeout,
		MaxHeaderBytes:    64 << 10,
		Protocols:         protocols,
		ErrorLog:          errorLog,
		BaseContext:       func(net.Listener) context.Context { return baseContext },

		DisableGeneralOptionsHandler: true, // package strict requires it
	}
}

// newPublicServer returns the server of the public listener: with TLS if there is a certificate, and otherwise with the
// fast path for completions and chat completions in front of the standard server, unless it is switched off.
func newPublicServer(baseContext context.Context, fastPath bool, c *certificate, standard *http.Server) httpServer {
	switch {
	case c != nil:
		return tlsServer{standard, c, baseContext}
	case fastPath:
		return server.New(baseContext, []string{proxy.CompletionsPath, proxy.ChatPath}, standard)
	default:
		return strictServer{standard}
	}
}

// start serves connections until stop. If the server ends before, failed is called.
func (l *listener) start(failed func(error)) {
	l.ended = make(chan struct{})
	go func() {
		defer close(l.ended)
		if err := l.server.Serve(l.socket); !errors.Is(err, http.ErrServerClosed) {
			failed(fmt.Errorf("serve %s: %w", l.name, err))
		}
	}()
}

func (l *listener) addr() net.Addr { return l.socket.Addr() }

// stop closes the socket and waits for the requests in flight; when ctx ends it closes their connections.
func (l *listener) stop(ctx context.Context) error {
	err := l.server.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, l.server.Close())
	}
	<-l.ended
	return err
}

// close closes the socket of a listener that was not started.
func (l *listener) close() error {
	if l.ended != nil {
		return nil
	}
	return l.socket.Close()
}
