package proxy_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"basegate/budget/refusals"
	"basegate/budget/usage"
	"basegate/database"
	"basegate/internal/poll"
	"basegate/internal/ssetest"
	"basegate/proxy"
)

// recordedRefusals is a proxy.RefusalRecorder that keeps what it gets.
type recordedRefusals struct {
	mu  sync.Mutex
	all []refusals.Refusal
}

func (r *recordedRefusals) Record(f *refusals.Refusal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, *f)
}

// await returns the refusals when there are n.
func (r *recordedRefusals) await(t *testing.T, n int) []refusals.Refusal {
	t.Helper()
	var all []refusals.Refusal
	poll.Until(t, "the refusals are recorded", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		all = r.all
		return len(all) >= n
	})
	return all
}

func TestEndedRequestHasItsTokensAndTimes(t *testing.T) {
	t.Parallel()
	ended := make(chan proxy.Ended, 1)
	stream := ssetest.Streams()[0]
	h := newHarness(t, func(o *harnessOptions) { o.ended = func(e proxy.Ended) { ended <- e } }, startBackend(t, respondStream(stream.Events...)))
	h.complete(fmt.Sprintf(`{"model":"m",%s,"stream":true}`, stream.Request))
	got := <-ended
	if got.Model != "m" || got.Backend != "b0" || got.Code != "" || got.Prompt == 0 || got.Completion != 3 {
		t.Errorf("got %+v, want the model, the backend and the tokens of a success", got)
	}
	if got.FirstToken <= 0 || got.Total < got.FirstToken {
		t.Errorf("got the first token after %v and the end after %v", got.FirstToken, got.Total)
	}
	h.complete(`{"model":"m","prompt":"x","temperature":3}`)
	<-ended
	for metric, want := range map[string]int{
		`basegate_requests_total{code="",model="m"}`: 1, `basegate_requests_total{code="invalid_request",model=""}`: 1,
		`basegate_tokens_total{kind="completion",model="m"}`: 3,
	} {
		if got := h.metric(metric); got != want {
			t.Errorf("%s is %d, want %d", metric, got, want)
		}
	}
}

