// Package pooled reads from TCP sockets without holding a buffer while waiting: a buffer is taken from the caller's pool
// only when the socket is readable. Thousands of idle streams then share a few buffers. It knows nothing about the
// protocol; the fast-path HTTP/1.1 client and server both build on it.
package pooled

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
)

// RawConn returns the raw socket of c, or nil if c has none or its bytes are not those of the socket, as with TLS.
func RawConn(c net.Conn) syscall.RawConn {
	s, ok := c.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, _ := s.SyscallConn() // fails only on a closed connection, which the first use reports
	return raw
}

// Reader reads from a raw socket into pooled buffers. Its zero value is ready to use. It must not be used concurrently.
type Reader struct {
	tryRead func(descriptor uintptr) bool // the method value of try, allocated once
	get     func() []byte
	put     func([]byte)
	buffer  []byte
	n       int
	err     error
}

// Read blocks until the socket is readable, then reads once into a buffer from get. A buffer that turns out not to be
// needed is returned to put. The caller owns the returned buffer, which may be non-nil even with an error. Read returns
// io.EOF at the end of the stream.
func (r *Reader) Read(from syscall.RawConn, get func() []byte, put func([]byte)) (buffer []byte, n int, err error) {
	if r.tryRead == nil {
		r.tryRead = r.try
	}
	r.get, r.put, r.buffer, r.n, r.err = get, put, nil, 0, nil
	if err := from.Read(r.tryRead); err != nil {
		return r.buffer, 0, err
	}
	if r.err == nil && r.n == 0 {
		r.err = io.EOF
	}
	return r.buffer, r.n, r.err
}

// try attempts one non-blocking read. Returning false makes the runtime poller wait until the socket is readable.
func (r *Reader) try(descriptor uintptr) bool {
	r.buffer = r.get()
	for again := true; again; again = errors.Is(r.err, syscall.EINTR) {
		r.n, r.err = syscall.Read(int(descriptor), r.buffer)
	}
	switch {
	case r.err == nil:
		return true
	case errors.Is(r.err, syscall.EAGAIN):
		r.put(r.buffer)
		r.buffer = nil
		return false
	default:
		r.n, r.err = 0, os.NewSyscallError("read", r.err)
		return true
	}
}
