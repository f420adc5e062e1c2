package mockvllm_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"basegate/mockvllm"
)

func TestCachedTokensAndTimesAreReportedByTheFlags(t *testing.T) {
	prompt := `"prompt":"` + strings.Repeat("a", 40) + `","max_tokens":3,"ignore_eos":true`
	for name, c := range map[string]struct {
		options         mockvllm.Options
		details, second string // prompt_tokens_details of the first and the second request
		metrics         bool
	}{
		"without":    {mockvllm.Options{PrefixCacheBlocks: 100}, "", "", false},
		"both":       {mockvllm.Options{PrefixCacheBlocks: 100, PromptTokensDetails: true, PerRequestMetrics: true}, `{"cached_tokens":0,"created_cache_tokens":32}`, `{"cached_tokens":32,"created_cache_tokens":0}`, true},
		"before 0.9": {mockvllm.Options{Version: "0.8.5", PrefixCacheBlocks: 100, PromptTokensDetails: true, PerRequestMetrics: true}, "", `{"cached_tokens":32}`, false},
	} {
		p := start(t, c.options)
		check := func(what, object, details string) {
			t.Helper()
			o := gjson.Parse(object)
			if got := o.Get("usage.prompt_tokens_details"); strings.TrimPrefix(got.Raw, "null") != details {
				t.Errorf("%s, %s: got prompt_tokens_details %s, want %s", name, what, got.Raw, details)
			}
			if got := o.Get("metrics"); got.IsObject() != c.metrics || c.metrics && !(got.Get("mean_itl_ms").Exists() && got.Get("time_to_first_token_ms").Num >= 0) {
				t.Errorf("%s, %s: got metrics %s", name, what, got.Raw)
			}
		}
		check("plain", send(t, p, http.MethodPost, "/v1/completions", `{"model":"mock-model",`+prompt+`}`).body, c.details)
		stream := send(t, p, http.MethodPost, "/v1/completions", `{"model":"mock-model",`+prompt+`,"stream":true,"stream_options":{"include_usage":true}}`).body
		events := strings.Split(strings.TrimSpace(stream), "\n\n")
		check("stream", strings.TrimPrefix(events[len(events)-2], "data: "), c.second)
	}
}
