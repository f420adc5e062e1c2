//go:build e2e

package e2e_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
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

// completedResponses maps the request IDs of responses that clients received completely to the usage in the response.
type completedResponses struct {
	mu    sync.Mutex
	usage map[string]gjson.Result
}

func (r *completedResponses) record(id string, usage gjson.Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.usage[id] = usage
}

// send sends one request and records its usage if the response is complete; false if the gateway broke the connection.
func (r *completedResponses) send(g *gateway, secret string, stream bool) bool {
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
	resp, err := httpClient.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return false
	}
	complete := resp.StatusCode == http.StatusOK
	if stream && complete {
		var done bool
		text, done = lastUsage(string(text))
		complete = done
	}
	if complete {
		r.record(resp.Header.Get("X-Request-Id"), gjson.GetBytes(text, "usage"))
	}
	return true
}

// lastUsage returns the data of the usage event of a stream, and whether the stream ended with [DONE].
func lastUsage(stream string) ([]byte, bool) {
	events, done := strings.CutSuffix(stream, "data: [DONE]\n\n")
	last := events[strings.LastIndex(strings.TrimSuffix(events, "\n\n"), "data: ")+len("data: "):]
	return []byte(last), done
}

// The gateway is killed under load, 50 times or as often as BASEGATE_KILLS says, for both ways to flush. After each kill the database
// is consistent, and after each restart the ledger has each completed response once, with its usage, no row is in flight, and the
// counters of a key are the sum of its rows. The cap holds over all restarts, and a paused key stays so.
func TestKillUnderLoadKeepsEveryCompletedResponse(t *testing.T) {
	for _, flush := range []string{"commit", "1m"} { // nothing is flushed within a minute
		t.Run("flush "+flush, func(t *testing.T) {
			t.Parallel() // it waits for gateways to start
			killUnderLoad(t, flush)
		})
	}
}

// numberOfKills returns BASEGATE_KILLS, or a default.
func numberOfKills(t *testing.T) int {
	t.Helper()
	text := os.Getenv("BASEGATE_KILLS")
	switch {
	case text != "":
		kills, err := strconv.Atoi(text)
		must(t, err)
		return kills
	case testing.Short():
		return 10
	}
	return 50
}

func killUnderLoad(t *testing.T, flush string) {
	t.Helper()
	if flush != "commit" {
		skipPostgres(t, "database.flush is SQLite's")
	}
	const budget = 20_000
	kills := numberOfKills(t)
	mock := startMock(t, mockvllm.Options{TokenDelay: time.Millisecond})
	env := newEnvironment(t, settings{extra: "limits: {concurrency_per_key: 100}", flush: flush}, mock.URL())
	uncapped, paused := env.createKey("uncapped"), env.createKey("paused")
	env.run("key", "pause", paused[:13])
	capped := strings.TrimSpace(env.run("key", "create", "--account", env.email, "--name", "capped", "--monthly-budget", fmt.Sprint(budget)))
	completed := &completedResponses{usage: map[string]gjson.Result{}}
	var rows, interrupted int
	var spent int64
	restart := func() *gateway {
		g := env.serveWithKey(uncapped) // recovery closes the rows in flight
		all, err := env.ledgerRows(t.Context())
		must(t, err)
		rows = len(all)
		spent, interrupted = completed.verify(t, all, capped)
		key := *g
		key.secret = capped
		got := gjson.Get(key.get(key.url, "/v1/key").body, "caps.0")
		if got.Get("used").Int() != spent || got.Get("reserved").Int() != 0 {
			t.Errorf("the capped key: got %s, want %d used tokens, the sum of its rows, and none reserved", got.Raw, spent)
		}
		return g
	}
	for n := range kills {
		g := restart()
		var clients sync.WaitGroup
		for i := range 16 {
			clients.Go(func() {
				for completed.send(g, []string{uncapped, capped}[i%2], i%4 < 2) {
				}
			})
		}
		poll.Until(t, "more responses are complete than gateways were killed", func() bool { return completed.count() > n })
		kill := time.NewTimer(time.Duration(20+rand.IntN(100)) * time.Millisecond)
		<-kill.C
		g.signal(syscall.SIGKILL)
		<-g.exited
		clients.Wait()
		env.run("database", "check")
		if t.Failed() {
			t.Fatalf("the first failure is at kill %d", n)
		}
	}
	g := restart()
	if got, err := post(g.url, paused, smallRequest); err != nil || got.status != http.StatusUnauthorized {
		t.Errorf("the paused key: got %d %s, error %v, want 401", got.status, got.body, err)
	}
	if spent > budget {
		t.Errorf("%d tokens are charged, over the cap of %d", spent, budget)
	}
	t.Logf("%d kills: %d completed responses, %d rows, %d interrupted, %d of the cap's %d tokens charged",
		kills, len(completed.usage), rows, interrupted, spent, budget)
	if len(completed.usage) < kills {
		t.Error("fewer completed responses than kills: the test has not tested enough")
	}
}

