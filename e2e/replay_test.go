//go:build e2e

package e2e_test

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"basegate/internal/poll"
	"basegate/internal/postgrestest"
	"basegate/mockvllm"
)

const replaySettings = "replay: {enabled: true}\nlimits: {concurrency_per_key: 100}"

// replay sends a completion with X-Acs-Replay.
func (g *gateway) replay(body string) (response, error) {
	r := g.request(g.t.Context(), http.MethodPost, g.url+"/v1/completions", body)
	r.Header.Set("X-Acs-Replay", "true")
	resp, err := httpClient.Do(r)
	if err != nil {
		return response{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return response{status: resp.StatusCode, header: resp.Header, body: string(text)}, err
}

// awaitVersion waits until the gateway knows the version of vLLM, which is part of the name of a kept response.
func (g *gateway) awaitVersion() {
	g.t.Helper()
	poll.Until(g.t, "the version of vLLM is known", func() bool {
		return gjson.Get(g.get(g.admin, "/models").body, "0.backends.0.version").Str != ""
	})
}

// mustReplay is replay of a request that must succeed.
func (g *gateway) mustReplay(body string) response {
	g.t.Helper()
	got, err := g.replay(body)
	if err != nil || got.status != http.StatusOK {
		g.t.Fatalf("got %d %s, %v", got.status, got.body, err)
	}
	return got
}

// An evaluation that is run again gets the same bytes, costs nothing, and leaves no text in the database, the storage, a backup, the
// log or the metrics.
func TestReplayedEvaluationIsIdenticalAndFree(t *testing.T) {
	const marker = "marker-replay-Qx7"
	g, mock := startGateway(t, settings{extra: replaySettings}, mockvllm.Options{})
	g.awaitVersion()
	var bodies []string
	for i := range 40 {
		bodies = append(bodies, fmt.Sprintf(`{"model":"m","prompt":"%s %d","max_tokens":5,"temperature":0,"echo":%v,"logprobs":1}`, marker, i, i%2 == 0),
			fmt.Sprintf(`{"model":"m","prompt":"%s %d","max_tokens":5,"seed":%d,"stream":true,"echo":true}`, marker, i, i),
			fmt.Sprintf(`{"model":"m","prompt":[1,%d,%d],"temperature":0,"max_tokens":1,"logprobs":1,"seed":1234,"echo":true}`, i, i%7)) // as lm-eval sends it
	}
	first := map[string]response{}
	for _, body := range bodies {
		first[body] = g.mustReplay(body)
	}
	sent := completionRequests(mock)
	for _, body := range bodies {
		got, before := g.mustReplay(body), first[body]
		if got.header.Get("X-Acs-Replay") != "hit" || got.body != before.body || got.header.Get("X-Acs-Replay-Of") != before.header.Get("X-Request-Id") {
			t.Fatalf("got %v %s, want %s again", got.header, got.body, before.body)
		}
	}
	if n := completionRequests(mock); n != sent {
		t.Errorf("the second run sent %d requests to the backend", n-sent)
	}
	replayed := 0
	for _, row := range g.usageRows() {
		if row.State == "replayed" {
			if replayed++; row.Prompt+row.Completion != 0 {
				t.Errorf("a replay has cost %+v", row)
			}
		}
	}
	total := gjson.Get(g.run("usage", "--by", "model", "--json"), "0")
	saved, spent, requests := total.Get("saved_tokens").Int(), total.Get("total_tokens").Int(), total.Get("requests").Int()
	if replayed != len(bodies) || saved == 0 || saved != spent || requests != int64(2*len(bodies)) {
		t.Errorf("%d replays in %d requests saved %d tokens, want %d, twice as many, and the %d tokens that were spent", replayed, requests, saved, len(bodies), spent)
	}
	outputs := map[string]string{"/metrics": g.get(g.admin, "/metrics").body}
	if !onPostgres {
		backup := filepath.Join(t.TempDir(), "copy.db")
		g.run("backup", backup)
		maps.Copy(outputs, readFiles(t, filepath.Dir(backup)))
	}
	g.run("database", "check")
	g.signal(syscall.SIGTERM)
	g.waitExit()
	outputs["stderr"] = g.stderr.String()
	maps.Copy(outputs, readFiles(t, g.dir))
	for output, text := range outputs {
		if strings.Contains(text, marker) {
			t.Errorf("a text is in %s: %s", output, lineContaining(text, marker))
		}
	}
}

// While the S3 server is away, requests are served without replays, and the log and a metric say so. What it has kept before is
// replayed when it is back.
func TestFaultsReplaysSurviveAnS3ServerThatIsAway(t *testing.T) {
	t.Parallel() // it waits
	mock := startMock(t, mockvllm.Options{Instant: true})
	env := newEnvironment(t, settings{bucket: true, extra: replaySettings}, mock.URL())
	g := env.serve()
	g.awaitVersion()
	body := func(name string, i int64) string {
		return fmt.Sprintf(`{"model":"m","prompt":"%s %d","max_tokens":5,"temperature":0,"stream":%v}`, name, i, i%2 == 0)
	}
	kept := map[string]string{}
	for i := range int64(10) {
		kept[body("kept", i)] = g.mustReplay(body("kept", i)).body
	}
	var sent, charged atomic.Int64
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				got, err := g.replay(body("under load", sent.Add(1)))
				if err != nil || got.status != http.StatusOK || got.header.Get("X-Acs-Replay") == "hit" {
					t.Errorf("under load: got %d %s, %v", got.status, got.body, err)
					return
				}
				charged.Add(1)
			}
		})
	}
	const failures = "basegate_replay_failures_total"
	poll.Until(t, "responses are kept", func() bool { return charged.Load() > 50 })
	if n := g.metric(failures); n != 0 {
		t.Errorf("%v failures while the bucket is there", n)
	}
	env.bucket.Stop()
	poll.Until(t, "the gateway notices it", func() bool { return g.metric(failures) > 0 })
	before := charged.Load()
	poll.Until(t, "requests go on", func() bool { return charged.Load() > before+50 })
	close(stop)
	clients.Wait()
	if !strings.Contains(g.stderr.String(), "responses cannot be kept or replayed at the moment") {
		t.Errorf("the log does not say so:\n%s", g.stderr.tail())
	}
	for request := range kept {
		if got := g.mustReplay(request); got.header.Get("X-Acs-Replay") != "miss" {
			t.Errorf("without a bucket: got %v", got.header)
		}
		charged.Add(1)
	}
	env.bucket.Restart()
	for request, want := range kept {
		poll.Until(t, "it is replayed again", func() bool {
			got := g.mustReplay(request)
			if got.header.Get("X-Acs-Replay") != "hit" {
				charged.Add(1)
				return false
			}
			if got.body != want {
				t.Errorf("got %s, want %s", got.body, want)
			}
			return true
		})
	}
	settled := int64(0)
	for _, row := range env.usageRows() {
		if row.State == "settled" {
			settled++
		}
	}
	if want := charged.Load() + int64(len(kept)); settled != want {
		t.Errorf("%d requests are charged, want %d", settled, want)
	}
	env.run("database", "check")
}

