package upstream

import "syscall"

// sound tells whether an idle connection is still open at the other end, and silent, as it must be between requests. It
// looks without waiting, and takes nothing.
func (c *conn) sound() bool {
	if c.raw == nil {
		return true
	}
	var n int
	var failed error
	err := c.raw.Read(func(descriptor uintptr) bool {
		var one [1]byte
		n, _, failed = syscall.Recvfrom(int(descriptor), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		return true
	})
	return err == nil && n <= 0 && (failed == syscall.EAGAIN || failed == syscall.EWOULDBLOCK)
}
