package proxy_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"basegate/budget"
	"basegate/budget/admission"
	"basegate/budget/quota"
	"basegate/budget/usage"
	"basegate/identity"
	"basegate/internal/poll"
)

// withCaps returns a change of a key that changes its caps.
func withCaps(change func(*quota.Caps)) func(*identity.Key) {
	return func(f *identity.Key) { change(&f.Caps) }
}

// updateKey changes the harness's key.
func (h *harness) updateKey(change func(*identity.Key)) {
	h.t.Helper()
	all, err := h.keys.List(h.t.Context())
	if err == nil {
		_, err = h.keys.Set(h.t.Context(), all[0].ID, change)
	}
	if err != nil {
		h.t.Fatal(err)
	}
}

func TestCapClampsThenRefuses(t *testing.T) {
	t.Parallel()
	var received []string
	h := newHarness(t, nil, startBackend(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		received = append(received, string(body))
		respond(200, "application/json", `{"choices":[{"index":0,"text":"x","finish_reason":"length"}],"usage":{"prompt_tokens":10,"completion_tokens":7}}`)(w, r)
	}))
	complete := func(maxTokens int) response {
		return h.complete(fmt.Sprintf(`{"model":"m","prompt":[1,2,3,4,5,6,7,8,9,10],"max_tokens":%d}`, maxTokens))
	}
	if got := complete(7); got.header.Get("X-Ratelimit-Limit-Tokens") != "" {
		t.Errorf("without a cap: X-Ratelimit-Limit-Tokens is %q", got.header.Get("X-Ratelimit-Limit-Tokens"))
	}
	h.updateKey(withCaps(func(c *quota.Caps) { c[quota.MonthTotal] = quota.Limit(17 + 17 + 12) }))
	whole := complete(7)
	if whole.status != 200 || whole.header.Get("X-Acs-Max-Tokens-Clamped") != "" || whole.header.Get("X-Ratelimit-Limit-Tokens") != "46" ||
		whole.header.Get("X-Ratelimit-Remaining-Tokens") != "12" || whole.header.Get("X-Ratelimit-Reset-Tokens") == "" {
		t.Errorf("a request that fits: got %d, headers %v", whole.status, whole.header)
	}
	clamped := complete(9)
	if clamped.status != 200 || clamped.header.Get("X-Acs-Max-Tokens-Clamped") != "requested=9,applied=2,reason=budget" {
		t.Errorf("a request that fits in part: got %d, headers %v", clamped.status, clamped.header)
	}
	if got := received[len(received)-1]; !strings.Contains(got, `"max_tokens":2}`) {
		t.Errorf("the backend received %s, want max_tokens 2", got)
	}
	refused := complete(1)
	for _, part := range []string{`"code":"budget_exceeded"`, `"type":"insufficient_quota"`, `"scope":"key"`, `"window":"month"`, `"meter":"total"`, `"limit":46`, `"reserved":0`, `"resets_at":"`} {
		if refused.status != 429 || !strings.Contains(refused.body, part) {
			t.Errorf("got %d %s, want 429 with %s", refused.status, refused.body, part)
		}
	}
	if refused.header.Get("X-Should-Retry") != "false" || refused.header.Get("X-Ratelimit-Remaining-Tokens") != "0" || refused.header.Get("Retry-After") != "" {
		t.Errorf("headers of the refusal: %v", refused.header)
	}
	h.awaitRows(3) // not one for the refusal
}

// A request is refused only by the exact count of its prompt. A prompt whose upper bound fits is not counted.
func TestCapCountsAPromptOnlyIfItsBoundDoesNotFit(t *testing.T) {
	t.Parallel()
	var tokenizeCalls atomic.Int64
	var admitted atomic.Bool // a prompt whose request takes long is counted after that, too
	h := newHarness(t, nil, startFilteredBackend(t, func(w http.ResponseWriter, r *http.Request) {
		admitted.Store(true)
		respond(200, "application/json", plainResponse)(w, r)
	}, func(r *http.Request) bool {
		if r.URL.Path == "/tokenize" && !admitted.Load() {
			tokenizeCalls.Add(1)
		}
		return true
	}))
	text := strings.Repeat("word ", 20) // 100 bytes, 21 tokens
	for _, c := range []struct {
		limit   int64 // tokens left
		calls   int64 // of the tokenizer
		status  int
		clamped string
	}{
		{100 + 2 + 16, 0, 200, ""}, // the bound: the bytes, the special token that the backend has reported, and one in reserve
		{100 + 2 + 15, 1, 200, ""},
		{21 + 16, 1, 200, ""},
		{21 + 15, 1, 200, "requested=16,applied=15,reason=budget"},
		{21, 1, 429, ""},
	} {
		used := int64(0)
		all, err := h.usage.List(t.Context(), usage.Filter{}, usage.ByModel)
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range all {
			used += row.PromptTokens + row.CompletionTokens
		}
		h.updateKey(withCaps(func(caps *quota.Caps) { caps[quota.MonthTotal] = quota.Limit(used + c.limit) }))
		tokenizeCalls.Store(0)
		admitted.Store(false)
		got := h.complete(fmt.Sprintf(`{"model":"m","prompt":%q}`, text))
		if got.status != c.status || tokenizeCalls.Load() != c.calls || got.header.Get("X-Acs-Max-Tokens-Clamped") != c.clamped {
			t.Errorf("%d tokens left: got %d after %d calls of the tokenizer, want %d after %d; headers %v: %s",
				c.limit, got.status, tokenizeCalls.Load(), c.status, c.calls, got.header, got.body)
		}
	}
}