// After kill -9 under load, each response is kept whole or not at all, and the database is consistent.
func TestKillLeavesNoHalfResponse(t *testing.T) {
	mock := startMock(t, mockvllm.Options{})
	env := newEnvironment(t, settings{extra: replaySettings}, mock.URL())
	g := env.serve()
	g.awaitVersion()
	bodyOf := func(round, client, i int) string {
		return fmt.Sprintf(`{"model":"m","prompt":"%d %d %d","max_tokens":5,"temperature":0,"stream":%v}`, round, client, i, i%2 == 0)
	}
	for round := range 5 {
		var mu sync.Mutex
		received := map[string]string{} // whole responses, by their requests
		var clients sync.WaitGroup
		for client := range 8 {
			clients.Go(func() {
				for i := 0; ; i++ {
					body := bodyOf(round, client, i)
					got, err := g.replay(body)
					if err != nil || got.status != http.StatusOK {
						return
					}
					mu.Lock()
					received[body] = got.body
					mu.Unlock()
				}
			})
		}
		poll.Until(t, "responses under load", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(received) > 20
		})
		g.signal(syscall.SIGKILL)
		g.waitExit()
		clients.Wait()
		env.run("database", "check")
		g = env.serveWithKey(g.secret)
		g.awaitVersion()
		for body, want := range received { // a response whose last byte was sent was kept before
			if got := g.mustReplay(body); got.header.Get("X-Acs-Replay") != "hit" || got.body != want {
				t.Fatalf("after the kill: got %v %s, want %s again", got.header, got.body, want)
			}
		}
	}
}

