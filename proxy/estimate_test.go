package proxy_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"basegate/budget/quota"
	"basegate/gateway/config"
	"basegate/internal/poll"
)

// For random caps and bodies, the estimate is what the request itself then gets.
func TestEstimateAgreesWithTheReservation(t *testing.T) {
	t.Parallel()
	h := newHarness(t, nil, startBackend(t, respondPlain))
	r := rand.New(rand.NewPCG(1, 2))
	used := int64(0)
	for range 60 {
		caps := [3]int64{used + r.Int64N(60), used + r.Int64N(60), used + r.Int64N(60)}
		h.updateKey(withCaps(func(c *quota.Caps) {
			c[quota.MonthTotal], c[quota.DayTotal], c[quota.MonthOutput] = quota.Limit(caps[0]), quota.Limit(caps[1]), quota.Limit(caps[2])
		}))
		maxTokens := 1 + r.Int64N(40)
		body := fmt.Sprintf(`{"model":"m","prompt":%q,"max_tokens":%d,"n":%d}`, strings.Repeat("word ", 1+r.IntN(9)), maxTokens, 1+r.IntN(3))
		estimate, got := h.post("/v1/estimate", body), h.complete(body)
		if estimate.status != got.status {
			t.Fatalf("%s: the estimate is %d %s, the request got %d %s", body, estimate.status, estimate.body, got.status, got.body)
		}
		if got.status != 200 {
			continue
		}
		used += 4
		applied := gjson.Get(estimate.body, "applied_max_tokens").Int()
		want := ""
		if applied < maxTokens {
			want = fmt.Sprintf("requested=%d,applied=%d,reason=budget", maxTokens, applied)
		}
		if header := got.header.Get("X-Acs-Max-Tokens-Clamped"); header != want || gjson.Get(estimate.body, "fits").Bool() != (want == "") {
			t.Errorf("%s: the estimate is %s, the request got %q", body, estimate.body, header)
		}
	}
}

func TestEstimateIsOneWholeObjectAndSendsNothing(t *testing.T) {
	t.Parallel()
	var backend recorder
	h := newHarness(t, nil, startBackend(t, backend.ServeHTTP))
	h.updateKey(withCaps(func(c *quota.Caps) { c[quota.MonthTotal] = quota.Limit(20) }))
	for range 2 { // the second is the same, since nothing has been reserved
		got := h.post("/v1/estimate", `{"model":"m","prompt":[[1,2,3],[4]],"max_tokens":9}`)
		resets := gjson.Get(got.body, "limited_by.resets_at").Str
		want := `{"object":"estimate","model":"m","prompt_tokens":4,"max_completion_tokens":18,"total_tokens":22,"fits":false,` +
			`"limited_by":{"scope":"key","window":"month","meter":"total","remaining":20,"resets_at":"` + resets + `"},` +
			`"applied_max_tokens":8,"model_status":"warm","boot_estimate_seconds":null,"queue_position":0,"receipt":false}`
		if got.status != 200 || strings.TrimSpace(got.body) != want || resets == "" {
			t.Errorf("got %d %s, want %s", got.status, got.body, want)
		}
	}
	if got := backend.received(); len(got) > 0 {
		t.Errorf("the backend received %q", got)
	}
}

// A cold model is estimated without being started; a boot that failed is 502 with Retry-After, as for a completion.
func TestEstimateOfAColdModelDoesNotStartIt(t *testing.T) {
	t.Parallel()
	cold := func(start string) func(*harnessOptions) {
		return func(o *harnessOptions) {
			launch := &config.Launch{Start: []string{start}, Stop: []string{"true"}, BootEstimate: time.Minute, BootTimeout: time.Minute}
			o.model.Backends = []config.Backend{{Name: "cold", URL: &url.URL{Scheme: "http", Host: "127.0.0.1:1"}, Launch: launch}}
		}
	}
	const body = `{"model":"m","prompt":[1,2]}`
	h := newHarness(t, cold("true"))
	for range 2 {
		got := h.post("/v1/estimate", body)
		if got.status != 200 || gjson.Get(got.body, "model_status").Str != "cold" || gjson.Get(got.body, "boot_estimate_seconds").Int() != 60 {
			t.Errorf("got %d %s, want a cold model", got.status, got.body)
		}
	}
	failing := newHarness(t, cold("false"))
	failing.complete(body) // starts it
	poll.Until(t, "the boot has failed", func() bool { return failing.complete(body).status == http.StatusBadGateway })
	const kind = "upstream_unreachable"
	for _, path := range []string{"/v1/completions", "/v1/estimate"} {
		got := failing.post(path, body)
		seconds, err := strconv.Atoi(got.header.Get("Retry-After"))
		if got.status != http.StatusBadGateway || err != nil || seconds < 1 || seconds > 59 || strings.Contains(got.body, "false") ||
			gjson.Get(got.body, "error.code").Str != kind || got.header.Get("X-Acs-Upstream-Error-Kind") != kind {
			t.Errorf("%s: got %d %v %s, want 502 %s with Retry-After", path, got.status, got.header, got.body, kind)
		}
	}
}

func TestTokenIDsAreAtMost31Bits(t *testing.T) {
	t.Parallel()
	h := newHarness(t, nil, startBackend(t, respond(200, "application/json", plainResponse)))
	for id, want := range map[string]int{"2147483647": 200, "2147483648": 400} {
		if got := h.complete(`{"model":"m","prompt":[` + id + `]}`); got.status != want {
			t.Errorf("token id %s: got %d %s, want %d", id, got.status, got.body, want)
		}
	}
}
