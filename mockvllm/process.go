package mockvllm

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"basegate/internal/wait"
)

const (
	keepAlive        = 5 * time.Second        // uvicorn's idle timeout of a connection
	relistenInterval = 100 * time.Millisecond // between attempts to listen again if the port is taken
)

// Process is a Server that listens on a port, with uvicorn's timeouts.
type Process struct {
	*Server
	address net.Addr
	http    *http.Server
	stop    context.CancelFunc
	done    chan struct{}
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
	p := &Process{Server: New(o), address: listener.Addr(), stop: stop, done: make(chan struct{})}
	p.http = &http.Server{Handler: p.Server, IdleTimeout: keepAlive, ReadHeaderTimeout: time.Minute}
	go p.serve(ctx, listener)
	return p, nil
}

// Addr returns the address that the process listens on, as host:port.
func (p *Process) Addr() string { return p.address.String() }

// URL returns the base URL.
func (p *Process) URL() string { return "http://" + p.Addr() }

// Close ends all requests and connections, frees the port and waits for the goroutines of Start.
func (p *Process) Close() error {
	p.Server.Close()
	p.stop()
	<-p.done
	return p.http.Close()
}

// serve serves until ctx ends. While the simulated process has exited the port is closed, so that the kernel refuses
// connections.
func (p *Process) serve(ctx context.Context, listener net.Listener) {
	defer close(p.done)
	for ctx.Err() == nil {
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			p.await(ctx, true)
			_ = listener.Close() // it is dropped, whatever the error
		}()
		_ = p.http.Serve(listener) // ends when the listener is closed
		<-closed
		p.await(ctx, false)
		for ctx.Err() == nil {
			var err error
			if listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", p.Addr()); err == nil {
				break
			}
			wait.For(ctx, relistenInterval)
		}
	}
	if listener != nil {
		_ = listener.Close() // it may be closed already
	}
}

// await waits until the simulated process has exited, or runs, or ctx ends.
func (p *Process) await(ctx context.Context, exited bool) {
	for ctx.Err() == nil && p.engine.hasExited() != exited {
		select {
		case <-p.engine.changed:
		case <-ctx.Done():
		}
	}
}