// Two gateways that store the same response at once keep one, and either replays what the other has stored.
func TestReplaysAreThoseOfAllGateways(t *testing.T) {
	server := postgrestest.Start(t)
	first, second, _ := startTwo(t, server, settings{extra: replaySettings, bucket: true}, mockvllm.Options{FirstDelay: 50 * time.Millisecond})
	first.awaitVersion()
	second.awaitVersion()
	const body = `{"model":"m","prompt":"both","max_tokens":5,"seed":1}`
	var clients sync.WaitGroup
	for i := range 16 {
		g := []*gateway{first, second}[i%2]
		clients.Go(func() {
			if got, err := g.replay(body); err != nil || got.status != http.StatusOK {
				t.Errorf("got %d %s, %v", got.status, got.body, err)
			}
		})
	}
	clients.Wait()
	want := first.mustReplay(body)
	for _, g := range []*gateway{first, second} {
		if got := g.mustReplay(body); got.header.Get("X-Acs-Replay") != "hit" || got.body != want.body {
			t.Errorf("got %v %s, want %s", got.header, got.body, want.body)
		}
	}
	first.run("database", "check")
}

// A batch that asks for replays gets the responses of live requests, and its lines cost nothing.
func TestLinesOfABatchAreReplayed(t *testing.T) {
	g, mock := startGateway(t, settings{extra: replaySettings}, mockvllm.Options{})
	g.awaitVersion()
	body := func(i int) string {
		return fmt.Sprintf(`{"model":"m","prompt":"line %d","max_tokens":5,"temperature":0}`, i)
	}
	var lines strings.Builder
	want := map[string]string{}
	for i := range 20 {
		want[fmt.Sprint(i)] = g.mustReplay(body(i)).body
		fmt.Fprintf(&lines, `{"custom_id":"%d","method":"POST","url":"/v1/completions","body":%s}`+"\n", i, body(i))
	}
	sent := completionRequests(mock)
	input := gjson.Get(g.upload(g.secret, lines.String(), "purpose", "batch").body, "id").Str
	create := func(file string) response {
		return g.do(g.request(t.Context(), http.MethodPost, g.url+"/v1/batches",
			fmt.Sprintf(`{"input_file_id":%q,"endpoint":"/v1/completions","completion_window":"1h","replay":true}`, file)))
	}
	created := create(input)
	if created.status != http.StatusOK {
		t.Fatalf("got %d %s", created.status, created.body)
	}
	b := g.awaitEnd(gjson.Get(created.body, "id").Str, "completed")
	output := g.get(g.url, "/v1/files/"+b.Get("output_file_id").Str+"/content").body
	for line := range strings.Lines(output) {
		id := gjson.Get(line, "custom_id").Str
		if got := gjson.Get(line, "response.body").Raw; got != want[id] {
			t.Errorf("line %s: got %s, want %s", id, got, want[id])
		}
	}
	if n := completionRequests(mock); n != sent || b.Get("request_counts.completed").Int() != 20 || b.Get("usage.total_tokens").Int() != 0 {
		t.Errorf("got %s after %d requests to the backend, want 20 lines that cost nothing", b.Raw, n-sent)
	}
	sampled := gjson.Get(g.upload(g.secret, `{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"model":"m","prompt":"a"}}`+"\n", "purpose", "batch").body, "id").Str
	failed := g.awaitEnd(gjson.Get(create(sampled).body, "id").Str, "failed")
	if e := failed.Get("errors.data.0"); e.Get("param").Str != "X-Acs-Replay" || e.Get("line").Int() != 1 {
		t.Errorf("got %s, want the error of the line that samples", failed.Raw)
	}
}