// verify compares the completed responses with the ledger's rows. It returns the tokens that are charged to the key, and
// the number of interrupted rows.
func (r *completedResponses) verify(t *testing.T, rows []ledgerRow, secret string) (spent int64, interrupted int) {
	t.Helper()
	byID := map[string]ledgerRow{}
	for _, row := range rows {
		if _, twice := byID[row.ID]; twice {
			t.Errorf("request %s has two rows", row.ID)
		}
		byID[row.ID] = row
		if strings.HasPrefix(secret, row.Key) {
			spent += row.Prompt + row.Completion
		}
		switch row.State {
		case "interrupted":
			interrupted++
			// On PostgreSQL a request has its row from the start, and charges nothing before its first checkpoint.
			if row.Prompt == 0 && (!onPostgres || row.Completion > 0) {
				t.Errorf("an interrupted row does not charge the prompt: %+v", row)
			}
		case "settled":
		default:
			t.Errorf("a row is not closed after the restart: %+v", row)
		}
	}
	for id, usage := range r.usage {
		row, ok := byID[id]
		if !ok || row.State != "settled" || row.Prompt != usage.Get("prompt_tokens").Int() || row.Completion != usage.Get("completion_tokens").Int() {
			t.Errorf("request %s: the response reports %s, the row is %+v", id, usage.Raw, row)
		}
	}
	return spent, interrupted
}

// A stream that a kill interrupts is charged its exact prompt tokens and the completion tokens of its last checkpoint,
// which is at most about a second old.
func TestInterruptedStreamIsChargedItsLastCheckpoint(t *testing.T) {
	t.Parallel() // it waits
	const prompt, inFlight = "Once upon a time", 50
	mock := startMock(t, mockvllm.Options{TokenDelay: 2 * time.Millisecond, MaxModelLen: 200_000}) // the stream outlasts stalls
	env := newEnvironment(t, settings{}, mock.URL())
	g := env.serve()
	resp, err := httpClient.Do(g.request(context.WithoutCancel(t.Context()), http.MethodPost, g.url+"/v1/completions", fmt.Sprintf(
		`{"model":"m","prompt":%q,"max_tokens":190000,"stream":true,"logit_bias":{"%s":-100}}`, prompt, encode(t, mock, "<|end_of_text|>", false)[0])))
	must(t, err)
	defer resp.Body.Close()
	var received atomic.Int64
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
			if gjson.Get(strings.TrimPrefix(lines.Text(), "data: "), "choices.0.text").Str != "" {
				received.Add(1)
			}
		}
	}()
	poll.Until(t, "the stream has a row", func() bool { // when it is a second old
		rows, err := env.ledgerRows(t.Context())
		must(t, err)
		return len(rows) == 1
	})
	row := func() ledgerRow {
		rows, err := env.ledgerRows(t.Context())
		must(t, err)
		if len(rows) != 1 {
			t.Fatalf("got the rows %+v, want one", rows)
		}
		return rows[0]
	}
	saved, beforeCheckpoint := row().Completion, []int64{}
	for range 3 {
		beforeCheckpoint = append(beforeCheckpoint, received.Load())
		poll.Until(t, "a checkpoint is written", func() bool { return row().Completion > saved })
		saved = row().Completion
	}
	g.signal(syscall.SIGKILL)
	<-g.exited
	<-ended
	env.serveWithKey(g.secret)
	got := row()
	// The third checkpoint was taken after the client had received the tokens counted before the second.
	if got.State != "interrupted" || got.Prompt != int64(len(encode(t, mock, prompt, true))) ||
		got.Completion < beforeCheckpoint[1] || got.Completion > received.Load()+inFlight {
		t.Errorf("the client received %d tokens before the checkpoints and %d in all, the row is %+v", beforeCheckpoint, received.Load(), got)
	}
	t.Logf("the client received %d tokens before the checkpoints and %d in all, %d are charged", beforeCheckpoint, received.Load(), got.Completion)
	if beforeCheckpoint[1] == 0 {
		t.Error("the client received nothing before the checkpoint: the test has not tested anything")
	}
}
