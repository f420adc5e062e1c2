package pooled_test

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"basegate/proxy/http1/pooled"
)

// tcpPair returns both ends of a TCP connection.
func tcpPair(t *testing.T) (local, remote net.Conn) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	local, err = (&net.Dialer{}).DialContext(t.Context(), "tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { local.Close() })
	if remote, err = listener.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remote.Close() })
	return local, remote
}

// countingPool counts the buffers in use.
type countingPool struct {
	size, inUse int
	puts        chan struct{} // if not nil, receives one value per put
}

func (p *countingPool) get() []byte {
	p.inUse++
	return make([]byte, p.size)
}

func (p *countingPool) put([]byte) {
	p.inUse--
	if p.puts != nil {
		p.puts <- struct{}{}
	}
}

func TestReadUsesPooledBuffersUntilEOF(t *testing.T) {
	local, remote := tcpPair(t)
	var reader pooled.Reader
	want := strings.Repeat("some words, ", 1000)
	go func() {
		io.WriteString(remote, want)
		remote.Close()
	}()
	pool := &countingPool{size: 700}
	var got strings.Builder
	for {
		buffer, n, err := reader.Read(pooled.RawConn(local), pool.get, pool.put)
		got.Write(buffer[:n])
		if buffer != nil {
			pool.put(buffer)
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				t.Errorf("the last read failed with %v, want EOF", err)
			}
			break
		}
	}
	if got.String() != want || pool.inUse != 0 {
		t.Errorf("read %d bytes with %d buffers still in use, want the %d bytes sent and none in use", got.Len(), pool.inUse, len(want))
	}
}

func TestReadHoldsNoBufferWhileWaiting(t *testing.T) {
	local, remote := tcpPair(t)
	var reader pooled.Reader
	pool := &countingPool{size: 700, puts: make(chan struct{}, 1)}
	read := make(chan int, 1)
	go func() {
		_, n, _ := reader.Read(pooled.RawConn(local), pool.get, pool.put)
		read <- n
	}()
	<-pool.puts // by the first attempt, which has found nothing to read
	io.WriteString(remote, "x")
	if n := <-read; n != 1 || pool.inUse != 1 {
		t.Errorf("read %d bytes with %d buffers in use, want 1 and 1", n, pool.inUse)
	}
}

func TestReadReturnsAtTheDeadline(t *testing.T) {
	local, _ := tcpPair(t)
	local.SetReadDeadline(time.Now().Add(-time.Second))
	pool := &countingPool{size: 1}
	var reader pooled.Reader
	buffer, _, err := reader.Read(pooled.RawConn(local), pool.get, pool.put)
	if !errors.Is(err, os.ErrDeadlineExceeded) || buffer != nil || pool.inUse != 0 {
		t.Errorf("got error %v with %d buffers in use, want a deadline error and none", err, pool.inUse)
	}
}

func TestReadFailsOnAClosedConnection(t *testing.T) {
	local, _ := tcpPair(t)
	raw := pooled.RawConn(local)
	local.Close()
	pool := &countingPool{size: 1}
	var reader pooled.Reader
	if _, _, err := reader.Read(raw, pool.get, pool.put); !errors.Is(err, net.ErrClosed) || pool.inUse != 0 {
		t.Errorf("got error %v with %d buffers in use, want net.ErrClosed and none", err, pool.inUse)
	}
}

func TestRawConnIsNilWithoutASocket(t *testing.T) {
	one, other := net.Pipe()
	defer other.Close()
	defer one.Close()
	if pooled.RawConn(one) != nil {
		t.Error("RawConn of an in-memory pipe is not nil")
	}
}
