package proxy_test

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"basegate/breaker"
	"basegate/budget/quota"
	"basegate/fleet"
	"basegate/internal/poll"
	"basegate/proxy"
)

func TestCheckedLineHasAnEstimateOfItsTokens(t *testing.T) {
	t.Parallel()
	h := newHarness(t, nil, startBackend(t, newBlockingBackend().ServeHTTP))
	principal, err := h.keys.Authenticate(t.Context(), h.secret)
	if err != nil {
		t.Fatal(err)
	}
	for body, want := range map[string]int64{
		`{"model":"m","prompt":"abcdefgh","max_tokens":15}`:       49/4 + 15,
		`{"model":"m","prompt":"abcdefgh","max_tokens":7,"n":2}`:  54/4 + 2*7,
		`{"model":"m","prompt":[1,2,3],"max_tokens":13}`:          3 + 13,
		`{"model":"m","prompt":[[1,2,3],[4,5]],"max_tokens":100}`: 5 + 2*100,
	} {
		got, err := h.server.CheckLine(t.Context(), principal, proxy.CompletionsPath, []byte(body), false)
		if err != nil || got.Model != "m" || got.Tokens != want {
			t.Errorf("%s: got %+v, %v, want %d tokens", body, got, err, want)
		}
	}
}

// A line without a place says what it would wait for: its key and its budget before its model. A line that no unused budget fits
// ends.
func TestLineWithoutAPlaceIsJudgedWithoutABackend(t *testing.T) {
	t.Parallel()
	backend := newBlockingBackend()
	h := newHarness(t, nil, startBackend(t, backend.ServeHTTP))
	backend.release <- struct{}{}
	if got := h.complete(plainRequest); got.status != 200 { // uses 4 tokens
		t.Fatalf("got %d %s", got.status, got.body)
	}
	<-backend.arrived
	principal, err := h.keys.Authenticate(t.Context(), h.secret)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(body string) proxy.LineResult {
		r := h.server.ServeLine(t.Context(), proxy.Line{
			Batch: "batch_1", Account: principal.AccountID, Key: principal.KeyID, Endpoint: proxy.CompletionsPath, Body: []byte(body),
		})
		r.Release()
		return r
	}
	before := h.server.Standing(principal.KeyID)
	if before.Reason != "" || before.Revoked {
		t.Errorf("a key without caps stands at %+v", before)
	}
	h.updateKey(withCaps(func(c *quota.Caps) { c[quota.MonthTotal] = quota.Limit(20) }))
	now := h.server.Standing(principal.KeyID)
	if now.Reason != "" || now.Caps == before.Caps {
		t.Errorf("a key with 16 tokens left stands at %+v, before a cap was set at %+v", now, before)
	}
	for body, want := range map[string]proxy.WaitReason{
		`{"model":"m","prompt":"a b","max_tokens":15}`:         proxy.WaitsForModel,
		`{"model":"m","prompt":"a b","max_tokens":16}`:         proxy.WaitsForBudget,
		`{"model":"m","prompt":[1,2,3],"max_tokens":13}`:       proxy.WaitsForModel,
		`{"model":"m","prompt":[1,2,3],"max_tokens":14}`:       proxy.WaitsForBudget,
		`{"model":"m","prompt":"a b","max_tokens":8,"n":2}`:    proxy.WaitsForBudget,
		`{"model":"m","prompt":["a","b"],"max_tokens":7}`:      proxy.WaitsForModel,
		`{"model":"not there","prompt":"a b","max_tokens":15}`: proxy.WaitsForModel,
	} {
		got := ask(body)
		if got.State != proxy.LineWaits || got.Reason != want || (want == proxy.WaitsForBudget) == got.ResetsAt.IsZero() {
			t.Errorf("%s: %d, waits for %q until %v; want %q", body, got.State, got.Reason, got.ResetsAt, want)
		}
	}
	if got := ask(`{"model":"m","prompt":"a b","max_tokens":20}`); got.State != proxy.LineEnded || got.Code != "budget_exceeded" {
		t.Errorf("a line over the unused cap: %d %s", got.State, got.Code)
	}
	h.updateKey(withCaps(func(c *quota.Caps) { c[quota.MonthTotal] = quota.Limit(4) }))
	if st := h.server.Standing(principal.KeyID); st.Reason != proxy.WaitsForBudget || st.ResetsAt.IsZero() {
		t.Errorf("a key whose budget is used up stands at %+v", st)
	}
	const fits = `{"model":"m","prompt":"a b","max_tokens":1}`
	for _, c := range []struct {
		what   string
		change func() error
		want   proxy.WaitReason
	}{
		{"pause", func() error { _, err := h.keys.Pause(t.Context(), principal.KeyID); return err }, proxy.WaitsForKey},
		{"disable", func() error {
			_, resumed := h.keys.Resume(t.Context(), principal.KeyID)
			_, err := h.accounts.Disable(t.Context(), principal.Email)
			if resumed != nil {
				return resumed
			}
			return err
		}, proxy.WaitsForAccount},
		{"revoke", func() error { _, err := h.keys.Revoke(t.Context(), principal.KeyID); return err }, proxy.WaitsForKey},
	} {
		if err := c.change(); err != nil {
			t.Fatal(err)
		}
		st := h.server.Standing(principal.KeyID)
		if st.Reason != c.want || st.Revoked != (c.what == "revoke") {
			t.Errorf("%s: the key stands at %+v, want %s", c.what, st, c.want)
		}
		if got := ask(fits); got.State != proxy.LineWaits || got.Reason != c.want {
			t.Errorf("%s: a line waits for %q, want %q", c.what, got.Reason, c.want)
		}
	}
}

