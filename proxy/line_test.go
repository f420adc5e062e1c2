package proxy_test

import (
	"testing"

	"basegate/budget/quota"
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
