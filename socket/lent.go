// Package socket is what both ends of the gateway ask of a TCP socket beyond net.Conn: to read without a buffer to wait
// with. What is read is for others to know.
package socket

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
)

// Raw is a connection's socket; nil where it has none, and where what comes is not what the socket has, as under TLS.
func Raw(c net.Conn) syscall.RawConn {
	s, ok := c.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, _ := s.SyscallConn() // fails on a closed one alone, which its first use tells
	return raw
}

// Lent reads with buffers that are only held while there is something to read. A stream waits for its next event nearly
// all its life, and ten thousand of them would hold ten thousand buffers. The zero value is ready; one read at a time.
type Lent struct {
	look   func(descriptor uintptr) bool // try, as a value that is made once
	take   func() []byte
	give   func([]byte)
	buffer []byte
	n      int
	err    error
}

// Read waits until there is something to read, and reads once, into a buffer from take. What is taken in vain goes back
// by give. A buffer that is returned is the caller's to give back, with an error too. The error is io.EOF at the end.
func (l *Lent) Read(from syscall.RawConn, take func() []byte, give func([]byte)) (buffer []byte, n int, err error) {
	if l.look == nil {
		l.look = l.try
	}
	l.take, l.give, l.buffer, l.n, l.err = take, give, nil, 0, nil
	if err := from.Read(l.look); err != nil {
		return l.buffer, 0, err //nolint:wrapcheck // net's own, which says it all
	}
	if l.err == nil && l.n == 0 {
		l.err = io.EOF
	}
	return l.buffer, l.n, l.err
}

// try reads if there is something to read. False makes the runtime wait until there is.
func (l *Lent) try(descriptor uintptr) bool {
	l.buffer = l.take()
	for again := true; again; again = errors.Is(l.err, syscall.EINTR) {
		l.n, l.err = syscall.Read(int(descriptor), l.buffer)
	}
	switch {
	case l.err == nil:
		return true
	case errors.Is(l.err, syscall.EAGAIN):
		l.give(l.buffer)
		l.buffer = nil
		return false
	default:
		l.n, l.err = 0, os.NewSyscallError("read", l.err)
		return true
	}
}
