package proxy_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"basegate/quota"
)

// For random caps and bodies, the estimate is what the request itself then gets.
func TestEstimateAgreesWithTheReservation(t *testing.T) {
	h := newHarness(t, nil, startBackend(t, respond(200, "application/json", plainResponse)))
	r := rand.New(rand.NewPCG(1, 2))
	used := int64(0)
	for range 60 {
		caps := [3]int64{used + r.Int64N(60), used + r.Int64N(60), used + r.Int64N(60)}
		h.updateKey(withCaps(func(c *quota.Caps) {
			c.MonthTotal, c.DayTotal, c.MonthOutput = quota.Limit(caps[0]), quota.Limit(caps[1]), quota.Limit(caps[2])
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
