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

// instance is one run of a server process behind a relay.
type instance struct {
	address string
	exit    atomic.Pointer[exitRecord] // set just before the process is killed or stopped
}

// exitRecord says how an instance ended.
type exitRecord struct {
	how    string
	logged map[string]bool // ids of requests whose log lines had been written before
}

const (
	killed  = "killed"
	stopped = "stopped"
)

func (l *instance) recordExit(how string, logged map[string]bool) {
	l.exit.Store(&exitRecord{how, logged})
}

// wasKilled reports whether the instance, which may be nil, has been killed.
func (l *instance) wasKilled() bool {
	if l == nil {
		return false
	}
	end := l.exit.Load()
	return end != nil && end.how == killed
}

// relay is a TCP proxy in front of a server that simulates network faults. It remembers the fault of each connection, so
// that a test can tell whether the fault explains what a client saw.
type relay struct {
	listener   net.Listener
	goroutines sync.WaitGroup

	mu           sync.Mutex
	server       *instance // nil: no server runs, so connections are reset
	conditions   linkConditions
	applyFault   func(*link) // called for every new link; may be nil
	links        map[*link]bool
	linkByClient map[string]*link // by the client's address
	rng          *rand.Rand
	closed       bool
}

// linkConditions are the speed and the fragmentation of all links.
type linkConditions struct {
	latency time.Duration // maximum, of each piece
	rate    int           // bytes a second; 0: unlimited
	slice   int           // maximum bytes of a piece; 0: unlimited
}

// newRelay returns a relay that listens until the test ends.
func newRelay(t *testing.T, rng *rand.Rand) *relay {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	r := &relay{listener: listener, links: map[*link]bool{}, linkByClient: map[string]*link{}, rng: rng}
	r.goroutines.Go(r.accept)
	t.Cleanup(r.close)
	return r
}

func (r *relay) url() string { return "http://" + r.listener.Addr().String() }

// setServer sets the server for new connections; nil means that no server runs.
func (r *relay) setServer(server *instance) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.server = server
}

func (r *relay) accept() {
	for {
		from, err := r.listener.Accept()
		if err != nil {
			return // closed
		}
		r.goroutines.Go(func() { r.handle(from.(*net.TCPConn)) })
	}
}

// handle forwards one client connection until it ends.
func (r *relay) handle(from *net.TCPConn) {
	l := r.addLink(from)
	if l.server == nil {
		l.reset()
		return
	}
	to, err := dialer.Dial("tcp", l.server.address)
	if err != nil || !l.connectServer(to.(*net.TCPConn)) {
		l.reset()
		return
	}
	var directions sync.WaitGroup
	for dir := range l.ends {
		directions.Go(func() { l.copy(dir) })
	}
	directions.Wait()
	l.close(false)
}

// addLink registers a link for a client connection.
func (r *relay) addLink(from *net.TCPConn) *link {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := &link{relay: r, server: r.server, closed: make(chan struct{}), bytesLeft: -1}
	l.ends[clientEnd] = from
	r.links[l], r.linkByClient[from.RemoteAddr().String()] = true, l
	switch {
	case r.closed:
		l.server = nil
	case r.server == nil:
		l.fault = "no server"
	}
	return l
}

// faultOn returns the fault that may have broken the connection from a client's address, or "" if there was none. A link
// keeps its fault when blocking ends, because the delay may have caused a timeout.
func (r *relay) faultOn(address string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.linkByClient[address]
	switch {
	case l == nil:
		return ""
	case l.fault == "" && l.server != nil && l.server.exit.Load() != nil:
		return l.server.exit.Load().how
	default:
		return l.fault
	}
}

// serverBehind returns the server that the connection from a client's address went to, or nil.
func (r *relay) serverBehind(address string) *instance {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.linkByClient[address]; l != nil {
		return l.server
	}
	return nil
}

// close resets every link and waits for the relay's goroutines.
func (r *relay) close() {
	r.listener.Close()
	r.mu.Lock()
	r.closed = true
	var open []*link
	for l := range r.links {
		open = append(open, l)
	}
	r.mu.Unlock()
	for _, l := range open {
		l.reset()
	}
	r.goroutines.Wait()
}

// The ends of a link, and its directions.
const (
	clientEnd, serverEnd = 0, 1
	toServer, toClient   = 0, 1 // indexed by the end that sends
)

