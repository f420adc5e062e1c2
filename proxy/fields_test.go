package proxy_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"basegate/budget"
	"basegate/budget/quota"
	"basegate/gateway/config"
)

// recorder is a backend that records the bodies that it receives.
type recorder struct {
	mu     sync.Mutex
	bodies []string
	status int // 0: 200
}

func (r *recorder) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bodies = append(r.bodies, string(body))
	if r.status != 0 {
		respond(r.status, "application/json", `{"error":{"message":"no","code":500}}`)(w, req)
		return
	}
	respond(http.StatusOK, "application/json", plainResponse)(w, req)
}

// received returns the bodies received since the last call.
func (r *recorder) received() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.bodies
	r.bodies = nil
	return all
}

// keyID returns the id of the harness's key.
func (h *harness) keyID() string {
	h.t.Helper()
	all, err := h.keys.List(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	return all[0].ID
}

// used returns the tokens that a key has used this month.
func (h *harness) used(key string) int64 {
	return h.ledger.Balance(budget.Payer{Key: key}).Key.Used[quota.Month].Total()
}

// tokenIDs returns the JSON of a prompt of n token ids.
func tokenIDs(n int) string { return "[" + strings.TrimSuffix(strings.Repeat("7,", n), ",") + "]" }

func TestFieldsOfVLLMArePassedOnUntouched(t *testing.T) {
	t.Parallel()
	var backend recorder
	h := newHarness(t, nil, startVersion(t, "0.32.0", backend.ServeHTTP))
	for _, members := range []string{
		`"min_tokens" : 3`, `"ignore_eos":true`, `"include_stop_str_in_output":true`, `"skip_special_tokens":false`, `"spaces_between_special_tokens":false`,
		`"add_special_tokens":false`, `"stop_token_ids":[ 2,128001 ]`, `"allowed_token_ids":[1]`, `"bad_words":["caf\u00e9"]`, `"truncate_prompt_tokens":5`,
		`"truncate_prompt_tokens":-1`, `"return_tokens_as_token_ids":true`, `"return_token_ids":true`, `"cache_salt":"s\u0041lt"`,
		`"response_format":{"type" : "json_object"}`, `"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"a":1.0e0}}}`,
		`"structured_outputs":{"regex":"a+" , "disable_any_whitespace":true}`,
		`"stream":true,"stream_options":{"continuous_usage_stats":true, "include_usage":true}`,
	} {
		h.complete(`{"model":"m",` + members + `,"prompt":"x"}`)
		want := `{"model":"org/Model-8B",` + members + `,"prompt":"x"}`
		if got := backend.received(); len(got) == 0 || got[0] != want {
			t.Errorf("the backend received %q, want %s", got, want)
		}
	}
}

func TestSequencesPerRequestAreLimited(t *testing.T) {
	t.Parallel()
	h := newHarness(t, func(o *harnessOptions) { o.settings.SequencesPerRequest = 8 }, startBackend(t, respondPlain))
	for body, param := range map[string]string{
		`"prompt":["a","b"],"n":4`:                       "",
		`"prompt":["a","b","c"],"n":4`:                   "n",
		`"prompt":["1","2","3","4","5","6","7","8","9"]`: "prompt",
	} {
		got := h.complete(`{"model":"m",` + body + `}`)
		if (got.status == 200) != (param == "") || gjson.Get(got.body, "error.param").Str != param {
			t.Errorf("%s: got %d %s, want %q refused", body, got.status, got.body, param)
		}
	}
}

func TestFieldsGoOnlyToBackendsWhoseVersionHasThem(t *testing.T) {
	t.Parallel()
	var older, newer recorder
	h := newHarness(t, nil, startVersion(t, "0.9.2", older.ServeHTTP), startVersion(t, "0.27.0", newer.ServeHTTP))
	for range 10 {
		if got := h.complete(`{"model":"m","prompt":"x","cache_salt":"s"}`); got.status != 200 {
			t.Fatalf("got %d %s", got.status, got.body)
		}
	}
	if n := len(older.received()); n > 0 {
		t.Errorf("the backend without cache_salt received %d requests", n)
	}
	if n := len(newer.received()); n != 10 {
		t.Errorf("the backend with cache_salt received %d requests, want 10", n)
	}
	newer.status = 500
	if got := h.complete(`{"model":"m","prompt":"x","cache_salt":"s"}`); got.status != 502 || len(older.received()) > 0 {
		t.Errorf("got %d %s, want 502 and no attempt at the older backend", got.status, got.body)
	}
}

func TestFieldThatNoBackendHasIsRefusedWithItsVersion(t *testing.T) {
	t.Parallel()
	var backend recorder
	h := newHarness(t, nil, startVersion(t, "0.9.1", backend.ServeHTTP), startVersion(t, "0.9.2", backend.ServeHTTP))
	for member, c := range map[string]struct{ param, since string }{
		`"cache_salt":"s"`:            {"cache_salt", "0.10 or later"},
		`"return_token_ids":true`:     {"return_token_ids", "0.10.1 or later"},
		`"truncate_prompt_tokens":-1`: {"truncate_prompt_tokens", "0.20 or later"},
		`"bad_words":["x"]`:           {"bad_words", "0.26 or later"},
		`"structured_outputs":{"json":{},"disable_any_whitespace":true}`: {"structured_outputs", "0.11 or later"},
	} {
		got := h.complete(`{"model":"m","prompt":"x",` + member + `}`)
		message := gjson.Get(got.body, "error.message").Str
		if got.status != 400 || gjson.Get(got.body, "error.code").Str != "invalid_request" || gjson.Get(got.body, "error.param").Str != c.param ||
			!strings.Contains(message, "vLLM 0.9.2") || !strings.Contains(message, c.since) || !strings.Contains(message, c.param) {
			t.Errorf("%s: got %d %s", member, got.status, got.body)
		}
	}
	if got := backend.received(); len(got) > 0 {
		t.Errorf("the backends received %q", got)
	}
}

func TestBackendOfUnknownVersionReceivesEveryField(t *testing.T) {
	t.Parallel()
	var backend recorder
	h := newHarness(t, nil, startVersion(t, "", backend.ServeHTTP))
	if got := h.complete(`{"model":"m","prompt":"x","cache_salt":"s","structured_outputs":{"json":{}}}`); got.status != 200 {
		t.Errorf("got %d %s", got.status, got.body)
	}
	if got := backend.received(); len(got) != 1 || !strings.Contains(got[0], `"structured_outputs":{"json":{}}`) {
		t.Errorf("the backend received %q", got)
	}
}

// Each attempt is spelled for the version of its backend.
func TestStructuredOutputIsRespelledForEachAttempt(t *testing.T) {
	t.Parallel()
	older, newer := recorder{status: 500}, recorder{status: 500}
	h := newHarness(t, nil, startVersion(t, "0.10.2", older.ServeHTTP), startVersion(t, "0.11.0", newer.ServeHTTP))
	for sent, want := range map[string]string{
		`"structured_outputs":{"choice":["a","b"]}`:                                            `"guided_choice":["a","b"]`,
		`"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"a":1}}}`: `"guided_json":{"a":1}`,
		`"structured_outputs":{"json_object":true}`:                                            `"response_format":{"type":"json_object"}`,
		`"response_format":{"type":"json_object"}`:                                             `"response_format":{"type":"json_object"}`,
	} {
		h.complete(`{"model":"m","prompt":"x",` + sent + `}`)
		for _, c := range []struct {
			backend *recorder
			want    string
		}{{&older, want}, {&newer, sent}} {
			got := c.backend.received()
			if len(got) == 0 || got[0] != `{"model":"org/Model-8B","prompt":"x",`+c.want+`}` {
				t.Errorf("%s: a backend received %q, want %s", sent, got, c.want)
			}
		}
	}
}

// The prompt counts as what truncate_prompt_tokens leaves of it: for the length, the reservation and the ledger.
func TestTruncatedPromptCountsAsWhatIsLeft(t *testing.T) {
	t.Parallel()
	h := newHarness(t, nil, startVersion(t, "0.27.0", respondPlain)) // its context is 4096
	long := `"` + strings.Repeat("word ", 5000) + `"`
	for _, c := range []struct {
		members string
		total   int64 // the cap; 0: none
		status  int
		clamped string
	}{
		{`"prompt":` + tokenIDs(5000), 0, 400, ""},
		{`"prompt":` + tokenIDs(5000) + `,"truncate_prompt_tokens":100`, 0, 200, ""},
		{`"prompt":` + long + `,"truncate_prompt_tokens":100`, 0, 200, ""},
		{`"prompt":` + tokenIDs(5000) + `,"truncate_prompt_tokens":4090`, 0, 400, ""},
		{`"prompt":` + tokenIDs(5000) + `,"truncate_prompt_tokens":-1`, 0, 200, ""},
		{`"prompt":` + long + `,"truncate_prompt_tokens":-1,"max_tokens":4095`, 0, 200, ""},
		{`"prompt":` + long + `,"truncate_prompt_tokens":-1,"max_tokens":4096`, 0, 400, ""},

		{`"prompt":` + tokenIDs(5000) + `,"truncate_prompt_tokens":100,"max_tokens":20`, 120, 200, ""},
		{`"prompt":` + tokenIDs(5000) + `,"truncate_prompt_tokens":100,"max_tokens":20`, 110, 200, "requested=20,applied=10,reason=budget"},
		{`"prompt":` + long + `,"truncate_prompt_tokens":100,"max_tokens":20`, 100, 429, ""},
		{`"prompt":[` + tokenIDs(5000) + `,` + tokenIDs(50) + `],"truncate_prompt_tokens":100,"max_tokens":20`, 190, 200, ""},

		{`"prompt":` + tokenIDs(5000) + `,"truncate_prompt_tokens":-1,"max_tokens":20`, 4096, 200, ""},
		{`"prompt":` + tokenIDs(5000) + `,"truncate_prompt_tokens":-1,"max_tokens":20`, 4095, 429, ""}, // a lower max_tokens leaves more of the prompt
		{`"prompt":` + tokenIDs(4080) + `,"truncate_prompt_tokens":-1,"max_tokens":100`, 4090, 200, "requested=100,applied=10,reason=budget"},
		{`"prompt":` + long + `,"truncate_prompt_tokens":-1,"max_tokens":4000,"n":2`, 4106, 200, "requested=4000,applied=10,reason=budget"},
	} {
		used := h.used(h.keyID())
		h.updateKey(withCaps(func(caps *quota.Caps) {
			caps[quota.MonthTotal] = quota.Unbounded()
			if c.total > 0 {
				caps[quota.MonthTotal] = quota.Limit(used + c.total)
			}
		}))
		got := h.complete(`{"model":"m",` + c.members + `}`)
		if got.status != c.status || got.header.Get("X-Acs-Max-Tokens-Clamped") != c.clamped {
			t.Errorf("%.80s with a cap of %d: got %d %s %.300s, want %d %s", c.members[len(c.members)-60:], c.total,
				got.status, got.header.Get("X-Acs-Max-Tokens-Clamped"), got.body, c.status, c.clamped)
		}
	}
}

// With truncate_prompt_tokens -1, vLLM keeps what fits its own context, which may be larger than the configured one. That is
// what the request can cost.
func TestPromptTruncatedToALargerContextReservesWhatItMayCost(t *testing.T) {
	t.Parallel()
	var backend recorder
	h := newHarness(t, func(o *harnessOptions) { o.model.MaxModelLen = 2000 }, startVersion(t, "0.27.0", backend.ServeHTTP)) // its context is 4096
	for limit, status := range map[int64]int{3019: 429, 3020: 200} {
		h.updateKey(withCaps(func(caps *quota.Caps) { caps[quota.DayTotal] = quota.Limit(limit) }))
		got := h.complete(`{"model":"m","prompt":` + tokenIDs(3000) + `,"truncate_prompt_tokens":-1,"max_tokens":20,"min_tokens":20}`)
		if got.status != status {
			t.Errorf("a cap of %d: got %d %s, want %d", limit, got.status, got.body, status)
		}
	}
	if got := h.complete(`{"model":"m","prompt":` + tokenIDs(3000) + `,"max_tokens":20}`); got.status != 400 {
		t.Errorf("without truncation: got %d %s, want 400", got.status, got.body)
	}
}

// The backend scores what it keeps in its own context, which may be larger than the configured one.
func TestPromptTruncatedToALargerContextIsTooLongToBeScored(t *testing.T) {
	t.Parallel()
	var backend recorder
	h := newHarness(t, func(o *harnessOptions) {
		o.model.MaxModelLen, o.model.MaxScoredPromptTokens = 2000, 1990
	}, startVersion(t, "0.27.0", backend.ServeHTTP))
	for _, prompt := range []string{tokenIDs(4000), `"` + strings.Repeat("word ", 4000) + `"`} {
		body := `{"model":"m","prompt":` + prompt + `,"truncate_prompt_tokens":-1,"max_tokens":20,"prompt_logprobs":1}`
		if got := h.complete(body); got.status != 400 || len(backend.received()) > 0 {
			t.Errorf("got %d %s, want 400", got.status, got.body)
		}
	}
}

// With backends of two contexts, a client that disconnects is charged what is left of its prompt at the one that served it.
func TestPromptIsChargedAsTheServingBackendTruncatesIt(t *testing.T) {
	t.Parallel()
	backend := newBlockingBackend()
	h := newHarness(t, func(o *harnessOptions) { o.model.MaxModelLen = 5000 }, startBackend(t, backend.ServeHTTP)) // whose context is 4096
	ctx, disconnect := context.WithCancel(t.Context())
	ended := h.completeAsync(ctx, `{"model":"m","prompt":`+tokenIDs(4990)+`,"truncate_prompt_tokens":-1,"max_tokens":16}`)
	<-backend.arrived
	disconnect()
	<-ended
	if row := h.awaitRows(1)[0]; row.PromptTokens != 4080 {
		t.Errorf("charged %s, want 4080 prompt tokens", summary(row))
	}
}

// A client that disconnects from a plain request is charged its prompt: what is left of it.
func TestTruncatedPromptIsChargedAsWhatIsLeft(t *testing.T) {
	t.Parallel()
	for members, want := range map[string]int64{
		`"prompt":` + tokenIDs(500) + `,"truncate_prompt_tokens":100`:                            100,
		`"prompt":["` + strings.Repeat("word ", 500) + `","a b c"],"truncate_prompt_tokens":100`: 104,
		`"prompt":"` + strings.Repeat("word ", 5000) + `","truncate_prompt_tokens":-1`:           4080,
		`"prompt":"a b c","add_special_tokens":false`:                                            3,
		`"prompt":"a b c"`: 4,
		`"prompt":"` + strings.Repeat("word ", 500) + `","truncate_prompt_tokens":1000`:            501,
		`"prompt":"` + strings.Repeat("word ", 500) + `","truncate_prompt_tokens":9,"stream":true`: 9,
	} {
		backend := newBlockingBackend()
		h := newHarness(t, nil, startBackend(t, backend.ServeHTTP))
		ctx, disconnect := context.WithCancel(t.Context())
		ended := h.completeAsync(ctx, `{"model":"m",`+members+`}`)
		<-backend.arrived
		disconnect()
		<-ended
		if row := h.awaitRows(1)[0]; row.PromptTokens != want {
			t.Errorf("%.40s…%s: charged %s, want %d prompt tokens", members, members[max(0, len(members)-40):], summary(row), want)
		}
	}
}

// A clamp never lowers max_tokens below min_tokens; what then does not fit is refused.
func TestClampNeverGoesBelowMinTokens(t *testing.T) {
	t.Parallel()
	var backend recorder
	h := newHarness(t, nil, startBackend(t, backend.ServeHTTP))
	h.updateKey(withCaps(func(c *quota.Caps) { c[quota.MonthTotal] = quota.Limit(10) }))
	body := func(minTokens int) string {
		return fmt.Sprintf(`{"model":"m","prompt":[1,2],"max_tokens":20,"min_tokens":%d}`, minTokens)
	}
	if got := h.complete(body(9)); got.status != 429 || gjson.Get(got.body, "error.code").Str != "budget_exceeded" {
		t.Errorf("min_tokens 9: got %d %s, want 429", got.status, got.body)
	}
	if got := h.complete(body(8)); got.status != 200 || got.header.Get("X-Acs-Max-Tokens-Clamped") != "requested=20,applied=8,reason=budget" {
		t.Errorf("min_tokens 8: got %d %s, headers %v", got.status, got.body, got.header)
	}
	if got := backend.received(); len(got) != 1 || !strings.Contains(got[0], `"max_tokens":8,"min_tokens":8`) {
		t.Errorf("the backend received %q", got)
	}
}

// A spent budget and a length that is wrong whatever the tokenizer says are refused without starting the model.
func TestSpentBudgetAndKnownLengthAreRefusedBeforeABoot(t *testing.T) {
	t.Parallel()
	started := filepath.Join(t.TempDir(), "started")
	address, err := url.Parse(refusingBackend(t))
	if err != nil {
		t.Fatal(err)
	}
	h := newHarness(t, func(o *harnessOptions) {
		o.model.MaxModelLen = 100
		o.model.Backends = []config.Backend{{Name: "b", URL: address, Launch: &config.Launch{
			Start: []string{"touch", started}, Stop: []string{"true"}, BootEstimate: time.Minute, BootTimeout: time.Minute,
		}}}
	})
	for body, tokens := range map[string]string{
		`"prompt":` + tokenIDs(85):                                    `"prompt_tokens":85,"max_tokens":16,"max_model_len":100`,
		`"prompt":` + tokenIDs(500):                                   `"prompt_tokens":500,"max_tokens":16,"max_model_len":100`,
		`"prompt":[[1],` + tokenIDs(85) + `]`:                         `"prompt_tokens":85,"max_tokens":16,"max_model_len":100`,
		`"prompt":"x","max_tokens":100`:                               `"prompt_tokens":1,"max_tokens":100,"max_model_len":100`,
		`"prompt":"x","max_tokens":9223372036854775807`:               `"prompt_tokens":1,"max_tokens":9223372036854775807,"max_model_len":100`,
		`"prompt":` + tokenIDs(85) + `,"truncate_prompt_tokens":85`:   `"prompt_tokens":85,"max_tokens":16,"max_model_len":100`,
		`"prompt":[1],"max_tokens":100,"truncate_prompt_tokens":-1`:   `"prompt_tokens":1,"max_tokens":100,"max_model_len":100`,
		`"prompt":` + tokenIDs(85) + `,"truncate_prompt_tokens":null`: `"prompt_tokens":85,"max_tokens":16,"max_model_len":100`,
	} {
		if got := h.complete(`{"model":"m",` + body + `}`); got.status != 400 || !strings.Contains(got.body, `"code":"context_length_exceeded"`) || !strings.Contains(got.body, tokens) {
			t.Errorf("%.60s: got %d %s, want %s", body, got.status, got.body, tokens)
		}
	}
	h.updateKey(withCaps(func(c *quota.Caps) { c[quota.DayTotal] = quota.Limit(0) }))
	for _, body := range []string{plainRequest, `{"model":"m","prompt":"x","max_tokens":100}`} {
		if got := h.complete(body); got.status != 429 || !strings.Contains(got.body, `"code":"budget_exceeded"`) {
			t.Errorf("%s: got %d %s, want 429 before the length and the boot", body, got.status, got.body)
		}
	}
	if _, err := os.Stat(started); err == nil {
		t.Error("the model was started")
	}
	h.updateKey(withCaps(func(c *quota.Caps) { c[quota.DayTotal] = quota.Unbounded() }))
	for _, body := range []string{plainRequest, `{"model":"m","prompt":` + tokenIDs(85) + `,"truncate_prompt_tokens":84}`} {
		if got := h.complete(body); got.status != 503 || !strings.Contains(got.body, `"code":"modal_cold_boot"`) {
			t.Errorf("%.60s: got %d %s, want 503 modal_cold_boot", body, got.status, got.body)
		}
	}
}
