package socket_test

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"basegate/socket"
)

// pair is the two ends of a TCP connection.
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

// shelf counts the buffers that are out.
type shelf struct {
	size, out int
	took      chan struct{} // told of each that is taken
}

func (s *shelf) take() []byte {
	s.out++
	if s.took != nil {
		s.took <- struct{}{}
	}
	return make([]byte, s.size)
}

func (s *shelf) give([]byte) { s.out-- }

func TestWhatComesIsReadIntoWhatIsLent(t *testing.T) {
	here, there := pair(t)
	var lent socket.Lent
	want := strings.Repeat("some words, ", 1000)
	go func() {
		io.WriteString(there, want)
		there.Close()
	}()
	s := &shelf{size: 700}
	var got strings.Builder
	for {
		buffer, n, err := lent.Read(socket.Raw(here), s.take, s.give)
		got.Write(buffer[:n])
		if buffer != nil {
			s.give(buffer)
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				t.Error(err)
			}
			break
		}
	}
	if got.String() != want || s.out != 0 {
		t.Errorf("%d bytes, %d buffers are out", got.Len(), s.out)
	}
}

func TestNoBufferIsHeldWhileNothingComes(t *testing.T) {
	here, there := pair(t)
	var lent socket.Lent
	s := &shelf{size: 700, took: make(chan struct{}, 1)}
	read := make(chan int, 1)
	go func() {
		_, n, _ := lent.Read(socket.Raw(here), s.take, s.give)
		read <- n
	}()
	<-s.took // in vain
	io.WriteString(there, "x")
	<-s.took
	if n := <-read; n != 1 || s.out != 1 {
		t.Errorf("%d bytes in %d buffers", n, s.out)
	}
}

func TestADeadlineEndsTheWait(t *testing.T) {
	here, _ := pair(t)
	here.SetReadDeadline(time.Now().Add(-time.Second))
	s := &shelf{size: 1}
	var lent socket.Lent
	buffer, _, err := lent.Read(socket.Raw(here), s.take, s.give)
	if !errors.Is(err, os.ErrDeadlineExceeded) || buffer != nil || s.out != 0 {
		t.Errorf("%v, %d buffers are out", err, s.out)
	}
}

func TestAClosedConnectionIsAnError(t *testing.T) {
	here, _ := pair(t)
	raw := socket.Raw(here)
	here.Close()
	s := &shelf{size: 1}
	var lent socket.Lent
	if _, _, err := lent.Read(raw, s.take, s.give); !errors.Is(err, net.ErrClosed) || s.out != 0 {
		t.Errorf("%v, %d buffers are out", err, s.out)
	}
}

func TestWhatHasNoSocketHasNone(t *testing.T) {
	here, there := net.Pipe()
	defer there.Close()
	defer here.Close()
	if socket.Raw(here) != nil {
		t.Error("a pipe has a socket")
	}
}
