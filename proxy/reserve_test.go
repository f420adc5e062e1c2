package proxy_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"basegate/admission"
	"basegate/budget"
	"basegate/internal/poll"
	"basegate/keys"
	"basegate/quota"
)

func withCaps(change func(*quota.Caps)) func(*keys.KeyFields) {
	return func(f *keys.KeyFields) { change(&f.Caps) }
}

func (h *harness) updateKey(change func(*keys.KeyFields)) {
	h.t.Helper()
	all, err := h.keys.Keys(h.t.Context())
	if err == nil {
		_, err = h.keys.SetKey(h.t.Context(), all[0].ID, change)
	}
	if err != nil {
		h.t.Fatal(err)
	}
}

func TestCapClampsThenRefuses(t *testing.T) {
	var sent []string
	h := newHarness(t, nil, startBackend(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		sent = append(sent, string(body))
		respond(200, "application/json", `{"choices":[{"index":0,"text":"x","finish_reason":"length"}],"usage":{"prompt_tokens":10,"completion_tokens":7}}`)(w, r)
	}))
	ask := func(maxTokens int) response {
		return h.complete(fmt.Sprintf(`{"model":"m","prompt":[1,2,3,4,5,6,7,8,9,10],"max_tokens":%d}`, maxTokens))
	}
	if got := ask(7); got.header.Get("X-Ratelimit-Limit-Tokens") != "" {
		t.Errorf("no cap, but %v", got.header)
	}
	h.updateKey(withCaps(func(c *quota.Caps) { c.MonthTotal = quota.Limit(17 + 17 + 12) }))
	whole := ask(7)
	if whole.status != 200 || whole.header.Get("X-Acs-Max-Tokens-Clamped") != "" || whole.header.Get("X-Ratelimit-Limit-Tokens") != "46" ||
		whole.header.Get("X-Ratelimit-Remaining-Tokens") != "12" || whole.header.Get("X-Ratelimit-Reset-Tokens") == "" {
		t.Errorf("one that fits: %d %v", whole.status, whole.header)
	}
	clamped := ask(9)
	if clamped.status != 200 || clamped.header.Get("X-Acs-Max-Tokens-Clamped") != "requested=9,applied=2,reason=budget" {
		t.Errorf("one that fits in part: %d %v", clamped.status, clamped.header)
	}
	if got := sent[len(sent)-1]; !strings.Contains(got, `"max_tokens":2}`) {
		t.Errorf("vLLM got %s", got)
	}
	refused := ask(1)
	for _, part := range []string{`"code":"budget_exceeded"`, `"type":"insufficient_quota"`, `"scope":"key"`, `"window":"month"`, `"meter":"total"`, `"limit":46`, `"reserved":0`, `"resets_at":"`} {
		if refused.status != 429 || !strings.Contains(refused.body, part) {
			t.Errorf("%s: got %d %s", part, refused.status, refused.body)
		}
	}
	if refused.header.Get("X-Should-Retry") != "false" || refused.header.Get("X-Ratelimit-Remaining-Tokens") != "0" || refused.header.Get("Retry-After") != "" {
		t.Errorf("its headers: %v", refused.header)
	}
	h.awaitRows(3) // a refusal is none
}

// A refusal never rests on the bound of a text alone, and a text whose bound fits costs no question.
func TestCapCountsAPromptOnlyIfItsBoundDoesNotFit(t *testing.T) {
	asked := 0
	h := newHarness(t, nil, startBackendCounting(t, &asked, respond(200, "application/json", plainResponse)))
	text := strings.Repeat("word ", 20) // 100 bytes, 21 tokens
	for _, c := range []struct {
		limit         int64
		asked, status int
		clamped       string
	}{
		{100 + 2 + 16, 0, 200, ""}, // the backend has told that it adds one token, and one is in reserve
		{100 + 2 + 15, 1, 200, ""},
		{21 + 16, 1, 200, ""},
		{21 + 15, 1, 200, "requested=16,applied=15,reason=budget"},
		{21, 1, 429, ""},
	} {
		used := int64(0)
		all, err := h.ledger.Usage(t.Context(), budget.Filter{}, budget.ByModel)
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range all {
			used += row.PromptTokens + row.CompletionTokens
		}
		h.updateKey(withCaps(func(c2 *quota.Caps) { c2.MonthTotal = quota.Limit(used + c.limit) }))
		before := asked
		got := h.complete(fmt.Sprintf(`{"model":"m","prompt":%q}`, text))
		if got.status != c.status || asked-before != c.asked || got.header.Get("X-Acs-Max-Tokens-Clamped") != c.clamped {
			t.Errorf("%d left: %d, asked %d times, %v: %s", c.limit, got.status, asked-before, got.header, got.body)
		}
	}
}

