package proxy_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tidwall/gjson"
	"go.uber.org/zap"

	"basegate/batch"
	"basegate/batch/storage"
	"basegate/budget"
	"basegate/budget/quota"
	"basegate/budget/usage"
	"basegate/database"
	"basegate/internal/poll"
	"basegate/proxy"
	"basegate/proxy/replay"
)

// replayHarness is a harness that keeps responses, with a backend that counts the requests and whose responses all differ.
type replayHarness struct {
	*harness
	requests *atomic.Int64
	files    string
}

const replayed = `{"model":"m","prompt":"markerprompt","max_tokens":3,"temperature":0,"seed":9007199254740993}`

// startReplays starts a backend and a harness that keeps its responses. gate is called in each request; nil: none.
func startReplays(t *testing.T, gate func(n int64), change func(*harnessOptions)) *replayHarness {
	t.Helper()
	h := &replayHarness{requests: new(atomic.Int64)}
	backend := startVersion(t, "0.33.0", func(w http.ResponseWriter, r *http.Request) {
		n := h.requests.Add(1)
		if gate != nil {
			gate(n)
		}
		body, _ := io.ReadAll(r.Body)
		id, text := fmt.Sprintf("cmpl-%d", n), "markercompletion"
		if gjson.GetBytes(body, "stream").Bool() {
			event := `data: {"id":"` + id + `","choices":[{"index":0,"text":"%s","finish_reason":%s}]}` + "\n\n"
			respondStream(fmt.Sprintf(event, text, "null"), fmt.Sprintf(event, "b", `"stop"`),
				`data: {"id":"x","choices":[],"usage":{"prompt_tokens":2,"total_tokens":4,"completion_tokens":2}}`+"\n\n", "data: [DONE]\n\n")(w, r)
			return
		}
		respond(200, "application/json", `{"id":"`+id+`","choices":[{"index":0,"text":"`+text+`","finish_reason":"stop"}],`+
			`"usage":{"prompt_tokens":2,"total_tokens":5,"completion_tokens":3}}`)(w, r)
	})
	h.harness = newHarness(t, func(o *harnessOptions) {
		o.replays = true
		if change != nil {
			change(o)
		}
	}, backend)
	h.files = h.database + ".files"
	poll.Until(t, "the version of the backend", func() bool {
		m, _ := h.fleet.Model("m")
		return m.Backends()[0].Version() == "0.33.0"
	})
	return h
}

// replay posts a completion with the header X-Acs-Replay.
func (h *replayHarness) replay(header, body string) response {
	h.t.Helper()
	req := h.newRequest(h.t.Context(), http.MethodPost, proxy.CompletionsPath, body)
	req.Header.Set("X-Acs-Replay", header)
	req.Header.Set("X-Acs-Run", "repeated")
	return h.do(req)
}

// want checks what the header says, and how many requests the backend has had.
func (h *replayHarness) want(got response, result string, requests int64) {
	h.t.Helper()
	if got.status != http.StatusOK || got.header.Get("X-Acs-Replay") != result || h.requests.Load() != requests {
		h.t.Errorf("got %d %s, X-Acs-Replay %q after %d requests, want %q after %d",
			got.status, got.body, got.header.Get("X-Acs-Replay"), h.requests.Load(), result, requests)
	}
}

