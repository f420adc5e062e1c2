package pooled_test

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"basegate/http1/pooled"
)

// pair returns both ends of a TCP connection.
func pair(t *testing.T) (here, there net.Conn) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	here, err = (&net.Dialer{}).DialContext(t.Context(), "tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { here.Close() })
	if there, err = listener.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { there.Close() })
	return here, there
}

// countingPool counts the buffers in use.
type countingPool struct {
	size, inUse int
	gets        chan struct{} // if not nil, receives one value per get
}

func (p *countingPool) get() []byte {
	p.inUse++
	if p.gets != nil {
		p.gets <- struct{}{}
	}
	return make([]byte, p.size)
}

func (p *countingPool) put([]byte) { p.inUse-- }

func TestReadUsesPooledBuffersUntilEOF(t *testing.T) {
	here, there := pair(t)
	var reader pooled.Reader
	want := strings.Repeat("some words, ", 1000)
	go func() {
		io.WriteString(there, want)
		there.Close()
	}()
	pool := &countingPool{size: 700}
	var got strings.Builder
	for {
		buffer, n, err := reader.Read(pooled.RawConn(here), pool.get, pool.put)
		got.Write(buffer[:n])
		if buffer != nil {
			pool.put(buffer)
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				t.Error(err)
			}
			break
		}
	}
	if got.String() != want || pool.inUse != 0 {
		t.Errorf("%d bytes, %d buffers in use", got.Len(), pool.inUse)
	}
}

func TestReadHoldsNoBufferWhileWaiting(t *testing.T) {
	here, there := pair(t)
	var reader pooled.Reader
	pool := &countingPool{size: 700, gets: make(chan struct{}, 1)}
	read := make(chan int, 1)
	go func() {
		_, n, _ := reader.Read(pooled.RawConn(here), pool.get, pool.put)
		read <- n
	}()
	<-pool.gets // the first attempt, which finds nothing
	io.WriteString(there, "x")
	<-pool.gets
	if n := <-read; n != 1 || pool.inUse != 1 {
		t.Errorf("%d bytes in %d buffers", n, pool.inUse)
	}
}

func TestReadReturnsAtTheDeadline(t *testing.T) {
	here, _ := pair(t)
	here.SetReadDeadline(time.Now().Add(-time.Second))
	pool := &countingPool{size: 1}
	var reader pooled.Reader
	buffer, _, err := reader.Read(pooled.RawConn(here), pool.get, pool.put)
	if !errors.Is(err, os.ErrDeadlineExceeded) || buffer != nil || pool.inUse != 0 {
		t.Errorf("%v, %d buffers in use", err, pool.inUse)
	}
}

func TestReadFailsOnAClosedConnection(t *testing.T) {
	here, _ := pair(t)
	raw := pooled.RawConn(here)
	here.Close()
	pool := &countingPool{size: 1}
	var reader pooled.Reader
	if _, _, err := reader.Read(raw, pool.get, pool.put); !errors.Is(err, net.ErrClosed) || pool.inUse != 0 {
		t.Errorf("%v, %d buffers in use", err, pool.inUse)
	}
}

func TestRawConnIsNilWithoutASocket(t *testing.T) {
	here, there := net.Pipe()
	defer there.Close()
	defer here.Close()
	if pooled.RawConn(here) != nil {
		t.Error("a pipe has a socket")
	}
}
