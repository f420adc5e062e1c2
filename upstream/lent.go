package upstream

import (
	"errors"
	"io"
	"os"
	"syscall"
)

// lent is a read with a buffer that is only held while there is something to read. A stream waits for its next event
// nearly all its life, and ten thousand of them would hold ten thousand buffers.
type lent struct {
	look   func(descriptor uintptr) bool // try, as a value that is made once
	take   func() []byte
	give   func([]byte)
	buffer []byte
	n      int
	err    error
}

// readLent is Lender's, for the connection.
func (c *conn) readLent(take func() []byte, give func([]byte)) (buffer []byte, n int, err error) {
	l := &c.lent
	if c.buffered() > 0 || c.raw == nil || c.Conn != c.socket { // or what comes is not what the socket has, as under TLS
		buffer = take()
		n, err = c.Read(buffer)
		return buffer, n, err
	}
	c.giveReader()
	l.take, l.give, l.buffer, l.n, l.err = take, give, nil, 0, nil
	if err := c.raw.Read(l.look); err != nil {
		return l.buffer, 0, err //nolint:wrapcheck // classified by who asked
	}
	if l.err == nil && l.n == 0 {
		l.err = io.EOF
	}
	return l.buffer, l.n, l.err
}

// try reads if there is something to read. False makes the runtime wait until there is.
func (l *lent) try(descriptor uintptr) bool {
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