func TestAResponseIsReplayed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ body, result, equal string }{
		"plain":  {replayed, "stored", `{"seed": 9007199254740993, "prompt":"\u006darkerprompt", "max_tokens":3,"temperature":0,"model":"m","prompt_cache_key":"x"}`},
		"stream": {strings.Replace(replayed, "{", `{"stream":true,`, 1), "miss", strings.Replace(replayed, "{", `{ "stream" : true, `, 1)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := startReplays(t, nil, nil)
			first := h.replay("true", c.body)
			h.want(first, c.result, 1)
			second := h.replay("true", c.equal)
			h.want(second, "hit", 1)
			if second.body != first.body || second.header.Get("Content-Type") != first.header.Get("Content-Type") {
				t.Errorf("got\n%s, want the same bytes again:\n%s", second.body, first.body)
			}
			if _, err := strconv.ParseUint(second.header.Get("Age"), 10, 31); err != nil ||
				second.header.Get("X-Acs-Replay-Of") != first.header.Get("X-Request-Id") {
				t.Errorf("got the header %v", second.header)
			}
			row, found, err := h.usage.Request(t.Context(), "", second.header.Get("X-Request-Id"))
			paid, _, _ := h.usage.Request(t.Context(), "", first.header.Get("X-Request-Id"))
			if err != nil || !found || row.State != usage.Replayed || row.PromptTokens+row.CompletionTokens != 0 || row.Status != http.StatusOK ||
				row.SavedTokens != paid.PromptTokens+paid.CompletionTokens || row.SavedTokens == 0 || row.Run != "repeated" {
				t.Errorf("got the row %+v, %v, want one that saved what %+v has cost", row, err, paid)
			}
			refreshed := h.replay("refresh", c.body)
			h.want(refreshed, c.result, 2)
			again := h.replay("true", c.body)
			if h.want(again, "hit", 2); again.body != refreshed.body || again.body == first.body {
				t.Errorf("after a refresh: got %s, want %s", again.body, refreshed.body)
			}
			without := h.complete(c.body)
			if h.want(without, "", 3); without.header.Get("Age") != "" {
				t.Errorf("without the header: got %v", without.header)
			}
			h.wantNoMarkers()
		})
	}
}

// wantNoMarkers checks that neither the prompt nor the completion is stored or logged.
func (h *replayHarness) wantNoMarkers() {
	h.t.Helper()
	if strings.Contains(h.log.String(), "marker") {
		h.t.Error("the log holds a text")
	}
	root := filepath.Dir(h.database)
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(filepath.Join(root, name))
		if strings.Contains(string(content), "marker") {
			h.t.Errorf("%s holds a text", name)
		}
		return err
	})
	if err != nil {
		h.t.Error(err)
	}
}

func TestTheUserTagOfAReplayIsThatOfItsOwnRequest(t *testing.T) {
	t.Parallel()
	h := startReplays(t, nil, nil)
	h.want(h.replay("true", strings.Replace(replayed, "{", `{"user":"ada",`, 1)), "stored", 1)
	got := h.replay("true", strings.Replace(replayed, "{", `{"user":"eve",`, 1))
	h.want(got, "hit", 1)
	if got.header.Get("X-Acs-User") != "eve" || gjson.Get(got.body, "user").Str != "eve" || strings.Contains(got.body, "ada") {
		t.Errorf("got %v %s", got.header, got.body)
	}
}

// A replay needs neither a budget nor a backend.
func TestAReplayCostsNothing(t *testing.T) {
	t.Parallel()
	h := startReplays(t, nil, nil)
	h.want(h.replay("true", replayed), "stored", 1)
	h.updateKey(withCaps(func(c *quota.Caps) { c[quota.MonthTotal] = quota.Limit(1) }))
	if got := h.complete(replayed); got.status != http.StatusTooManyRequests {
		t.Fatalf("got %d %s, want a budget that is used up", got.status, got.body)
	}
	h.want(h.replay("true", replayed), "hit", 1)
}