func TestRefusedRequestsOfKnownKeysAreRecorded(t *testing.T) {
	t.Parallel()
	recorded := &recordedRefusals{}
	backend := startBackend(t, respond(http.StatusOK, "application/json", plainResponse))
	h := newHarness(t, func(o *harnessOptions) { o.refusals = recorded }, backend)

	const secret = "do not store this"
	for _, c := range []struct {
		method, path, body string
		want               refusals.Refusal
	}{
		{http.MethodPost, "/v1/completions", `{"model":"m","prompt":"` + secret + `","n":0}`, refusals.Refusal{
			Endpoint: "/v1/completions", Status: 400, Code: "invalid_request", Param: "n", Expected: "expected ",
		}},
		{http.MethodPost, "/v1/completions", `{"model":"m","prompt":"a","do_not_store_this":"` + secret + `"}`, refusals.Refusal{
			Endpoint: "/v1/completions", Status: 400, Code: "invalid_request",
		}},
		{http.MethodPost, "/v1/completions", `{"model":"m","prompt":"a","max_tokns":1}`, refusals.Refusal{
			Endpoint: "/v1/completions", Status: 400, Code: "invalid_request", Expected: `did you mean "max_tokens"?`,
		}},
		{http.MethodPost, "/v1/completions", `{"model":"m","prompt":"a","temperature":"` + secret + `; expected store"}`, refusals.Refusal{
			Endpoint: "/v1/completions", Status: 400, Code: "invalid_request", Param: "temperature", Expected: "expected a number",
		}},
		{http.MethodPost, "/v1/completions", `{"model":"` + secret + `","prompt":"a"}`, refusals.Refusal{
			Endpoint: "/v1/completions", Status: 400, Code: "model_not_found",
		}},
		{http.MethodGet, "/v1/models/" + strings.ReplaceAll(secret, " ", "-"), "", refusals.Refusal{
			Endpoint: "/v1/models/:id", Status: 404, Code: "not_found",
		}},
	} {
		before := len(recorded.await(t, 0))
		req := h.newRequest(t.Context(), c.method, c.path, c.body)
		req.Header.Set("X-Acs-Workload", "batch")
		got := h.do(req)
		all := recorded.await(t, before+1)
		r := all[len(all)-1]
		if r.RequestID != got.header.Get("X-Request-Id") || r.KeyID != h.keyID() || r.AccountID == "" || r.Time.IsZero() || r.Total <= 0 {
			t.Errorf("%s: the refusal of %s is recorded as %+v", c.path, got.header.Get("X-Request-Id"), r)
		}
		if r.Endpoint != c.want.Endpoint || r.Status != c.want.Status || r.Code != c.want.Code || r.Workload != "batch" {
			t.Errorf("%s: got %+v, want %+v", c.path, r, c.want)
		}
		if r.Param != c.want.Param || !strings.HasPrefix(r.Expected, c.want.Expected) || c.want.Expected == "" && r.Expected != "" {
			t.Errorf("%s: got the field %q and %q, want %q and %q", c.body, r.Param, r.Expected, c.want.Param, c.want.Expected)
		}
		if text := strings.Join([]string{r.Model, r.Endpoint, r.User, r.Code, r.Param, r.Expected}, " "); strings.Contains(text, "store") {
			t.Errorf("%s: the refusal holds text of the request: %q", c.path, text)
		}
	}

	principal, err := h.keys.Authenticate(t.Context(), h.secret)
	if err != nil {
		t.Fatal(err)
	}
	h.completeOnBehalfOf(principal.AccountID, principal.KeyID, `{"model":"m","prompt":"a","n":0}`)
	const chat = "/v1/chat/completions"
	h.server.ServeLine(t.Context(), proxy.Line{Account: principal.AccountID, Key: principal.KeyID, Endpoint: chat, Body: []byte(`{"model":"m"}`)}).Release()
	all := recorded.await(t, 8)
	if got := []string{all[6].Endpoint, all[7].Endpoint}; got[0] != "/console/api/completions" || got[1] != chat {
		t.Errorf("the refusals of the console and of a batch are recorded with the endpoints %q, want their paths", got)
	}
	if _, err := h.keys.Pause(t.Context(), h.keyID()); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "the paused key is refused", func() bool { return h.complete(plainRequest).status == http.StatusUnauthorized })
	all = recorded.await(t, 9)
	if last := all[len(all)-1]; last.Status != http.StatusUnauthorized || last.KeyID != h.keyID() {
		t.Errorf("the refusal of a paused key is recorded as %+v", last)
	}
}

func TestUnknownKeysAndRequestsOnTheLedgerAreNotRecordedAsRefusals(t *testing.T) {
	t.Parallel()
	recorded := &recordedRefusals{}
	backend := startBackend(t, respond(500, "text/plain", "Internal Server Error"))
	h := newHarness(t, func(o *harnessOptions) { o.refusals = recorded }, backend)
	if got := h.complete(plainRequest); got.status != http.StatusBadGateway {
		t.Fatalf("got %d %s, want 502", got.status, got.body)
	}
	h.awaitRows(1)
	req := h.newRequest(t.Context(), http.MethodPost, "/v1/completions", plainRequest)
	req.Header.Set("Authorization", "Bearer "+strings.Repeat("x", len(h.secret)))
	if got := h.do(req); got.status != http.StatusUnauthorized {
		t.Fatalf("got %d, want 401", got.status)
	}
	if all := recorded.await(t, 0); len(all) > 0 {
		t.Errorf("recorded %+v", all)
	}
}

func TestAttemptsAreOnTheLedgerIfOneHasFailed(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	failing := startBackend(t, func(w http.ResponseWriter, _ *http.Request) {
		if calls.Add(1) == 1 {
			w.WriteHeader(http.StatusBadGateway)
			io.WriteString(w, "Bad Gateway")
			return
		}
		io.WriteString(w, plainResponse)
	})
	h := newHarness(t, nil, failing)
	got := h.complete(plainRequest)
	if got.status != http.StatusOK {
		t.Fatalf("got %d %s", got.status, got.body)
	}
	h.awaitRows(1)
	retried := h.detail(got)
	classes := []string{}
	for _, a := range retried.Attempts {
		classes = append(classes, a.Backend+" "+a.Class)
		if a.Took <= 0 || a.Start < 0 || a.Start+a.Took > retried.Total+time.Second {
			t.Errorf("an attempt began after %v and took %v, of a request that took %v", a.Start, a.Took, retried.Total)
		}
	}
	if diff := cmp.Diff([]string{"b0 server_error", "b0 success"}, classes); diff != "" {
		t.Errorf("attempts: %s", diff)
	}
	if retried.Attempts[0].Status != 502 {
		t.Errorf("the status of the failed attempt is %d, want 502", retried.Attempts[0].Status)
	}

	got = h.complete(plainRequest)
	h.awaitRows(2)
	if plain := h.detail(got); len(plain.Attempts) != 0 {
		t.Errorf("a request that succeeded at once has the attempts %v", plain.Attempts)
	}
}

