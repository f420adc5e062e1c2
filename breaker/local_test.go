package breaker_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"

	"basegate/breaker"
)

func TestIsLocalFault(t *testing.T) {
	dial := func(call string, err error) error {
		return fmt.Errorf("connect: %w", &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError(call, err)})
	}
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"too many open files of the process":      {dial("socket", syscall.EMFILE), true},
		"too many open files of the machine":      {dial("socket", syscall.ENFILE), true},
		"no free local port":                      {dial("connect", syscall.EADDRNOTAVAIL), true},
		"no memory":                               {dial("socket", syscall.ENOMEM), true},
		"no memory for a socket":                  {dial("connect", syscall.ENOBUFS), true},
		"too many open files during a name query": {&net.OpError{Op: "dial", Err: &net.DNSError{Err: "dial udp 127.0.0.53:53: socket: too many open files"}}, true},
		"connection refused":                      {dial("connect", syscall.ECONNREFUSED), false},
		"host unreachable":                        {dial("connect", syscall.EHOSTUNREACH), false},
		"network unreachable":                     {dial("connect", syscall.ENETUNREACH), false},
		"a timeout":                               {dial("connect", os.ErrDeadlineExceeded), false},
		"an unknown host":                         {&net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", IsNotFound: true}}, false},
		"another error":                           {errors.New("too many open files"), false},
		"none":                                    {nil, false},
	} {
		if got := breaker.IsLocalFault(c.err); got != c.want {
			t.Errorf("%s: got %t, want %t", name, got, c.want)
		}
	}
}
