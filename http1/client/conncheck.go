package client

import (
	"errors"
	"syscall"
)

// sound tells whether an idle connection is still open at the other end, and silent, as it must be between requests. It
// looks without waiting, and takes nothing.
func (c *conn) sound() bool {
	if c.raw == nil {
		return true
	}
	// Go's EAGAIN is EWOULDBLOCK too.
	return c.raw.Read(c.silence.look) == nil && c.silence.n <= 0 && errors.Is(c.silence.err, syscall.EAGAIN)
}

// silence is a look at what a connection has sent unasked.
type silence struct {
	look func(descriptor uintptr) bool // try, as a value that is made once
	n    int
	err  error
}

func (s *silence) try(descriptor uintptr) bool {
	var one [1]byte
	s.n, _, s.err = syscall.Recvfrom(int(descriptor), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	return true
}
