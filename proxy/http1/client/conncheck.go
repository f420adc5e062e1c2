package client

import (
	"errors"
	"syscall"
)

// usable returns whether an idle connection can carry another request: the backend has neither closed it nor sent bytes
// that no request asked for. It peeks at the socket without blocking and consumes nothing.
func (c *conn) usable() bool {
	if c.records != nil && !c.holdsNothing() {
		return false
	}
	if c.raw == nil {
		return true
	}
	// In Go EAGAIN and EWOULDBLOCK are the same value.
	return c.raw.Read(c.check.tryPeek) == nil && c.check.n <= 0 && errors.Is(c.check.err, syscall.EAGAIN)
}

// connCheck peeks at the socket of an idle connection and holds the result.
type connCheck struct {
	tryPeek func(descriptor uintptr) bool // the method value of peek, allocated once
	n       int
	err     error
}

// peek always returns true, so that the runtime poller does not wait for bytes.
func (k *connCheck) peek(descriptor uintptr) bool {
	var one [1]byte
	k.n, _, k.err = syscall.Recvfrom(int(descriptor), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	return true
}
