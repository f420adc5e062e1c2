//go:build e2e

package e2e_test

import (
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"basegate/internal/poll"
)

// When one of two backends dies, the gateway retries the requests whose responses have not started at the other one. A
// plain response starts only when it is complete, so no plain request may fail.
func TestPlainRequestsSurviveABackendsDeath(t *testing.T) {
	victim, first := startMockProcess(t, "--token-delay", "2ms")
	_, second := startMockProcess(t, "--token-delay", "2ms")
	g := newEnvironment(t, settings{extra: "limits: {concurrency_per_key: 64}"}, first, second).serve()

	const clients, total = 8, 400
	var sent, completed atomic.Int64
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for sent.Add(1) <= total {
				got, err := post(g.url, g.secret, `{"model": "m", "prompt": "Once upon a time", "max_tokens": 8}`)
				if err != nil || got.status != http.StatusOK {
					t.Errorf("got %v, %d %s, want 200", err, got.status, got.body)
				}
				completed.Add(1)
			}
		})
	}
	poll.Until(t, "a quarter of the responses have arrived", func() bool { return completed.Load() > total/4 })
	victim.signal(syscall.SIGKILL)
	<-victim.exited
	wg.Wait()

	if metrics := g.get(g.admin, "/metrics").body; !strings.Contains(metrics, `backend="b0"`) || !strings.Contains(metrics, `backend="b1"`) {
		t.Error("a backend got no request, so its death tests nothing")
	}
}
