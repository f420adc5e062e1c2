package mockvllm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	keepAlive        = 5 * time.Second        // how long uvicorn keeps an idle connection
	relistenInterval = 100 * time.Millisecond // between attempts to listen again on a port that somebody has taken
)

// A Process is a Server on a port of its own, with uvicorn's manners.
type Process struct {
	*Server
	listener *pausableListener
	http     *http.Server
	serveErr chan error
	stop     context.CancelFunc
	done     chan struct{}
}

// Start listens on an address, such as 127.0.0.1:0, and serves until Close; the context's end does not end it.
func Start(ctx context.Context, listen string, o Options) (*Process, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	p := &Process{Server: New(o), serveErr: make(chan error, 1), stop: stop, done: make(chan struct{})}
	p.listener = &pausableListener{server: p.Server, address: listener.Addr(), listener: listener, changed: make(chan struct{})}
	p.http = &http.Server{Handler: p.Server, IdleTimeout: keepAlive, ReadHeaderTimeout: time.Minute}
	go func() { p.serveErr <- p.http.Serve(p.listener) }()
	go p.supervise(ctx)
	return p, nil
}

// Addr is the address that the process listens on.
func (p *Process) Addr() string { return p.listener.address.String() }

// URL is the address as a base URL.
func (p *Process) URL() string { return "http://" + p.Addr() }

// Close ends all requests and connections, frees the port and waits for everything that Start began.
func (p *Process) Close() error {
	p.Server.Close()
	p.stop()
	<-p.done
	err := p.http.Close()
	if serveErr := <-p.serveErr; !errors.Is(serveErr, http.ErrServerClosed) {
		err = errors.Join(err, serveErr)
	}
	return err
}

// supervise takes the port down while the process has exited.
func (p *Process) supervise(ctx context.Context) {
	defer close(p.done)
	for ctx.Err() == nil {
		down, remaining := p.engine.exitState()
		if p.listener.setPaused(ctx, down) != nil {
			remaining = relistenInterval
		}
		if remaining < 0 {
			remaining = time.Hour
		}
		timer := time.NewTimer(remaining)
		select {
		case <-timer.C:
		case <-p.engine.changed:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// A pausableListener is a listener that can be shut, so that connections are refused, and opened again on the same port. While a
// refuse fault is pending it resets connections before anything is read.
type pausableListener struct {
	server  *Server
	address net.Addr

	mu       sync.Mutex
	listener net.Listener  // nil while shut
	changed  chan struct{} // closed and replaced at each turn
	closed   bool
}

// setPaused shuts the door or opens it.
func (l *pausableListener) setPaused(ctx context.Context, paused bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || paused == (l.listener == nil) {
		return nil
	}
	if paused {
		_ = l.listener.Close() // it is dropped, whatever it says
		l.listener = nil
	} else {
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", l.address.String())
		if err != nil {
			return err
		}
		l.listener = listener
	}
	close(l.changed)
	l.changed = make(chan struct{})
	return nil
}

func (l *pausableListener) state() (listener net.Listener, turned <-chan struct{}, closed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.listener, l.changed, l.closed
}

// Accept waits for a connection that is let in.
func (l *pausableListener) Accept() (net.Conn, error) {
	for {
		listener, turned, closed := l.state()
		if closed {
			return nil, net.ErrClosed
		}
		if listener == nil {
			<-turned
			continue
		}
		conn, err := listener.Accept()
		if err != nil {
			if now, _, closed := l.state(); now == listener || closed {
				return nil, err
			}
			continue
		}
		if l.server.faults.consume(anyPath, true) == nil {
			return conn, nil
		}
		resetOrClose(conn, true)
	}
}

// Close shuts the door for good.
func (l *pausableListener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	close(l.changed)
	if l.listener == nil {
		return nil
	}
	return l.listener.Close()
}

// Addr is the same, open or shut.
func (l *pausableListener) Addr() net.Addr { return l.address }
