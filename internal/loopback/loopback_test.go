package loopback_test

import (
	"context"
	"net"
	"os/exec"
	"sync"
	"testing"

	"basegate/internal/loopback"
)

// A process that starts meanwhile must not keep the port.
func TestAddressIsFreeWhileProcessesStart(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var starts sync.WaitGroup
	defer starts.Wait()
	defer cancel()
	for range 4 {
		starts.Go(func() {
			for ctx.Err() == nil {
				if err := exec.CommandContext(ctx, "true").Run(); err != nil && ctx.Err() == nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 3000 {
		address := loopback.Address(t)
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		if err := listener.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