// If the tokenizer does not respond, a request whose bound exceeds the cap fails, but not with 429.
func TestCapNeverRefusesByTheBound(t *testing.T) {
	t.Parallel()
	hangUp := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	for name, tokenizer := range map[string][]http.HandlerFunc{
		"fails":                       {respond(500, "text/plain", "no")},
		"hangs up":                    {hangUp},
		"of one of two backends only": {respond(404, "text/plain", "no"), hangUp},
	} {
		var backends []string
		for _, handler := range tokenizer {
			backends = append(backends, startBackendWithTokenizer(t, handler))
		}
		h := newHarness(t, nil, backends...)
		h.updateKey(withCaps(func(c *quota.Caps) { c[quota.DayTotal] = quota.Limit(50) }))
		got := h.complete(fmt.Sprintf(`{"model":"m","prompt":%q}`, strings.Repeat("word ", 20)))
		if got.status != 502 || !strings.Contains(got.body, `"upstream_unreachable"`) || !strings.Contains(got.body, "tokenizer") {
			t.Errorf("a tokenizer that %s: got %d %s, want 502 upstream_unreachable", name, got.status, got.body)
		}
	}
}

// Where a backend has no /tokenize, the upper bound decides whether the request is refused or clamped, and the message
// says so.
func TestBoundDecidesOnACapWithoutATokenizer(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusNotFound, http.StatusMethodNotAllowed} {
		h := newHarness(t, nil, startBackendWithTokenizer(t, respond(status, "application/json", "{}")))
		used := int64(0)
		for _, c := range []struct {
			name    string
			limit   int64 // tokens left
			body    string
			status  int
			clamped string
		}{
			{"the bound fits", 100 + 4 + 16, "", 200, ""},
			{"the bound leaves less than max_tokens", 100 + 4 + 15, "", 200, "requested=16,applied=15,reason=budget"},
			{"the bound leaves nothing", 100 + 4, "", 429, ""},
			{"min_tokens does not fit", 100 + 4 + 7, `,"min_tokens":8`, 429, ""},
			{"a truncated prompt fits", 10 + 16, `,"truncate_prompt_tokens":10`, 200, ""},
			{"a truncated prompt does not fit", 10, `,"truncate_prompt_tokens":10`, 429, ""},
		} {
			h.updateKey(withCaps(func(caps *quota.Caps) { caps[quota.MonthTotal] = quota.Limit(used + c.limit) }))
			body := fmt.Sprintf(`{"model":"m","prompt":%q%s}`, strings.Repeat("word ", 20), c.body)
			estimate, got := h.post("/v1/estimate", body), h.complete(body)
			if estimate.status != c.status || got.status != c.status || got.header.Get("X-Acs-Max-Tokens-Clamped") != c.clamped {
				t.Errorf("%s: got %d %v %s, estimated %d %s, want %d %q", c.name, got.status, got.header, got.body, estimate.status, estimate.body, c.status, c.clamped)
			}
			if got.status == 429 && !strings.Contains(got.body, "judged by its bytes") {
				t.Errorf("%s: got %s, want a message that says that the bytes decided", c.name, got.body)
			}
			if got.status == 200 {
				used += 4 // by the usage in the response
			}
		}
	}
}

// A request that does not fit only because of other reservations waits until they have been settled.
func TestRequestWaitsForReservationsOfOthers(t *testing.T) {
	t.Parallel()
	backend := newBlockingBackend()
	h := newHarness(t, nil, startBackend(t, backend.ServeHTTP))
	h.updateKey(withCaps(func(c *quota.Caps) { c[quota.MonthTotal] = quota.Limit(100) }))
	body := `{"model":"m","prompt":[1,2,3,4],"max_tokens":60}`
	first := h.completeAsync(t.Context(), body)
	<-backend.arrived
	second := h.completeAsync(t.Context(), body)
	h.awaitQueue("the second request waits", budget.Stats{Running: 1, Waiting: 1})
	select {
	case <-backend.arrived:
		t.Error("both requests were forwarded, which may exceed the cap")
	case got := <-second:
		t.Errorf("the second request: got %d %s, want it to wait", got.status, got.body)
	case <-time.NewTimer(50 * time.Millisecond).C:
	}
	backend.release <- struct{}{}
	backend.release <- struct{}{}
	for _, one := range []<-chan response{first, second} {
		if got := <-one; got.status != 200 || got.header.Get("X-Acs-Max-Tokens-Clamped") != "" {
			t.Errorf("got %d, want 200 without clamping; headers %v", got.status, got.header)
		}
	}
}

