// Package loopback finds loopback addresses for servers whose address must be known before they start, or must remain
// theirs while they are stopped. It is imported by tests and benchmarks only.
package loopback

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"syscall"
	"testing"
)

// Ports are below the kernel's ephemeral ports, so that no other connection or listener is given one before its server uses
// it.
const (
	firstPort = 10_000
	ports     = 20_000
)

// FreeAddress returns a loopback address, as host:port, that nothing listens on.
func FreeAddress(ctx context.Context) (string, error) {
	for ctx.Err() == nil {
		port := firstPort + rand.IntN(ports)
		err := bind(port)
		if err == nil {
			return fmt.Sprintf("127.0.0.1:%d", port), nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return "", fmt.Errorf("find a port: %w", err)
		}
	}
	return "", fmt.Errorf("find a port: %w", ctx.Err())
}

// bind returns EADDRINUSE if something listens on the port. It does not listen itself, and no process is started meanwhile: a
// child has its parent's sockets until it executes its program, so it would keep a listening one after it is closed here.
func bind(port int) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	err = syscall.SetsockoptInt(socket, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1) // connections that ended do not count
	if err == nil {
		err = syscall.Bind(socket, &syscall.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
	}
	return os.NewSyscallError("bind", errors.Join(err, syscall.Close(socket)))
}

// Address is FreeAddress for a test, which ends if there is none.
func Address(tb testing.TB) string {
	tb.Helper()
	address, err := FreeAddress(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	return address
}
