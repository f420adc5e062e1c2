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
	keepAlive = 5 * time.Second        // how long uvicorn keeps an idle connection
	reopen    = 100 * time.Millisecond // between attempts to listen again on a port that somebody has taken
)

// A Process is a Server on a port of its own, with uvicorn's manners.
type Process struct {
	*Server
	door   *door
	http   *http.Server
	served chan error
	stop   context.CancelFunc
	done   chan struct{}
}

// Start listens on an address, such as 127.0.0.1:0, and serves until Close; the context's end does not end it.
func Start(ctx context.Context, listen string, o Options) (*Process, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	p := &Process{Server: New(o), served: make(chan error, 1), stop: stop, done: make(chan struct{})}
	p.door = &door{server: p.Server, address: listener.Addr(), listener: listener, turned: make(chan struct{})}
	p.http = &http.Server{Handler: p.Server, IdleTimeout: keepAlive, ReadHeaderTimeout: time.Minute}
	go func() { p.served <- p.http.Serve(p.door) }()
	go p.supervise(ctx)
	return p, nil
}

// Addr is the address that the process listens on.
func (p *Process) Addr() string { return p.door.address.String() }

// URL is the address as a base URL.
func (p *Process) URL() string { return "http://" + p.Addr() }

// Close ends all requests and connections, frees the port and waits for everything that Start began.
func (p *Process) Close() error {
	p.Server.Close()
	p.stop()
	<-p.done
	err := p.http.Close()
	if served := <-p.served; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

// supervise takes the port down while the process has exited.
func (p *Process) supervise(ctx context.Context) {
	defer close(p.done)
	for ctx.Err() == nil {
		down, left := p.engine.exitedUntil()
		if p.door.turn(ctx, down) != nil {
			left = reopen
		}
		if left < 0 {
			left = time.Hour
		}
		timer := time.NewTimer(left)
		select {
		case <-timer.C:
		case <-p.engine.changed:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// A door is a listener that can be shut, so that connections are refused, and opened again on the same port. While a
// refuse fault is pending it resets connections before anything is read.
type door struct {
	server  *Server
	address net.Addr

	mu       sync.Mutex
	listener net.Listener  // nil while shut
	turned   chan struct{} // closed and replaced at each turn
	closed   bool
}

// turn shuts the door or opens it.
func (d *door) turn(ctx context.Context, shut bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || shut == (d.listener == nil) {
		return nil
	}
	if shut {
		_ = d.listener.Close() // it is dropped, whatever it says
		d.listener = nil
	} else {
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", d.address.String())
		if err != nil {
			return err
		}
		d.listener = listener
	}
	close(d.turned)
	d.turned = make(chan struct{})
	return nil
}

func (d *door) state() (listener net.Listener, turned <-chan struct{}, closed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.listener, d.turned, d.closed
}

// Accept waits for a connection that is let in.
func (d *door) Accept() (net.Conn, error) {
	for {
		listener, turned, closed := d.state()
		if closed {
			return nil, net.ErrClosed
		}
		if listener == nil {
			<-turned
			continue
		}
		conn, err := listener.Accept()
		if err != nil {
			if now, _, closed := d.state(); now == listener || closed {
				return nil, err
			}
			continue
		}
		if d.server.faults.take(anyPath, true) == nil {
			return conn, nil
		}
		resetOrClose(conn, true)
	}
}

// Close shuts the door for good.
func (d *door) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	close(d.turned)
	if d.listener == nil {
		return nil
	}
	return d.listener.Close()
}

// Addr is the same, open or shut.
func (d *door) Addr() net.Addr { return d.address }
