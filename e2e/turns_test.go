//go:build e2e

package e2e_test

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"basegate/internal/poll"
	"basegate/mockvllm"
)

// 40 keys of one account send 320 requests at a time to an engine that runs 16. What another account sends is served after a
// turn, and not after everything that the first one has sent before.
func TestAnAccountWithManyKeysDoesNotFillABackend(t *testing.T) {
	const keys, perKey = 40, 8
	mock := startMock(t, mockvllm.Options{MaxNumSeqs: 16, FirstDelay: 200 * time.Millisecond})
	env := newEnvironment(t, settings{
		extra: fmt.Sprintf("limits: {concurrency_per_key: %d, concurrency_per_account: %d}", perKey, keys*perKey), // its slots do not bound the account
	}, mock.URL())
	env.run("account", "create", "other@example.org")
	other := env.createKeyOf("other@example.org", "other")
	secrets := make([]string, keys)
	var creating sync.WaitGroup
	for first := range 4 {
		creating.Go(func() {
			for i := first; i < keys; i += 4 {
				secrets[i] = env.createKey(fmt.Sprint("key ", i))
			}
		})
	}
	creating.Wait()
	g := env.serve()
	transport := &http.Transport{MaxIdleConnsPerHost: keys * perKey}
	client := &http.Client{Transport: transport}

	var ended atomic.Int64
	stop := make(chan struct{})
	var sending sync.WaitGroup
	for i := range keys * perKey {
		sending.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if status, err := send(client, g.url, secrets[i%keys]); err != nil || status != http.StatusOK {
					t.Errorf("a request of the first account: %d %v", status, err)
					return
				}
				ended.Add(1)
			}
		})
	}
	poll.Until(t, "the first requests have ended", func() bool { return ended.Load() >= keys*perKey })
	poll.Until(t, "requests are held back", func() bool {
		return !strings.Contains(g.get(g.admin, "/metrics").body, `basegate_backend_held_requests{backend="b0",model="m"} 0`)
	})
	var before []int64
	for range 9 {
		began := ended.Load()
		if status, err := send(client, g.url, other); err != nil || status != http.StatusOK {
			t.Fatalf("a request of the other account: %d %v", status, err)
		}
		before = append(before, ended.Load()-began)
	}
	close(stop)
	sending.Wait()
	transport.CloseIdleConnections()
	slices.Sort(before)
	if median := before[len(before)/2]; median > keys*perKey/4 {
		t.Errorf("while a request of the other account was served, %d of the first one ended (all: %v), want about two turns of 16", median, before)
	}
	g.waitIdle()
	if held := `basegate_backend_held_requests{backend="b0",model="m"} 0`; !strings.Contains(g.get(g.admin, "/metrics").body, held) {
		t.Errorf("at the end the metrics lack %s", held)
	}
}

// send sends a small request, and reads its response.
func send(client *http.Client, url, secret string) (status int, err error) {
	req, err := http.NewRequest(http.MethodPost, url+"/v1/completions", strings.NewReader(smallRequest))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Authorization", "Bearer "+secret)
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}