func TestWhatCannotBeRepeatedIsRefused(t *testing.T) {
	t.Parallel()
	h := startReplays(t, nil, nil)
	for name, c := range map[string]struct{ header, body, text string }{
		"sampled":       {"true", `{"model":"m","prompt":"a"}`, "temperature: 0 or a seed"},
		"temperature":   {"true", `{"model":"m","prompt":"a","temperature":0.1}`, "temperature: 0 or a seed"},
		"null":          {"true", `{"model":"m","prompt":"a","temperature":null,"seed":null}`, "temperature: 0 or a seed"},
		"scored longer": {"refresh", `{"model":"m","prompt":"a","prompt_logprobs":0,"max_tokens":2}`, "max_tokens: 1"},
		"value":         {"yes", replayed, "expected true or refresh"},
	} {
		got := h.replay(c.header, c.body)
		if e := gjson.Get(got.body, "error"); got.status != http.StatusBadRequest || e.Get("code").Str != "invalid_request" ||
			e.Get("param").Str != "X-Acs-Replay" || !strings.Contains(e.Get("message").Str, c.text) {
			t.Errorf("%s: got %d %s, want 400 with %q", name, got.status, got.body, c.text)
		}
	}
	for i, body := range []string{
		`{"model":"m","prompt":"a","temperature":0.0}`, `{"model":"m","prompt":"a","seed":1}`, `{"model":"m","prompt":"a","temperature":-0}`,
		`{"model":"m","prompt":"a","prompt_logprobs":0,"max_tokens":1}`, `{"model":"m","prompt":"a","echo":true,"logprobs":0,"max_tokens":1}`,
	} {
		h.want(h.replay("TRUE", body), "stored", int64(i+1))
	}
	off := startReplays(t, nil, func(o *harnessOptions) { o.replays = false })
	if got := off.replay("true", replayed); got.status != http.StatusBadRequest || !strings.Contains(got.body, "replay.enabled") {
		t.Errorf("where replay is off: got %d %s", got.status, got.body)
	}
	off.want(off.replay("false", replayed), "", 1)
}

// What would be refused is refused in an estimate too.
func TestAnEstimateIsRefusedWhereAReplayIs(t *testing.T) {
	t.Parallel()
	h := startReplays(t, nil, nil)
	off := startReplays(t, nil, func(o *harnessOptions) { o.replays = false })
	for name, c := range map[string]struct {
		on           *replayHarness
		header, body string
		status       int
	}{
		"repeatable": {h, "true", replayed, http.StatusOK},
		"sampled":    {h, "true", `{"model":"m","prompt":"a"}`, http.StatusBadRequest},
		"value":      {h, "yes", replayed, http.StatusBadRequest},
		"off":        {off, "true", replayed, http.StatusBadRequest},
	} {
		req := c.on.newRequest(t.Context(), http.MethodPost, "/v1/estimate", c.body)
		req.Header.Set("X-Acs-Replay", c.header)
		got := c.on.do(req)
		if got.status != c.status || got.header.Get("X-Acs-Replay") != "" || got.status != http.StatusOK && gjson.Get(got.body, "error.param").Str != "X-Acs-Replay" {
			t.Errorf("%s: got %d %v %s", name, got.status, got.header, got.body)
		}
	}
}

// Failures are not kept.
func TestOnlyWholeResponsesAreKept(t *testing.T) {
	t.Parallel()
	failing := newHarness(t, func(o *harnessOptions) { o.replays = true }, startVersion(t, "0.33.0", respondStream("data: {\"choices\":[{\"index\":0,\"text\":\"a\",\"finish_reason\":null}]}\n\n")))
	req := failing.newRequest(t.Context(), http.MethodPost, proxy.CompletionsPath, strings.Replace(replayed, "{", `{"stream":true,`, 1))
	req.Header.Set("X-Acs-Replay", "true")
	if got := failing.do(req); !strings.Contains(got.body, `"error"`) {
		t.Errorf("got %s, want a stream that breaks off", got.body)
	}
	var kept int
	if err := failing.db.Read().QueryRow(`SELECT count(*) FROM replays`).Scan(&kept); err != nil || kept != 0 {
		t.Errorf("%d responses are kept, %v", kept, err)
	}
}

func TestEqualRequestsAtOnceAskOnce(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	h := startReplays(t, func(int64) { <-release }, nil)
	done := make(chan response)
	ask := func() { done <- h.replay("true", replayed) }
	go ask()
	poll.Until(t, "the first request at the backend", func() bool { return h.requests.Load() == 1 })
	for range 3 {
		go ask()
	}
	poll.Until(t, "all requests in flight", func() bool { return h.server.InFlight() == 4 })
	close(release)
	results := map[string]int{}
	for range 4 {
		results[(<-done).header.Get("X-Acs-Replay")]++
	}
	if h.requests.Load() != 1 || results["stored"] != 1 || results["hit"] != 3 {
		t.Errorf("got %v after %d requests, want one that is stored and three hits", results, h.requests.Load())
	}
}