// A request without caps waits for a slot without a count of its prompt. If a cap is set meanwhile, no refusal rests on the bound.
func TestPromptIsCountedIfACapIsSetWhileItsRequestWaits(t *testing.T) {
	t.Parallel()
	backend := newBlockingBackend()
	var counted atomic.Int64
	h := newHarness(t, concurrency(1), startFilteredBackend(t, backend.ServeHTTP, func(r *http.Request) bool {
		if r.URL.Path == "/tokenize" && r.ContentLength > 500 { // no probe
			counted.Add(1)
		}
		return true
	}))
	first := h.completeAsync(t.Context(), promptRequest(0))
	<-backend.arrived
	waits := h.completeAsync(t.Context(), `{"model":"m","prompt":"`+strings.Repeat("word ", 100)+`"}`)
	tooLong := h.completeAsync(t.Context(), `{"model":"m","prompt":"`+strings.Repeat("word ", 300)+`"}`)
	h.awaitQueue("two requests wait", budget.Stats{Running: 1, Waiting: 2})
	if n := counted.Load(); n != 0 {
		t.Errorf("%d prompts were counted, want none", n)
	}
	h.updateKey(withCaps(func(c *quota.Caps) { c[quota.MonthTotal] = quota.Limit(200) }))
	if got := <-tooLong; got.status != http.StatusTooManyRequests || got.header.Get("X-Ratelimit-Limit-Tokens") != "200" {
		t.Errorf("a prompt over the cap: got %d %s %v, want 429 with the cap", got.status, got.body, got.header)
	}
	h.awaitQueue("one request waits", budget.Stats{Running: 1, Waiting: 1})
	backend.release <- struct{}{}
	backend.release <- struct{}{}
	for _, one := range []<-chan response{first, waits} {
		if got := <-one; got.status != http.StatusOK || got.header.Get("X-Acs-Max-Tokens-Clamped") != "" {
			t.Errorf("got %d %s %v, want 200 without clamping", got.status, got.body, got.header)
		}
	}
	if n := counted.Load(); n != 2 {
		t.Errorf("%d prompts were counted, want 2", n)
	}
}

func TestRequestWaitingForReservationsCountsAsBuffered(t *testing.T) {
	t.Parallel()
	backend := newBlockingBackend()
	body := `{"model":"m","prompt":[1,2,3,4,5,6,7,8,9,10],"max_tokens":5}`
	h := newHarness(t, func(o *harnessOptions) { o.maxBuffered = 3 * admission.WaitingCost }, startBackend(t, backend.ServeHTTP))
	h.updateKey(withCaps(func(c *quota.Caps) { c[quota.MonthTotal] = quota.Limit(29) }))
	first := h.completeAsync(t.Context(), body)
	<-backend.arrived
	second := h.completeAsync(t.Context(), body)
	poll.Until(t, "the second request waits", func() bool { return h.memory.Stats().BufferedBytes >= admission.WaitingCost })
	if got := h.complete(body); got.status != http.StatusServiceUnavailable || !strings.Contains(got.body, `"overloaded"`) {
		t.Errorf("the third request: got %d %s, want 503 overloaded", got.status, got.body)
	}
	backend.release <- struct{}{}
	backend.release <- struct{}{}
	for _, one := range []<-chan response{first, second} {
		if got := <-one; got.status != http.StatusOK {
			t.Errorf("got %d %s, want 200", got.status, got.body)
		}
	}
	if s := h.memory.Stats(); s.BufferedBytes != 0 {
		t.Errorf("got %+v, want nothing buffered", s)
	}
}

func TestKeysThatCannotBeReadAreOverloaded(t *testing.T) {
	h := newHarness(t, nil, "http://127.0.0.1:1")
	if err := h.db.Read().Close(); err != nil {
		t.Fatal(err)
	}
	for _, request := range []string{
		"GET /v1/keys", "GET /v1/keys?after=key_x", "GET /v1/keys/key_x", "PATCH /v1/keys/key_x", "DELETE /v1/keys/key_x",
	} {
		t.Run(request, func(t *testing.T) {
			method, path, _ := strings.Cut(request, " ")
			got := h.do(h.newRequest(t.Context(), method, path, "{}"))
			if got.status != http.StatusServiceUnavailable || got.header.Get("Retry-After") != "2" ||
				!strings.Contains(got.body, `"code":"overloaded"`) || !strings.Contains(got.body, "keys cannot be read at the moment") {
				t.Errorf("got %d %s, Retry-After %q", got.status, got.body, got.header.Get("Retry-After"))
			}
		})
	}
}
