//go:build e2e

package e2e_test

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"basegate/internal/poll"
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
	rows, err := place.onDisk(t.Context())
	must(t, err)
	spent, interrupted := noted.check(t, rows, capped)
	if spent > budget {
		t.Errorf("%d tokens of %d are spent", spent, budget)
	}
	t.Logf("%d kills: %d answers seen whole, %d rows, %d interrupted, %d of %d tokens of the budget spent", kills, len(noted.seen), len(rows), interrupted, spent, budget)
	if len(noted.seen) < kills {
		t.Error("hardly anything was answered, so this has shown nothing")
	}
}

// check compares what clients have seen with the ledger, and returns what one key has spent, and how many rows a crash
// has closed.
func (r *receipts) check(t *testing.T, rows []ledgerRow, secret string) (spent int64, interrupted int) {
	t.Helper()
	byID := map[string]ledgerRow{}
	for _, row := range rows {
		if _, twice := byID[row.ID]; twice {
			t.Errorf("%s is on the ledger twice", row.ID)
		}
		byID[row.ID] = row
		if strings.HasPrefix(secret, row.Key) {
			spent += row.Prompt + row.Completion
		}
		switch row.State {
		case "interrupted":
			interrupted++
			if row.Prompt == 0 {
				t.Errorf("the prompt is not charged: %+v", row)
			}
		case "settled":
		default:
			t.Errorf("a restart has left %+v", row)
		}
	}
	for id, usage := range r.seen {
		row, ok := byID[id]
		if !ok || row.State != "settled" || row.Prompt != usage.Get("prompt_tokens").Int() || row.Completion != usage.Get("completion_tokens").Int() {
			t.Errorf("%s cost %s, but the ledger says %+v", id, usage.Raw, row)
		}
	}
	return spent, interrupted
}

// A stream that a kill cuts off costs its prompt, exactly, and what was on disk of it, which is about a second old at the
// most.
func TestAKilledStreamCostsWhatWasKnownASecondBefore(t *testing.T) {
	const prompt, onTheirWay = "Once upon a time", 50
	mock := startMock(t, mockvllm.Options{TokenDelay: 2 * time.Millisecond})
	place := newSite(t, settings{}, mock.URL())
	g := place.serve()
	resp, err := client.Do(g.request(context.WithoutCancel(t.Context()), http.MethodPost, g.url+"/v1/completions", fmt.Sprintf(
		`{"model":"m","prompt":%q,"max_tokens":8000,"stream":true,"logit_bias":{"%s":-100}}`, prompt, encode(t, mock, "<|end_of_text|>", false)[0])))
	must(t, err)
	defer resp.Body.Close()
	var came atomic.Int64
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
			if gjson.Get(strings.TrimPrefix(lines.Text(), "data: "), "choices.0.text").Str != "" {
				came.Add(1)
			}
		}
	}()
	row := func() ledgerRow {
		rows, err := place.onDisk(t.Context())
		must(t, err)
		if len(rows) != 1 {
			t.Fatalf("the ledger says %+v", rows)
		}
		return rows[0]
	}
	saved, sent := row().Completion, []int64{}
	for range 3 {
		sent = append(sent, came.Load())
		poll.Until(t, "a checkpoint is made", func() bool { return row().Completion > saved })
		saved = row().Completion
	}
	g.signal(syscall.SIGKILL)
	<-g.ended
	<-ended
	place.serveTo(g.secret)
	got := row()
	// The third checkpoint is later than what had come before the second was on disk.
	if got.State != "interrupted" || got.Prompt != int64(len(encode(t, mock, prompt, true))) || got.Completion < sent[1] || got.Completion > came.Load()+onTheirWay {
		t.Errorf("%d tokens had come before the checkpoints, %d in all, and the ledger says %+v", sent, came.Load(), got)
	}
	t.Logf("%d tokens had come before the checkpoints, %d in all, %d are charged", sent, came.Load(), got.Completion)
	if sent[1] == 0 {
		t.Error("nothing had come, so this has shown nothing")
	}
}

// A gateway whose ledger holds a million rows of this month starts within seconds, and knows what they add up to.
func TestAMillionRowsAreNoObstacleToAStart(t *testing.T) {
	const rows, tokens = 1_000_000, 3
	mock := startMock(t, mockvllm.Options{})
	place := newSite(t, settings{}, mock.URL())
	place.run("account", "set", place.email, "--monthly-budget", fmt.Sprint(rows*tokens+3))
	secret := place.key("test")
	db, err := sql.Open("sqlite3", "file:"+place.database)
	must(t, err)
	defer db.Close()
	_, err = db.ExecContext(t.Context(), `
		WITH RECURSIVE counted (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM counted WHERE i < $1)
		INSERT INTO requests (request_id, time, key_id, account_id, model, backend, endpoint, workload, user_tag, stream,
			status, code, state, prompt_tokens, completion_tokens, queue_us, first_token_us, total_us)
		SELECT printf('req_%026d', i), $2, k.id, k.account_id, 'm', 'b0', '/v1/completions', '', '', 0,
			200, '', CASE WHEN i % 1000 THEN 'settled' ELSE 'in_flight' END, 2, 1, 0, 0, 1000
		FROM counted, keys k`, rows, time.Now().UnixMicro())
	must(t, err)
	began := time.Now()
	g := place.serveTo(secret)
	t.Logf("it listens after %v", time.Since(began).Round(time.Millisecond))
	got := g.complete(`{"model":"m","prompt":[7,7,7,7],"max_tokens":1}`)
	if e := got.fault(t); e.Code != "budget_exceeded" || gjson.Get(got.body, "error.used").Int() != rows*tokens {
		t.Errorf("got %d %s", got.status, got.body)
	}
}