// link is a proxied connection.
type link struct {
	relay  *relay
	server *instance     // nil if none ran when the client connected
	closed chan struct{} // closed when the link has ended
	once   sync.Once

	// The relay's lock guards the fields below.
	ends           [2]*net.TCPConn  // by end
	fault          string           // the fault that may have broken the link, or ""
	blocked        [2]chan struct{} // by direction: nothing passes until the channel is closed; nil: not blocked
	bytesLeft      int              // bytes before the link is reset; negative: unlimited
	bytesForwarded int              // both directions together
}

// bufferedBytes is more than the buffers between a server and the relay hold.
const bufferedBytes = 64 << 10

// dialer makes connections with small segments and a small receive window, as on a slow network: the server soon notices
// that nobody reads. On the loopback interface, megabytes would fit into the buffers first.
var dialer = net.Dialer{Timeout: waitTimeout, Control: func(_, _ string, c syscall.RawConn) (err error) {
	failed := c.Control(func(fd uintptr) {
		err = errors.Join(
			syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4<<10),
			syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_MAXSEG, 536),
		)
	})
	return errors.Join(failed, err)
}}

// connectServer sets the server's end of the link; false if the link has ended already.
func (l *link) connectServer(to *net.TCPConn) bool {
	l.relay.mu.Lock()
	defer l.relay.mu.Unlock()
	select {
	case <-l.closed:
		to.Close()
		return false
	default:
	}
	l.ends[serverEnd] = to
	if l.relay.applyFault != nil {
		l.relay.applyFault(l)
	}
	return true
}

// copy forwards one direction until its end, and forwards the end.
func (l *link) copy(dir int) {
	from, to := l.ends[dir], l.ends[1-dir]
	buffer := make([]byte, 16<<10)
	for {
		n, err := from.Read(buffer)
		if !l.forward(dir, to, buffer[:n]) {
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

// forward writes data in pieces as the link's conditions demand; false if the link has ended.
func (l *link) forward(dir int, to *net.TCPConn, data []byte) bool {
	for {
		size, delay := l.nextPiece(len(data))
		if !l.delay(delay) || !l.waitUnblocked(dir) {
			return false
		}
		if size < 0 {
			l.reset()
			return false
		}
		if _, err := to.Write(data[:size]); err != nil {
			l.reset()
			return false
		}
		if data = data[size:]; len(data) == 0 {
			return true
		}
	}
}

// nextPiece returns how many of n bytes go into the next piece and its delay. A negative size means that the link must be
// reset.
func (l *link) nextPiece(n int) (size int, delay time.Duration) {
	l.relay.mu.Lock()
	defer l.relay.mu.Unlock()
	conditions := l.relay.conditions
	if size = n; conditions.slice > 0 && size > 0 {
		size = min(size, 1+l.relay.rng.IntN(conditions.slice))
	}
	if conditions.latency > 0 {
		delay = time.Duration(l.relay.rng.Int64N(int64(conditions.latency)))
	}
	if conditions.rate > 0 {
		delay += time.Duration(size) * time.Second / time.Duration(conditions.rate)
	}
	if l.bytesLeft == 0 {
		return -1, delay
	} else if l.bytesLeft > 0 {
		size = min(size, l.bytesLeft)
		l.bytesLeft -= size
	}
	if l.bytesForwarded += size; delay > 0 && l.bytesForwarded > bufferedBytes && l.fault == "" {
		l.fault = "slow" // either end may time out
	}
	return size, delay
}

// delay waits for d; false if the link has ended.
func (l *link) delay(d time.Duration) bool {
	if d == 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-l.closed:
		return false
	}
}

// waitUnblocked waits until the direction is not blocked; false if the link has ended.
func (l *link) waitUnblocked(dir int) bool {
	l.relay.mu.Lock()
	unblocked := l.blocked[dir]
	l.relay.mu.Unlock()
	if unblocked == nil {
		return true
	}
	select {
	case <-unblocked:
		return true
	case <-l.closed:
		return false
	}
}

// reset ends the link with a reset at both ends.
func (l *link) reset() { l.close(true) }

// close ends the link, with a reset or with a FIN at both ends.
func (l *link) close(abruptly bool) {
	l.once.Do(func() {
		l.relay.mu.Lock()
		defer l.relay.mu.Unlock()
		delete(l.relay.links, l)
		close(l.closed)
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
