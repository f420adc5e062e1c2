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

// watcher tells of clients that leave: one goroutine for all connections, which hears of nothing but their ends.
type watcher struct {
	descriptor int // of epoll
	epoll      *os.File
	running    sync.WaitGroup
	over       atomic.Bool

	mu     sync.Mutex
	leave  map[uint64]func()
	number uint64 // of the last connection
}

// newWatcher makes a watcher; failed is told where it can watch no longer.
func newWatcher(failed func(error)) (*watcher, error) {
	descriptor, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watch connections: %w", os.NewSyscallError("epoll_create1", err))
	}
	if err := unix.SetNonblock(descriptor, true); err != nil { // so that Go waits for it as for a socket
		unix.Close(descriptor)
		return nil, fmt.Errorf("watch connections: %w", os.NewSyscallError("fcntl", err))
	}
	w := &watcher{descriptor: descriptor, epoll: os.NewFile(uintptr(descriptor), "connections"), leave: map[uint64]func(){}}
	raw, err := w.epoll.SyscallConn()
	if err != nil {
		w.epoll.Close()
		return nil, fmt.Errorf("watch connections: %w", err)
	}
	w.running.Go(func() {
		if err := w.run(raw); !w.over.Load() {
			failed(fmt.Errorf("watch connections: %w", err))
		}
	})
	return w, nil
}

// run ends when the watcher is closed.
func (w *watcher) run(raw syscall.RawConn) error {
	events := make([]unix.EpollEvent, 128) //nolint:mnd // more come with the next look
	return raw.Read(func(descriptor uintptr) bool {
		for {
			n, err := unix.EpollWait(int(descriptor), events, 0)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if n <= 0 {
				return false // wait on
			}
			for _, e := range events[:n] {
				w.tell(join(e.Fd, e.Pad))
			}
		}
	}) //nolint:wrapcheck // by newWatcher
}

func (w *watcher) tell(number uint64) {
	w.mu.Lock()
	leave := w.leave[number]
	w.mu.Unlock()
	if leave != nil {
		leave()
	}
}

// watch has leave called when the client closes its connection, or only its side of it, which is leaving for net/http too.
// A number is never used again, so that what is told late of a closed connection is not taken for the next one's.
func (w *watcher) watch(c syscall.RawConn, leave func()) (number uint64, err error) {
	w.mu.Lock()
	w.number++
	number = w.number
	w.leave[number] = leave
	w.mu.Unlock()
	event := unix.EpollEvent{Events: unix.EPOLLRDHUP | unix.EPOLLET}
	event.Fd, event.Pad = split(number)
	if err = w.control(c, unix.EPOLL_CTL_ADD, &event); err != nil {
		w.forget(number)
		return 0, err
	}
	return number, nil
}

// unwatch is for a connection that lives on; closing one ends its watch by itself.
func (w *watcher) unwatch(c syscall.RawConn, number uint64) {
	w.forget(number)
	w.control(c, unix.EPOLL_CTL_DEL, nil) //nolint:errcheck // fails on a closed one alone, whose watch has ended
}

func (w *watcher) forget(number uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.leave, number)
}

func (w *watcher) control(c syscall.RawConn, operation int, event *unix.EpollEvent) error {
	var failed error
	err := c.Control(func(descriptor uintptr) {
		failed = os.NewSyscallError("epoll_ctl", unix.EpollCtl(w.descriptor, operation, int(descriptor), event))
	})
	return errors.Join(failed, err)
}

// close is for when no connection is left: what is theirs to do needs the descriptor.
func (w *watcher) close() {
	w.over.Store(true)
	w.epoll.Close()
}

// wait is until nothing more is told, after close.
func (w *watcher) wait() { w.running.Wait() }

// split and join put a number into the eight bytes that an event has for its owner.
func split(number uint64) (low, high int32) { return int32(number), int32(number >> 32) } //nolint:gosec,mnd // bits, not numbers

func join(low, high int32) uint64 { return uint64(uint32(low)) | uint64(uint32(high))<<32 } //nolint:gosec,mnd // bits, not numbers
