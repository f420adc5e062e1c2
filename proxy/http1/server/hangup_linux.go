package server

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// hangupWatcher detects clients that hang up: one goroutine waits on a separate epoll for the hang-ups of all
// connections, and for no other events.
type hangupWatcher struct {
	descriptor int // of the epoll
	epoll      *os.File
	running    sync.WaitGroup
	closed     atomic.Bool

	mu      sync.Mutex
	cancels map[uint64]func() // by watch id
	lastID  uint64
}

// newHangupWatcher starts a watcher. It calls failed if the watcher stops other than by close.
func newHangupWatcher(failed func(error)) (*hangupWatcher, error) {
	descriptor, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watch for hang-ups: %w", os.NewSyscallError("epoll_create1", err))
	}
	if err := unix.SetNonblock(descriptor, true); err != nil { // so that Go's runtime poller waits for it, as for a socket
		unix.Close(descriptor)
		return nil, fmt.Errorf("watch for hang-ups: %w", os.NewSyscallError("fcntl", err))
	}
	w := &hangupWatcher{descriptor: descriptor, epoll: os.NewFile(uintptr(descriptor), "hang-ups"), cancels: map[uint64]func(){}}
	raw, err := w.epoll.SyscallConn()
	if err != nil {
		w.epoll.Close()
		return nil, fmt.Errorf("watch for hang-ups: %w", err)
	}
	w.running.Go(func() {
		if err := w.run(raw); !w.closed.Load() {
			failed(fmt.Errorf("watch for hang-ups: %w", err))
		}
	})
	return w, nil
}

// run calls the cancel functions of connections that hang up, until the watcher is closed.
func (w *hangupWatcher) run(raw syscall.RawConn) error {
	events := make([]unix.EpollEvent, 128)
	return raw.Read(func(descriptor uintptr) bool {
		for {
			n, err := unix.EpollWait(int(descriptor), events, 0)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if n <= 0 {
				return false // the runtime poller waits for the epoll
			}
			for _, e := range events[:n] {
				w.cancel(joinID(e.Fd, e.Pad))
			}
		}
	})
}

// cancel calls the cancel function of a watch, unless the watch has been removed.
func (w *hangupWatcher) cancel(id uint64) {
	w.mu.Lock()
	cancel := w.cancels[id]
	w.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}

// watch calls cancel when the client closes the connection or only its sending side, which net/http takes for a
// disconnect too. An id is never reused, so that a late event of a closed connection cannot cancel another one, which
// may have got the same descriptor.
func (w *hangupWatcher) watch(c syscall.RawConn, cancel func()) (id uint64, err error) {
	w.mu.Lock()
	w.lastID++
	id = w.lastID
	w.cancels[id] = cancel
	w.mu.Unlock()
	event := unix.EpollEvent{Events: unix.EPOLLRDHUP | unix.EPOLLET}
	event.Fd, event.Pad = splitID(id)
	if err = w.control(c, unix.EPOLL_CTL_ADD, &event); err != nil {
		w.remove(id)
		return 0, err
	}
	return id, nil
}

// unwatch ends the watch of a connection that stays open; the kernel ends the watch of a closed one.
func (w *hangupWatcher) unwatch(c syscall.RawConn, id uint64) {
	w.remove(id)
	w.control(c, unix.EPOLL_CTL_DEL, nil) //nolint:errcheck // fails on a closed connection only, whose watch has ended
}

func (w *hangupWatcher) remove(id uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.cancels, id)
}

func (w *hangupWatcher) control(c syscall.RawConn, operation int, event *unix.EpollEvent) error {
	var controlErr error
	err := c.Control(func(descriptor uintptr) {
		controlErr = os.NewSyscallError("epoll_ctl", unix.EpollCtl(w.descriptor, operation, int(descriptor), event))
	})
	return errors.Join(controlErr, err)
}

// close closes the epoll. No connection may be left, since watch and unwatch use its descriptor.
func (w *hangupWatcher) close() {
	w.closed.Store(true)
	w.epoll.Close()
}

// wait blocks after close until no cancel function will be called.
func (w *hangupWatcher) wait() { w.running.Wait() }

// splitID and joinID convert an id to and from the eight bytes that an epoll event carries for its owner.
func splitID(id uint64) (low, high int32) { return int32(id), int32(id >> 32) }

func joinID(low, high int32) uint64 { return uint64(uint32(low)) | uint64(uint32(high))<<32 }
