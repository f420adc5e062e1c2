//go:build e2e

package e2e_test

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// life is one life of a process behind a relay.
type life struct {
	address string
	death   atomic.Pointer[death] // set just before it comes
}

// death is how a life has ended, and when.
type death struct {
	how string
	at  time.Time
}

const (
	killed  = "killed"
	stopped = "stopped"
)

func (l *life) end(how string) { l.death.Store(&death{how, time.Now()}) }

// relay stands before a server, and does to the connections through it what networks do. Who has connected can ask
// afterwards what became of the connection.
type relay struct {
	listener net.Listener
	all      sync.WaitGroup

	mu     sync.Mutex
	server *life // nil: nobody is there, so who connects is turned away
	now    weather
	strike func(*line) // befalls every new line; nil: nothing does
	lines  map[*line]bool
	last   map[string]*line // by the address of who connected
	luck   *rand.Rand
	closed bool
}

// weather is what all that passes goes through.
type weather struct {
	latency time.Duration // of each piece, at the most
	rate    int           // bytes a second; 0: any
	slice   int           // bytes of a piece, at the most; 0: any
}

// newRelay listens until the test ends.
func newRelay(t *testing.T, luck *rand.Rand) *relay {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	r := &relay{listener: listener, lines: map[*line]bool{}, last: map[string]*line{}, luck: luck}
	r.all.Go(r.accept)
	t.Cleanup(r.close)
	return r
}

func (r *relay) url() string { return "http://" + r.listener.Addr().String() }

// aim says who is behind the relay from now on.
func (r *relay) aim(at *life) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.server = at
}

func (r *relay) accept() {
	for {
		from, err := r.listener.Accept()
		if err != nil {
			return // closed
		}
		r.all.Go(func() { r.carry(from.(*net.TCPConn)) })
	}
}

// carry makes a line of who has connected, and lasts as long as it does.
func (r *relay) carry(from *net.TCPConn) {
	l := r.open(from)
	if l.server == nil {
		l.reset()
		return
	}
	to, err := dialer.Dial("tcp", l.server.address)
	if err != nil || !l.join(to.(*net.TCPConn)) {
		l.reset()
		return
	}
	var ways sync.WaitGroup
	for way := range l.ends {
		ways.Go(func() { l.carry(way) })
	}
	ways.Wait()
	l.end(false)
}

func (r *relay) open(from *net.TCPConn) *line {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := &line{relay: r, server: r.server, over: make(chan struct{}), left: -1}
	l.ends[0] = from
	r.lines[l], r.last[from.RemoteAddr().String()] = true, l
	switch {
	case r.closed:
		l.server = nil
	case r.server == nil:
		l.harm = "nobody was there"
	}
	return l
}

// explanation is why the connection from an address may have broken; empty where it may not. A line that was held
// may break later, since it may have kept somebody waiting for too long.
func (r *relay) explanation(address string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.last[address]
	switch {
	case l == nil:
		return ""
	case l.harm == "" && l.server != nil && l.server.death.Load() != nil:
		return l.server.death.Load().how
	default:
		return l.harm
	}
}

// behind is the life of the server that the connection from an address went to; nil where it went nowhere.
func (r *relay) behind(address string) *life {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.last[address]; l != nil {
		return l.server
	}
	return nil
}

// close breaks every line off and waits until nothing of the relay runs any more.
func (r *relay) close() {
	r.listener.Close()
	r.mu.Lock()
	r.closed = true
	var open []*line
	for l := range r.lines {
		open = append(open, l)
	}
	r.mu.Unlock()
	for _, l := range open {
		l.reset()
	}
	r.all.Wait()
}

// line is a connection through the relay.
type line struct {
	relay  *relay
	server *life         // whose it is; nil: nobody's
	over   chan struct{} // closed when it has ended
	once   sync.Once

	// The relay's lock guards the rest.
	ends [2]*net.TCPConn  // of who connected, and of the server
	harm string           // what has befallen it that may break it
	held [2]chan struct{} // by way, the one to the server first: nothing passes until it is closed; nil: it is free
	left int              // how many bytes pass before it breaks; below 0: any
	came int              // how many bytes have passed
}

