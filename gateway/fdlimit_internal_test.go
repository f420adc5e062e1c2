package gateway

import (
	"errors"
	"net"
	"os"
	"sync/atomic"
	"testing"

	"basegate/internal/poll"
)

// dial opens a connection to a listener.
func dial(t *testing.T, l net.Listener) {
	t.Helper()
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
}

// newReserved returns a listener for which all file descriptors are scarce while scarce is true.
func newReserved(t *testing.T) (l *fdLimitListener, scarce *atomic.Bool, asked *atomic.Int64) {
	t.Helper()
	socket, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l = newFDLimitListener(socket, 1)
	t.Cleanup(func() { l.Close() })
	scarce, asked = new(atomic.Bool), new(atomic.Int64)
	scarce.Store(true)
	l.lowest = func() int {
		asked.Add(1)
		if scarce.Load() {
			return 1
		}
		return 0
	}
	return l, scarce, asked
}

// accept accepts one connection and sends the error.
func accept(l net.Listener) <-chan error {
	result := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			c.Close()
		}
		result <- err
	}()
	return result
}

func TestListenerWaitsForFreeFileDescriptors(t *testing.T) {
	l, scarce, asked := newReserved(t)
	dial(t, l)
	result := accept(l)
	poll.Until(t, "the listener looks for free descriptors again", func() bool { return asked.Load() > 3 })
	select {
	case err := <-result:
		t.Fatalf("Accept returned while descriptors were scarce, error %v", err)
	default:
	}
	scarce.Store(false)
	if err := <-result; err != nil {
		t.Errorf("Accept: %v", err)
	}
}

func TestClosedListenerWaitsForNoFileDescriptor(t *testing.T) {
	l, _, asked := newReserved(t)
	dial(t, l)
	result := accept(l)
	poll.Until(t, "the listener looks for free descriptors", func() bool { return asked.Load() > 0 })
	l.Close()
	if err := <-result; !errors.Is(err, net.ErrClosed) {
		t.Errorf("got error %v, want net.ErrClosed", err)
	}
}

func TestLowestFreeDescriptor(t *testing.T) {
	before := lowestFreeDescriptor()
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got := lowestFreeDescriptor(); got <= 2 || before <= 2 || got >= maxDescriptors() {
		t.Errorf("got %d and then %d of %d, want a number above the standard streams", before, got, maxDescriptors())
	}
}
