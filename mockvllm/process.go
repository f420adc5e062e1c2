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
	keepAlive        = 5 * time.Second        // uvicorn's idle timeout of a connection
	relistenInterval = 100 * time.Millisecond // between attempts to listen again if the port is taken
)

// Process is a Server that listens on a port, with uvicorn's timeouts.
type Process struct {
	*Server
	listener *pausableListener
	http     *http.Server
	serveErr chan error
	stop     context.CancelFunc
	done     chan struct{}
}

// Start listens on an address, such as 127.0.0.1:0, and serves until Close. The end of ctx does not stop it.
func Start(ctx context.Context, listen string, o Options) (*Process, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
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

// Addr returns the address that the process listens on, as host:port.
func (p *Process) Addr() string { return p.listener.address.String() }

// URL returns the base URL.
func (p *Process) URL() string { return "http://" + p.Addr() }

// Close ends all requests and connections, frees the port and waits for the goroutines of Start.
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

// supervise closes the port while the simulated process has exited.
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

// pausableListener is a net.Listener that can stop listening, so that the kernel refuses connections, and listen
// again on the same port. While a refuse fault is pending it resets accepted connections before it reads anything.
type pausableListener struct {
	server  *Server
	address net.Addr

	mu       sync.Mutex
	listener net.Listener  // nil while paused
	changed  chan struct{} // closed and replaced at each change of listener
	closed   bool
}

// setPaused stops listening or starts again.
func (l *pausableListener) setPaused(ctx context.Context, paused bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || paused == (l.listener == nil) {
		return nil
	}
	if paused {
		_ = l.listener.Close() // it is dropped, whatever the error
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

func (l *pausableListener) state() (listener net.Listener, changed <-chan struct{}, closed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.listener, l.changed, l.closed
}

// Accept waits for a connection that no refuse fault resets.
func (l *pausableListener) Accept() (net.Conn, error) {
	for {
		listener, changed, closed := l.state()
		if closed {
			return nil, net.ErrClosed
		}
		if listener == nil {
			<-changed
			continue
		}
		conn, err := listener.Accept()
		if err != nil {
			if current, _, closed := l.state(); current == listener || closed {
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

// Close closes the listener permanently.
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

// Addr returns the address, which is the same while paused.
func (l *pausableListener) Addr() net.Addr { return l.address }