// bufferful is more than the buffers between a server and the relay hold, in bytes.
const bufferful = 64 << 10

// dialer makes connections of small packets and a small window, as on a slow network: a server soon feels it when
// nobody reads what it sends. Over the loopback megabytes would go into buffers first.
var dialer = net.Dialer{Timeout: patience, Control: func(_, _ string, c syscall.RawConn) (err error) {
	failed := c.Control(func(fd uintptr) {
		err = errors.Join(
			syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4<<10),
			syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_MAXSEG, 536),
		)
	})
	return errors.Join(failed, err)
}}

// join gives the line its other end, unless it has broken before.
func (l *line) join(to *net.TCPConn) bool {
	l.relay.mu.Lock()
	defer l.relay.mu.Unlock()
	select {
	case <-l.over:
		to.Close()
		return false
	default:
	}
	l.ends[1] = to
	if l.relay.strike != nil {
		l.relay.strike(l)
	}
	return true
}

// carry passes on what comes from one end, and its end.
func (l *line) carry(way int) {
	from, to := l.ends[way], l.ends[1-way]
	buffer := make([]byte, 16<<10)
	for {
		n, err := from.Read(buffer)
		if !l.pass(way, to, buffer[:n]) {
			return
		}
		if errors.Is(err, io.EOF) {
			to.CloseWrite()
			return
		} else if err != nil {
			l.reset()
			return
		}
	}
}

// pass sends on what has come, piece by piece; false when the line has ended meanwhile.
func (l *line) pass(way int, to *net.TCPConn, rest []byte) bool {
	for {
		size, delay := l.next(len(rest))
		if !l.wait(delay) || !l.free(way) {
			return false
		}
		if size < 0 {
			l.reset()
			return false
		}
		if _, err := to.Write(rest[:size]); err != nil {
			l.reset()
			return false
		}
		if rest = rest[size:]; len(rest) == 0 {
			return true
		}
	}
}

// next is how many of n bytes go in one piece, and how long they take; below 0 where the line is to break.
func (l *line) next(n int) (size int, delay time.Duration) {
	l.relay.mu.Lock()
	defer l.relay.mu.Unlock()
	now := l.relay.now
	if size = n; now.slice > 0 && size > 0 {
		size = min(size, 1+l.relay.luck.IntN(now.slice))
	}
	if now.latency > 0 {
		delay = time.Duration(l.relay.luck.Int64N(int64(now.latency)))
	}
	if now.rate > 0 {
		delay += time.Duration(size) * time.Second / time.Duration(now.rate)
	}
	if l.left == 0 {
		return -1, delay
	} else if l.left > 0 {
		size = min(size, l.left)
		l.left -= size
	}
	if l.came += size; delay > 0 && l.came > bufferful && l.harm == "" {
		l.harm = "slow" // somebody may find it too slow to wait for
	}
	return size, delay
}

// wait lets time pass; false when the line has ended meanwhile.
func (l *line) wait(delay time.Duration) bool {
	if delay == 0 {
		return true
	}
	late := time.NewTimer(delay)
	defer late.Stop()
	select {
	case <-late.C:
		return true
	case <-l.over:
		return false
	}
}

// free waits until that way is not held; false when the line has ended meanwhile.
func (l *line) free(way int) bool {
	l.relay.mu.Lock()
	held := l.held[way]
	l.relay.mu.Unlock()
	if held == nil {
		return true
	}
	select {
	case <-held:
		return true
	case <-l.over:
		return false
	}
}

// reset breaks the line off at both ends.
func (l *line) reset() { l.end(true) }

func (l *line) end(abruptly bool) {
	l.once.Do(func() {
		l.relay.mu.Lock()
		defer l.relay.mu.Unlock()
		delete(l.relay.lines, l)
		close(l.over)
		for _, end := range l.ends {
			if end != nil {
				if abruptly {
					end.SetLinger(0)
				}
				end.Close()
			}
		}
	})
}