// A line whose backend is not asked, since its breaker is open to the key or another request tries it, has had no attempt.
func TestLineWaitsForAnOpenBreaker(t *testing.T) {
	t.Parallel()
	for _, state := range []breaker.State{breaker.Open, breaker.HalfOpen} {
		t.Run(string(state), func(t *testing.T) {
			t.Parallel()
			working := newBlockingBackend()
			var attempts atomic.Int64
			h := newHarness(t, func(o *harnessOptions) {
				o.breaker.ConsecutiveFailures, o.settings.Attempts = 1, 1
				if state == breaker.HalfOpen {
					o.breaker.OpenFor = time.Millisecond
				}
			}, startBackend(t, func(w http.ResponseWriter, r *http.Request) {
				if attempts.Add(1) == 1 {
					w.WriteHeader(http.StatusInternalServerError)
					return
				}
				working.ServeHTTP(w, r)
			}))
			if got := h.complete(plainRequest); got.status != http.StatusBadGateway {
				t.Fatalf("got %d %s, want a failure that opens the breaker", got.status, got.body)
			}
			m, _ := h.fleet.Model("m")
			poll.Until(t, "the breaker is "+string(state), func() bool { return m.Backends()[0].Breaker() == state })
			want := int64(1)
			if state == breaker.HalfOpen {
				trial := h.completeAsync(t.Context(), plainRequest)
				<-working.arrived
				want++
				defer func() { working.release <- struct{}{}; <-trial }()
			}
			principal, err := h.keys.Authenticate(t.Context(), h.secret)
			if err != nil {
				t.Fatal(err)
			}
			place := h.acquirePlace()
			defer place.Release()
			got := h.server.ServeLine(t.Context(), proxy.Line{
				Batch: "batch_1", Account: principal.AccountID, Key: principal.KeyID, Endpoint: proxy.CompletionsPath, Body: []byte(plainRequest), Place: place,
			})
			defer got.Release()
			if got.State != proxy.LineWaits || got.Reason != proxy.WaitsForModel || attempts.Load() != want {
				t.Errorf("got state %d with %s, waits for %q after %d attempts at the backend, want model and %d", got.State, got.Body, got.Reason, attempts.Load(), want)
			}
		})
	}
}

func TestLineUsesABackendWhoseBreakerIsNotOpenToItsKey(t *testing.T) {
	t.Parallel()
	h := newHarness(t, func(o *harnessOptions) { o.breaker.ConsecutiveFailures = 1 },
		startBackend(t, respond(http.StatusInternalServerError, "text/plain", "boom")), startBackend(t, respond(http.StatusOK, "application/json", plainResponse)))
	m, _ := h.fleet.Model("m")
	poll.Until(t, "the breaker of the first is open to the key", func() bool {
		h.complete(plainRequest)
		return m.Backends()[0].Breaker() == breaker.Open
	})
	poll.Until(t, "both backends have places for lines, once their queues have been read", func() bool {
		one, err := m.AcquirePlace(fleet.Caller{}, 8)
		if err != nil {
			return false
		}
		defer one.Release()
		other, err := m.AcquirePlace(fleet.Caller{}, 8)
		if err != nil {
			return false
		}
		defer other.Release()
		return one.Backend != other.Backend
	})
	for range 4 {
		h.serveLine(plainRequest).Release()
	}
}
