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

	"basegate/budget"
	"basegate/internal/poll"
	"basegate/keys"
	"basegate/quota"
)

// spender is a backend whose answers cost what they say: the prompt's ids, and any number of tokens that was allowed.
// The request's user tag says what becomes of it.
func respondAtRandom(w http.ResponseWriter, r *http.Request) {
	text, _ := io.ReadAll(r.Body)
	body := gjson.ParseBytes(text)
	prompt, n := body.Get("prompt.#").Int(), max(body.Get("n").Int(), 1)
	completion := rand.Int64N(n*body.Get("max_tokens").Int()) + 1
	usage := fmt.Sprintf(`"usage":{"prompt_tokens":%d,"completion_tokens":%d}`, prompt, completion)
	var events []string
	for i := range int(n) {
		events = append(events, event(i, "word", `"length"`))
	}
	switch user := body.Get("user").Str; {
	case user == "fail":
		respond(500, "text/plain", "Internal Server Error")(w, r)
	case user == "leave" && body.Get("stream").Bool():
		respondStreamThenHang(event(0, "word", "null"))(w, r)
	case user == "leave":
		respondStreamThenHang()(w, r)
	case user == "break":
		respondStream(event(0, "word", "null"))(w, r)
	case body.Get("stream").Bool():
		respondStream(append(events, `data: {"choices":[],`+usage+"}\n\n", doneEvent)...)(w, r)
	default:
		respond(200, "application/json", `{"choices":[{"index":0,"text":"x","finish_reason":"length"}],`+usage+`}`)(w, r)
	}
}

// 400 clients at once, against each cap of a key and of its account: what is used and what is reserved never pass it
// together, and where one was refused there was no room for it.
func TestBurstNeverExceedsACap(t *testing.T) {
	const most, biggest = 2000, 14 + 2*20 // tokens, far fewer than all ask for; and the most that one request may take
	for _, c := range []struct {
		name   string
		set    func(*quota.Caps)
		window string
		meter  string
		count  func(budget.Row) int64
	}{
		{"month total", func(c *quota.Caps) { c.MonthTotal = quota.Limit(most) }, "month", "total", func(h budget.Row) int64 { return h.PromptTokens + h.CompletionTokens }},
		{"day total", func(c *quota.Caps) { c.DayTotal = quota.Limit(most) }, "day", "total", func(h budget.Row) int64 { return h.PromptTokens + h.CompletionTokens }},
		{"month input", func(c *quota.Caps) { c.MonthInput = quota.Limit(most / 2) }, "month", "input", func(h budget.Row) int64 { return 2 * h.PromptTokens }},
		{"month output", func(c *quota.Caps) { c.MonthOutput = quota.Limit(most / 2) }, "month", "output", func(h budget.Row) int64 { return 2 * h.CompletionTokens }},
	} {
		for _, scope := range []string{"key", "account"} {
			t.Run(scope+" "+c.name, func(t *testing.T) {
				h := newHarness(t, nil, startBackend(t, respondAtRandom), startBackend(t, respondAtRandom))
				if scope == "key" {
					h.updateKey(withCaps(c.set))
				} else if _, err := h.keys.SetAccount(t.Context(), "ada@example.org", func(f *keys.AccountFields) { c.set(&f.Caps) }); err != nil {
					t.Fatal(err)
				}
				used := func() (sum int64) {
					all, err := h.ledger.Usage(t.Context(), budget.Filter{}, budget.ByRequest)
					if err != nil {
						t.Error(err)
					}
					for _, row := range all {
						sum += c.count(row)
					}
					return sum
				}
				watched := make(chan struct{})
				over := make(chan struct{})
				go func() {
					defer close(watched)
					for {
						// The rows first: what settles meanwhile is in neither, so the sum is never more than the truth.
						rows := used()
						if sum := rows + h.reservedTokens(c.meter == "total"); sum > most {
							t.Errorf("%d tokens are used or reserved", sum)
						}
						select {
						case <-over:
							return
						default:
						}
					}
				}()
				refused := h.burst(400, scope, c.window, c.meter)
				close(over)
				<-watched
				poll.Until(t, "nothing is in flight", func() bool { return h.server.InFlight() == 0 && h.reservedTokens(true) == 0 })
				sum := used()
				if sum > most {
					t.Errorf("%d of %d tokens are used", sum, most)
				}
				if refused == 0 || sum < most-2*biggest {
					t.Errorf("%d were refused with %d of %d tokens used", refused, sum, most)
				}
				if s := h.queue.Stats(); s.Keys != 0 {
					t.Errorf("slots leaked: %+v", s)
				}
			})
		}
	}
}

// burst has so many clients ask at once, and tells how many were refused; a refusal must name the cap.
func (h *harness) burst(clients int, scope, window, meter string) int64 {
	var all sync.WaitGroup
	var refused atomic.Int64
	for i := range clients {
		user := []string{"stay", "stay", "stay", "leave", "fail", "break"}[rand.IntN(6)]
		stream := user == "break" || i%2 == 0
		ids := strings.TrimSuffix(strings.Repeat("7,", 5+rand.IntN(10)), ",")
		body := fmt.Sprintf(`{"model":"m","prompt":[%s],"max_tokens":%d,"n":%d,"stream":%t,"user":%q}`, ids, 1+rand.IntN(20), 1+rand.IntN(2), stream, user)
		all.Go(func() {
			ctx, disconnect := context.WithCancel(h.t.Context())
			defer disconnect()
			if user == "leave" {
				all.Go(func() {
					for range 1 + rand.IntN(20) {
						h.queue.Stats() // a while, of a length that the machine decides
					}
					disconnect()
				})
			}
			resp, err := client.Do(h.newRequest(ctx, http.MethodPost, "/v1/completions", body))
			if err != nil {
				if user != "leave" {
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
				h.t.Errorf("refused with %s", text)
			}
		})
	}
	all.Wait()
	return refused.Load()
}

// reserved is what requests in flight have reserved, as the metrics tell it; 0 where it is not asked for.
func (h *harness) reservedTokens(asked bool) int64 {
	if !asked {
		return 0 // the metric does not tell prompts from completions
	}
	families, err := h.registry.Gather()
	if err != nil {
		h.t.Error(err)
	}
	for _, f := range families {
		if f.GetName() == "basegate_ledger_reserved_tokens" {
			return int64(f.GetMetric()[0].GetGauge().GetValue())
		}
	}
	h.t.Error("there is no such metric")
	return 0
}