// A full disk costs replays and no response.
func TestAFullDiskCostsReplaysOnly(t *testing.T) {
	t.Parallel()
	h := startReplays(t, nil, func(o *harnessOptions) { o.storage = func(s storage.Store) storage.Store { return fullStorage{s} } })
	h.want(h.replay("true", replayed), "miss", 1)
	h.want(h.replay("true", replayed), "miss", 2)
}

type fullStorage struct{ storage.Store }

func (fullStorage) Put(context.Context, string, []byte, bool) error { return syscall.ENOSPC }

func TestAReceiptOfAReplayNamesTheFirst(t *testing.T) {
	t.Parallel()
	h := startReplays(t, nil, func(o *harnessOptions) { o.receipts = true })
	for _, body := range []string{replayed, strings.Replace(replayed, "{", `{"stream":true,`, 1)} {
		first := h.replay("true", body)
		req := h.newRequest(t.Context(), http.MethodPost, proxy.CompletionsPath, body)
		req.Header.Set("X-Acs-Replay", "true")
		req.Header.Set("X-Acs-Receipt", "true")
		got := h.do(req)
		if got.status != http.StatusOK || got.header.Get("X-Acs-Replay") != "hit" {
			t.Fatalf("got %d %v %s", got.status, got.header, got.body)
		}
		r := h.receiptOf(got)
		if err := r.Verify([]byte(body), []byte(got.body), h.receipts.VerifierKey()); err != nil {
			t.Error(err)
		}
		if e := r.Entry; e.Kind != "replay" || e.ReplayOf != first.header.Get("X-Request-Id") || e.Usage.TotalTokens != 0 ||
			e.VLLMVersion != "0.33.0" || e.GPU != "H100" || strings.Join(e.FinishReasons, " ") != "stop" {
			t.Errorf("got the entry %+v", e)
		}
	}
}

func TestALineOfABatchIsReplayed(t *testing.T) {
	t.Parallel()
	h := startReplays(t, nil, nil)
	first := h.replay("true", replayed)
	key, err := h.keys.Authenticate(t.Context(), h.secret)
	if err != nil {
		t.Fatal(err)
	}
	line := proxy.Line{
		Batch: "batch_1", Account: key.AccountID, Key: key.KeyID, Endpoint: proxy.CompletionsPath, Body: []byte(replayed),
		Deadline: time.Now().Add(time.Hour), Replay: true, Memory: h.server.Allocate(key.KeyID),
	}
	got := h.server.ServeLine(t.Context(), line)
	defer got.Release()
	if got.State != proxy.LineEnded || got.Status != http.StatusOK || string(got.Body) != first.body || got.Settlement == nil ||
		got.Usage.Prompt+got.Usage.Completion != 0 || h.requests.Load() != 1 {
		t.Fatalf("got %+v %s", got, got.Body)
	}
	err = h.db.WriteGrouped(t.Context(), func(tx database.Tx) error {
		return budget.WriteSettlements(t.Context(), tx, []budget.Settlement{got.Settlement})
	})
	got.Settlement.Commit()
	row, found, readErr := h.usage.Request(t.Context(), "", got.RequestID)
	if err := errors.Join(err, readErr); err != nil || !found || row.State != usage.Replayed || row.SavedTokens != 5 {
		t.Errorf("got the row %+v, %v", row, err)
	}
	if _, err := h.server.CheckLine(t.Context(), key, proxy.CompletionsPath, []byte(`{"model":"m","prompt":"a"}`), true); err == nil {
		t.Error("a line that samples is accepted in a batch that replays")
	}
}

// newReplays opens the store of responses of a harness.
func newReplays(t *testing.T, h *harness, wrap func(storage.Store) storage.Store) *replay.Store {
	t.Helper()
	disk, err := storage.OpenDisk(h.database + ".files")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { disk.Close() })
	var files storage.Store = disk
	if wrap != nil {
		files = wrap(disk)
	}
	s := replay.New(h.db, replay.Settings{MaxBytes: 1 << 20, MaxBytesPerAccount: 1 << 20, Keep: time.Hour}, zap.NewNop())
	s.Start(t.Context(), batch.New(h.db, files, nil, batch.Settings{}, zap.NewNop()))
	t.Cleanup(s.Close)
	return s
}