func TestCapNeverRefusesByTheBound(t *testing.T) {
	h := newHarness(t, nil, startBackendWithout(t, "/tokenize", respond(200, "application/json", plainResponse)))
	h.updateKey(withCaps(func(c *quota.Caps) { c.DayTotal = quota.Limit(50) }))
	got := h.complete(fmt.Sprintf(`{"model":"m","prompt":%q}`, strings.Repeat("word ", 20)))
	if got.status != 502 || !strings.Contains(got.body, `"upstream_unreachable"`) || !strings.Contains(got.body, "tokenizer") {
		t.Errorf("got %d %s", got.status, got.body)
	}
}

// What is only reserved by others refuses nobody: who finds too little left waits until they have settled.
func TestRequestWaitsForReservationsOfOthers(t *testing.T) {
	backend := newBlockingBackend()
	h := newHarness(t, nil, startBackend(t, backend.ServeHTTP))
	h.updateKey(withCaps(func(c *quota.Caps) { c.MonthTotal = quota.Limit(100) }))
	ask := `{"model":"m","prompt":[1,2,3,4],"max_tokens":60}`
	first := h.completeAsync(t.Context(), ask)
	<-backend.arrived
	second := h.completeAsync(t.Context(), ask)
	h.awaitQueue("both have a slot", admission.Stats{Running: 2})
	select {
	case <-backend.arrived:
		t.Error("both were sent, which may pass the cap")
	case got := <-second:
		t.Errorf("it was refused: %d %s", got.status, got.body)
	case <-time.NewTimer(50 * time.Millisecond).C:
	}
	backend.open <- struct{}{}
	backend.open <- struct{}{}
	for _, one := range []<-chan response{first, second} {
		if got := <-one; got.status != 200 || got.header.Get("X-Acs-Max-Tokens-Clamped") != "" {
			t.Errorf("got %d %v", got.status, got.header)
		}
	}
}

func TestRequestWaitingForReservationsCountsAsBuffered(t *testing.T) {
	backend := newBlockingBackend()
	ask := `{"model":"m","prompt":[1,2,3,4,5,6,7,8,9,10],"max_tokens":5}`
	h := newHarness(t, func(o *harnessOptions) { o.maxBuffered = int64(len(ask)) }, startBackend(t, backend.ServeHTTP))
	h.updateKey(withCaps(func(c *quota.Caps) { c.MonthTotal = quota.Limit(29) }))
	first := h.completeAsync(t.Context(), ask)
	<-backend.arrived
	second := h.completeAsync(t.Context(), ask)
	poll.Until(t, "it waits", func() bool { return h.queue.Stats().BufferedBytes == int64(len(ask)) })
	if got := h.complete(ask); got.status != http.StatusServiceUnavailable || !strings.Contains(got.body, `"overloaded"`) {
		t.Errorf("one too many gets %d %s", got.status, got.body)
	}
	backend.open <- struct{}{}
	backend.open <- struct{}{}
	for _, one := range []<-chan response{first, second} {
		if got := <-one; got.status != http.StatusOK {
			t.Errorf("got %d %s", got.status, got.body)
		}
	}
	if s := h.queue.Stats(); s.BufferedBytes != 0 {
		t.Errorf("%+v", s)
	}
}
