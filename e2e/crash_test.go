//go:build e2e

package e2e_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"basegate/mockvllm"
)

// receipts are the answers that clients have seen whole, and what each said that it cost.
type receipts struct {
	mu   sync.Mutex
	seen map[string]gjson.Result
}

func (r *receipts) note(id string, usage gjson.Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen[id] = usage
}

// ask makes one request and notes it when its answer came whole; false when the gateway was gone.
func (r *receipts) ask(g *gateway, secret string, stream bool) bool {
	body := fmt.Sprintf(`{"model":"m","prompt":"Once upon a time","max_tokens":%d`, 1+rand.IntN(12))
	if stream {
		body += `,"stream":true,"stream_options":{"include_usage":true}`
	}
	req, err := http.NewRequestWithContext(g.t.Context(), http.MethodPost, g.url+"/v1/completions", strings.NewReader(body+"}"))
	if err != nil {
		g.t.Error(err)
		return false
	}
	req.Header.Set("Authorization", "Bearer "+secret)
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return false
	}
	whole := resp.StatusCode == http.StatusOK
	if stream && whole {
		var done bool
		text, done = lastUsage(string(text))
		whole = done
	}
	if whole {
		r.note(resp.Header.Get("X-Request-Id"), gjson.GetBytes(text, "usage"))
	}
	return true
}

// lastUsage finds the usage event of a stream that came to its [DONE].
func lastUsage(stream string) ([]byte, bool) {
	events, done := strings.CutSuffix(stream, "data: [DONE]\n\n")
	last := events[strings.LastIndex(strings.TrimSuffix(events, "\n\n"), "data: ")+len("data: "):]
	return []byte(last), done
}

// The gateway is killed 200 times under load. Whoever saw an answer whole must find it on the ledger, once and at its
// price; nothing stays in flight; and a budget holds over all of it.
func TestKillUnderLoadLosesNothingThatAClientHasSeen(t *testing.T) {
	const budget = 20_000
	kills := 200
	if testing.Short() {
		kills = 10
	}
	mock := startMock(t, mockvllm.Options{TokenDelay: time.Millisecond})
	place := newSite(t, settings{rest: "limits: {concurrency_per_key: 100}"}, mock.URL())
	free, capped := place.key("free"), strings.TrimSpace(place.run("key", "create", "--account", place.email, "--name", "capped", "--monthly-budget", fmt.Sprint(budget)))
	noted := &receipts{seen: map[string]gjson.Result{}}
	for range kills {
		g := place.serveTo(free)
		var clients sync.WaitGroup
		for i := range 16 {
			clients.Go(func() {
				for noted.ask(g, []string{free, capped}[i%2], i%4 < 2) {
				}
			})
		}
		kill := time.NewTimer(time.Duration(20+rand.IntN(100)) * time.Millisecond)
		<-kill.C
		g.signal(syscall.SIGKILL)
		<-g.ended
		clients.Wait()
	}
	place.serveTo(free) // closes what was left
	rows := map[string]ledgerRow{}
	var spent, interrupted int64
	for _, row := range place.usage() {
		if _, twice := rows[row.ID]; twice {
			t.Errorf("%s is on the ledger twice", row.ID)
		}
		rows[row.ID] = row
		if strings.HasPrefix(capped, row.Key) {
			spent += row.Prompt + row.Completion
		}
		if row.State == "interrupted" {
			interrupted++
		}
	}
	for id, usage := range noted.seen {
		row, ok := rows[id]
		if !ok || row.State != "settled" || row.Prompt != usage.Get("prompt_tokens").Int() || row.Completion != usage.Get("completion_tokens").Int() {
			t.Errorf("%s cost %s, but the ledger says %+v", id, usage.Raw, row)
		}
	}
	if spent > budget {
		t.Errorf("%d tokens of %d are spent", spent, budget)
	}
	t.Logf("%d kills: %d answers seen whole, %d rows, %d interrupted, %d of %d tokens of the budget spent", kills, len(noted.seen), len(rows), interrupted, spent, budget)
	if len(noted.seen) < kills {
		t.Error("hardly anything was answered, so this has shown nothing")
	}
}