// The charge of a line is left to its batch, and has its attempts too.
func TestAttemptsOfALineAreOnTheLedger(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	h := newHarness(t, nil, startBackend(t, func(w http.ResponseWriter, _ *http.Request) {
		if calls.Add(1) == 1 {
			panic(http.ErrAbortHandler)
		}
		io.WriteString(w, plainResponse)
	}))
	result := h.serveLine(plainRequest)
	defer result.Release()
	err := h.db.WriteGrouped(t.Context(), func(tx database.Tx) error { return result.Settlement.Write(t.Context(), tx) })
	if err != nil {
		t.Fatal(err)
	}
	result.Settlement.Commit()
	d, found, err := h.usage.Request(t.Context(), "", result.RequestID)
	if err != nil || !found || len(d.Attempts) != 2 || d.Attempts[0].Class != "reset" || d.Attempts[1].Class != "success" {
		t.Errorf("found %v, error %v, the attempts %+v, want one that was reset and one that succeeded", found, err, d.Attempts)
	}
}

// serveLine serves a line of a batch of the harness's key. The caller ends its settlement and releases it.
func (h *harness) serveLine(body string) proxy.LineResult {
	h.t.Helper()
	return h.serveLineAt(proxy.CompletionsPath, body)
}

// acquirePlace returns a place for a line, once a backend's queue has been read.
func (h *harness) acquirePlace() (place proxy.Place) {
	h.t.Helper()
	poll.Until(h.t, "there is a place for a line", func() bool {
		place, _ = h.server.AcquirePlace("m", 8, false)
		return place != nil
	})
	return place
}

// serveLineAt is serveLine for another endpoint.
func (h *harness) serveLineAt(endpoint, body string) proxy.LineResult {
	h.t.Helper()
	principal, err := h.keys.Authenticate(h.t.Context(), h.secret)
	if err != nil {
		h.t.Fatal(err)
	}
	place := h.acquirePlace()
	defer place.Release()
	result := h.server.ServeLine(h.t.Context(), proxy.Line{
		Batch: "batch_1", Account: principal.AccountID, Key: principal.KeyID, Endpoint: endpoint, Body: []byte(body), Place: place,
	})
	if result.State != proxy.LineEnded || result.Status != http.StatusOK {
		h.t.Fatalf("the line got %d %s", result.Status, result.Body)
	}
	return result
}

func TestBrokenStreamHasItsAttemptOnTheLedger(t *testing.T) {
	t.Parallel()
	h := newHarness(t, nil, startBackend(t, respondStream(event(0, "a", "null"))))
	got := h.complete(streamRequest)
	h.awaitRows(1)
	d := h.detail(got)
	if len(d.Attempts) != 1 || d.Attempts[0].Class != "truncated" {
		t.Errorf("got the attempts %+v, want one that was truncated", d.Attempts)
	}
}

// detail returns what the ledger has of the request of a response.
func (h *harness) detail(r response) usage.Detail {
	h.t.Helper()
	d, found, err := h.usage.Request(h.t.Context(), "", r.header.Get("X-Request-Id"))
	if err != nil || !found {
		h.t.Fatalf("read request: found %v, %v", found, err)
	}
	return d
}

var _ proxy.RefusalRecorder = (*refusals.Recorder)(nil)

func TestLedgerKnowsTheAddressOfTheClient(t *testing.T) {
	t.Parallel()
	backend := newBlockingBackend()
	h := newHarness(t, nil, startBackend(t, backend.ServeHTTP))
	backend.release <- struct{}{}
	if got := h.complete(plainRequest); got.status != 200 {
		t.Fatalf("got %d %s", got.status, got.body)
	}
	keys, err := h.keys.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if used, err := h.ledger.LastUse(t.Context(), keys[0].ID); err != nil || used.Address != "127.0.0.1" {
		t.Errorf("got the last use %+v, %v, want it from 127.0.0.1", used, err)
	}
}
