package gateway

import (
	"net"
	"os"
	"sync"
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

// fdLimitListener stops accepting while few file descriptors are free, so that running requests can connect to
// backends and the database can open its files. Clients wait in the kernel's queue meanwhile. netutil.LimitListener counts
// only its own connections, and hides their sockets from package pooled.
type fdLimitListener struct {
	net.Listener
	most   int // file descriptors that may be open
	lowest func() int
	closed chan struct{}
	close  func() error
}

// newFDLimitListener returns a listener that accepts while fewer than most file descriptors are open.
func newFDLimitListener(l net.Listener, most int) *fdLimitListener {
	r := &fdLimitListener{Listener: l, most: most, lowest: lowestFreeDescriptor, closed: make(chan struct{})}
	r.close = sync.OnceValue(func() error {
		close(r.closed)
		return l.Close()
	})
	return r
}

// Accept implements net.Listener. A connection that takes one of the last descriptors is returned only when others are
// free again.
func (r *fdLimitListener) Accept() (net.Conn, error) {
	c, err := r.Listener.Accept()
	if err != nil || r.lowest() < r.most {
		return c, err
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

func (r *fdLimitListener) Close() error { return r.close() }

// lowestFreeDescriptor returns the lowest number that is free, or the limit if none is. The kernel gives out the lowest one,
// so at least as many descriptors are open.
func lowestFreeDescriptor() int {
	fd, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return maxDescriptors()
	}
	unix.Close(fd)
	return fd
}

// maxDescriptors returns the limit of open files.
func maxDescriptors() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return int(^uint32(0) >> 1)
	}
	return int(min(limit.Cur, uint64(^uint32(0)>>1)))
}
