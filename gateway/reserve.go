package gateway

import (
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// publicReserve is how many file descriptors the public listener leaves, for connections to backends and the files
	// of the database; at most half of all.
	publicReserve = 1024
	// adminReserve is what the admin listener leaves; it accepts while the public listener does not.
	adminReserve = 16
	// reservePoll is how often a listener looks whether enough file descriptors are free again.
	reservePoll = 20 * time.Millisecond
)

// reservingListener stops accepting while few file descriptors are free, so that running requests can connect to
// backends and the database can open its files. Clients wait in the kernel's queue meanwhile.
type reservingListener struct {
	net.Listener
	most   int // file descriptors that may be open
	lowest func() int
	closed chan struct{}
	close  func() error
}

// newReservingListener returns a listener that accepts while fewer than most file descriptors are open.
func newReservingListener(l net.Listener, most int) *reservingListener {
	r := &reservingListener{Listener: l, most: most, lowest: lowestFreeDescriptor, closed: make(chan struct{})}
	r.close = sync.OnceValue(func() error {
		close(r.closed)
		return l.Close() //nolint:wrapcheck // net's own
	})
	return r
}

// Accept implements net.Listener. A connection that takes one of the last descriptors is returned only when others are
// free again.
func (r *reservingListener) Accept() (net.Conn, error) {
	c, err := r.Listener.Accept()
	if err != nil || descriptor(c) < r.most {
		return c, err //nolint:wrapcheck // net's own
	}
	tick := time.NewTicker(reservePoll)
	defer tick.Stop()
	for r.lowest() >= r.most {
		select {
		case <-tick.C:
		case <-r.closed:
			c.Close()
			return nil, net.ErrClosed
		}
	}
	return c, nil
}

// Close implements net.Listener.
func (r *reservingListener) Close() error { return r.close() }

// descriptor returns the file descriptor of a connection, or -1 if it has none. The kernel gives out the lowest number
// that is free, so at least as many descriptors are open.
func descriptor(c net.Conn) int {
	fd := -1
	if s, ok := c.(syscall.Conn); ok {
		if raw, err := s.SyscallConn(); err == nil {
			raw.Control(func(f uintptr) { fd = int(f) }) //nolint:errcheck // the connection is open
		}
	}
	return fd
}

// lowestFreeDescriptor returns the lowest number that is free, or one above all of them if none is.
func lowestFreeDescriptor() int {
	f, err := os.Open(os.DevNull)
	if err != nil {
		return maxDescriptors()
	}
	defer f.Close()
	return int(f.Fd())
}

// maxDescriptors returns the limit of open files.
func maxDescriptors() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return int(^uint32(0) >> 1)
	}
	return int(min(limit.Cur, uint64(^uint32(0)>>1)))
}
