package loopback

import (
	"errors"
	"net"
	"syscall"
	"testing"
)

func TestAddressIsNotOneThatIsUsed(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", Address(t))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if err := bind(listener.Addr().(*net.TCPAddr).Port); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a port that a server listens on: got error %v, want EADDRINUSE", err)
	}
}
