package proxy_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tidwall/gjson"
)

// Requests of many sizes, which fail, are retried, are refused or leave early, never receive or send another one's body:
// buffers are cleared when they are returned to their pool.
func TestPooledBodiesAreNeverMixedUp(t *testing.T) {
	t.Parallel()
	var broken atomic.Int64
	backend := func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the client has disconnected
		}
		prompt := gjson.GetBytes(body, "prompt").Str
		if word, _, _ := strings.Cut(prompt, " "); strings.Trim(strings.ReplaceAll(prompt, word, ""), " ") != "" || word == "" {
			broken.Add(1)
		}
		switch rand.IntN(4) {
		case 0:
			respond(http.StatusInternalServerError, "text/plain", "no")(w, r)
		case 1:
			panic(http.ErrAbortHandler)
		default:
			respond(http.StatusOK, "application/json", plainResponse)(w, r)
		}
	}
	h := newHarness(t, func(o *harnessOptions) { o.breaker.ConsecutiveFailures = 1 << 20 }, startBackend(t, backend), startBackend(t, backend))
	var clients sync.WaitGroup
	for i := range 8 {
		clients.Go(func() {
			for n := range 25 {
				word := fmt.Sprintf("w%dx%d", i, n)
				prompt := strings.TrimSpace(strings.Repeat(word+" ", (10+rand.IntN(300<<10))/(len(word)+1)+1))
				body := fmt.Sprintf(`{"model":"m","prompt":%q,"max_tokens":2}`, prompt)
				if n%5 == 4 {
					body = strings.Replace(body, "max_tokens", "max_token", 1)
				}
				h.complete(body)
			}
		})
	}
	clients.Wait()
	if n := broken.Load(); n > 0 {
		t.Errorf("%d bodies reached a backend mixed with others", n)
	}
}
