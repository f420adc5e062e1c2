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

// mockProcess starts basegate mockvllm and returns its base URL.
func mockProcess(t *testing.T) (p *process, url string) {
	t.Helper()
	p = start(t, "mockvllm", "--listen", "127.0.0.1:0", "--token-delay", "2ms")
	return p, p.says(p.stderr, `http://\S+`)[0]
}

// The death of one of two backends takes the requests it had not begun to answer to the other one. Plain requests
// have no answer begun until they are whole, so none of them may fail.
func TestNoClientSeesABackendDie(t *testing.T) {
	doomed, first := mockProcess(t)
	_, second := mockProcess(t)
	g := newSite(t, settings{rest: "limits: {concurrency_per_key: 64}"}, first, second).serve()

	const clients, total = 8, 400
	var sent, answered atomic.Int64
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for sent.Add(1) <= total {
				answer, err := post(g.url, g.secret, `{"model": "m", "prompt": "Once upon a time", "max_tokens": 8}`)
				if err != nil || answer.status != http.StatusOK {
					t.Errorf("%v: %d %s", err, answer.status, answer.body)
				}
				answered.Add(1)
			}
		})
	}
	poll.Until(t, "a quarter of the answers", func() bool { return answered.Load() > total/4 })
	doomed.signal(syscall.SIGKILL)
	<-doomed.ended
	all.Wait()

	if metrics := g.get(g.admin, "/metrics").body; !strings.Contains(metrics, `backend="b0"`) || !strings.Contains(metrics, `backend="b1"`) {
		t.Error("one of the backends had no request, so its death proves nothing")
	}
}

func TestAModelWithoutABackendIsUnreachable(t *testing.T) {
	doomed, url := mockProcess(t)
	g := newSite(t, settings{}, url).serve()
	if answer := g.complete(small); answer.status != http.StatusOK {
		t.Fatalf("%d %s", answer.status, answer.body)
	}
	doomed.signal(syscall.SIGKILL)
	<-doomed.ended
	answer := g.complete(small)
	if answer.status != http.StatusBadGateway || answer.fault(t).Code != "upstream_unreachable" {
		t.Errorf("%d %s", answer.status, answer.body)
	}
	if kind := answer.header.Get("X-Acs-Upstream-Error-Kind"); kind != "upstream_unreachable" {
		t.Errorf("X-Acs-Upstream-Error-Kind: %q", kind)
	}
}
