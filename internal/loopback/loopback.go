// Package loopback finds loopback addresses for servers whose address must be known before they start, or must remain
// theirs while they are stopped. It is imported by tests and benchmarks only.
package loopback

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
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
	for {
		address := fmt.Sprintf("127.0.0.1:%d", firstPort+rand.IntN(ports)) //nolint:gosec // a port needs no secret
		socket, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("find a port: %w", err)
		}
		if err := socket.Close(); err != nil {
			return "", fmt.Errorf("find a port: %w", err)
		}
		return address, nil
	}
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
