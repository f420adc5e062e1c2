package proxy_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tidwall/gjson"

	"basegate/budget/quota"
	"basegate/budget/usage"
	"basegate/identity"
	"basegate/internal/poll"
)

// respondAtRandom is a backend that reports a usage of the prompt's token ids and a random number of completion tokens
// within max_tokens. The user tag of a request says what happens to it.
func respondAtRandom(w http.ResponseWriter, r *http.Request) {
	text, _ := io.ReadAll(r.Body)
	body := gjson.ParseBytes(text)
	prompt, n := body.Get("prompt.#").Int(), max(body.Get("n").Int(), 1)
	completion := rand.Int64N(n*body.Get("max_tokens").Int()) + 1
	reported := fmt.Sprintf(`"usage":{"prompt_tokens":%d,"completion_tokens":%d}`, prompt, completion)
	var events, choices []string
	for i := range int(n) {
		events = append(events, event(i, "word", `"length"`))
		choices = append(choices, fmt.Sprintf(`{"index":%d,"text":"x","finish_reason":"length"}`, i))
	}
	switch user := body.Get("user").Str; {
	case user == "fail":
		respond(500, "text/plain", "Internal Server Error")(w, r)
	case user == "disconnect" && body.Get("stream").Bool():
		respondStreamThenHang(event(0, "word", "null"))(w, r)
	case user == "disconnect":
		respondStreamThenHang()(w, r)
	case user == "break":
		respondStream(event(0, "word", "null"))(w, r)
	case body.Get("stream").Bool():
		respondStream(append(events, `data: {"choices":[],`+reported+"}\n\n", doneEvent)...)(w, r)
	default:
		respond(200, "application/json", `{"choices":[`+strings.Join(choices, ",")+`],`+reported+`}`)(w, r)
	}
}

// 400 clients request completions at once under each cap of a key and of its account. The tokens used and reserved
// never exceed the cap, and requests are refused only if there is no room for them.
func TestBurstNeverExceedsACap(t *testing.T) {
	t.Parallel()
	const (
		limit   = 2000      // tokens, far fewer than all requests together need
		largest = 14 + 2*20 // tokens that one request may need
	)
	for _, c := range []struct {
		name   string
		set    func(*quota.Caps)
		window string
		meter  string
		count  func(usage.Row) int64 // tokens that count against limit
	}{
		{"month total", func(c *quota.Caps) { c[quota.MonthTotal] = quota.Limit(limit) }, "month", "total", func(r usage.Row) int64 { return r.PromptTokens + r.CompletionTokens }},
		{"day total", func(c *quota.Caps) { c[quota.DayTotal] = quota.Limit(limit) }, "day", "total", func(r usage.Row) int64 { return r.PromptTokens + r.CompletionTokens }},
		{"month input", func(c *quota.Caps) { c[quota.MonthInput] = quota.Limit(limit / 2) }, "month", "input", func(r usage.Row) int64 { return 2 * r.PromptTokens }},
		{"month output", func(c *quota.Caps) { c[quota.MonthOutput] = quota.Limit(limit / 2) }, "month", "output", func(r usage.Row) int64 { return 2 * r.CompletionTokens }},
	} {
		for _, scope := range []string{"key", "account"} {
			t.Run(scope+" "+c.name, func(t *testing.T) {
				h := newHarness(t, nil, startBackend(t, respondAtRandom), startBackend(t, respondAtRandom))
				if scope == "key" {
					h.updateKey(withCaps(c.set))
				} else if _, err := h.accounts.Set(t.Context(), "ada@example.org", func(f *identity.Account) { c.set(&f.Caps) }); err != nil {
					t.Fatal(err)
				}
				used := func() (sum int64) {
					all, err := h.usage.List(t.Context(), usage.Filter{}, usage.ByRequest)
					if err != nil {
						t.Error(err)
					}
					for _, row := range all {
						sum += c.count(row)
					}
					return sum
				}
				stop, stopped := make(chan struct{}), make(chan struct{})
				go func() {
					defer close(stopped)
					for {
						// The rows are read first: a request that settles in between is in neither, so the sum is never
						// too large.
						sum := used()
						if c.meter == "total" { // the metric does not distinguish prompts from completions
							sum += h.reservedTokens()
						}
						if sum > limit {
							t.Errorf("%d of %d tokens are used or reserved", sum, limit)
						}
						select {
						case <-stop:
							return
						default:
						}
					}
				}()
				refused := h.burst(400, scope, c.window, c.meter)
				close(stop)
				<-stopped
				poll.Until(t, "nothing is in flight", func() bool { return h.server.InFlight() == 0 && h.reservedTokens() == 0 })
				sum := used()
				if sum > limit {
					t.Errorf("%d of %d tokens are used", sum, limit)
				}
				if refused == 0 || sum < limit-2*largest {
					t.Errorf("%d requests were refused with %d of %d tokens used", refused, sum, limit)
				}
				if s := h.ledger.Load(); s.Keys != 0 {
					t.Errorf("slots were not released: %+v", s)
				}
			})
		}
	}
}

// burst sends requests of that many clients at once and returns how many were refused. A refusal must name the cap.
func (h *harness) burst(clients int, scope, window, meter string) int64 {
	var all sync.WaitGroup
	var refused atomic.Int64
	for i := range clients {
		user := []string{"complete", "complete", "complete", "disconnect", "fail", "break"}[rand.IntN(6)]
		stream := user == "break" || i%2 == 0
		ids := strings.TrimSuffix(strings.Repeat("7,", 5+rand.IntN(10)), ",")
		body := fmt.Sprintf(`{"model":"m","prompt":[%s],"max_tokens":%d,"n":%d,"stream":%t,"user":%q}`, ids, 1+rand.IntN(20), 1+rand.IntN(2), stream, user)
		all.Go(func() {
			ctx, disconnect := context.WithCancel(h.t.Context())
			defer disconnect()
			if user == "disconnect" {
				all.Go(func() {
					for range 1 + rand.IntN(20) {
						h.memory.Stats() // takes a random time
					}
					disconnect()
				})
			}
			resp, err := client.Do(h.newRequest(ctx, http.MethodPost, "/v1/completions", body))
			if err != nil {
				if user != "disconnect" {
					h.t.Error(err)
				}
				return
			}
			defer resp.Body.Close()
			text, _ := io.ReadAll(resp.Body)
			e := gjson.GetBytes(text, "error")
			if resp.StatusCode != http.StatusTooManyRequests {
				return
			}
			refused.Add(1)
			if e.Get("scope").Str != scope || e.Get("window").Str != window || e.Get("meter").Str != meter || e.Get("used").Int() > e.Get("limit").Int() {
				h.t.Errorf("got %s, want the refusal to name %s %s %s", text, scope, window, meter)
			}
		})
	}
	all.Wait()
	return refused.Load()
}

// reservedTokens returns the metric of the tokens that requests in flight have reserved.
func (h *harness) reservedTokens() int64 {
	families, err := h.registry.Gather()
	if err != nil {
		h.t.Error(err)
	}
	for _, f := range families {
		if f.GetName() == "basegate_ledger_reserved_tokens" {
			return int64(f.GetMetric()[0].GetGauge().GetValue())
		}
	}
	h.t.Error("the metric basegate_ledger_reserved_tokens does not exist")
	return 0
}
