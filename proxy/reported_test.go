package proxy_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"basegate/budget/usage"
)

func TestWhatBackendsReportIsRecordedAndPassedOn(t *testing.T) {
	t.Parallel()
	const (
		tokens  = `"usage":{"prompt_tokens":5,"completion_tokens":1,"total_tokens":6,"prompt_tokens_details":%s}`
		details = `{"cached_tokens":4,"created_cache_tokens":9}`
		times   = `,"metrics":{"time_to_first_token_ms":85.2,"generation_time_ms":0.0,"queue_time_ms":0,"mean_itl_ms":%s,"tokens_per_second":1.5}`
	)
	number := func(n int64) *int64 { return &n }
	for name, c := range map[string]struct {
		members string
		want    usage.Reported
	}{
		"all": {fmt.Sprintf(tokens, details) + fmt.Sprintf(times, "9.1"), usage.Reported{
			CachedTokens: number(4), CreatedTokens: number(5), Queue: number(0), Prefill: number(85_200), Between: number(9100),
		}},
		"tokens":          {fmt.Sprintf(tokens, details) + `,"metrics":null`, usage.Reported{CachedTokens: number(4), CreatedTokens: number(5)}},
		"none cached":     {fmt.Sprintf(tokens, `{"cached_tokens":0}`), usage.Reported{CachedTokens: number(0)}},
		"times":           {fmt.Sprintf(tokens, "null") + fmt.Sprintf(times, "null"), usage.Reported{Queue: number(0), Prefill: number(85_200)}},
		"nothing":         {fmt.Sprintf(tokens, "null"), usage.Reported{}},
		"impossible ones": {fmt.Sprintf(tokens, `{"cached_tokens":-1,"created_cache_tokens":"7"}`) + `,"metrics":[1]`, usage.Reported{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const choice = `"choices":[{"index":0,"text":"a","finish_reason":"stop"}]`
			plain := `{"object":"text_completion",` + choice + `,` + c.members + `}`
			events := []string{"data: {" + choice + "}\n\n", `data: {"choices":[],` + c.members + "}\n\n", doneEvent}
			backend := startBackend(t, func(w http.ResponseWriter, r *http.Request) {
				if body, _ := io.ReadAll(r.Body); bytes.Contains(body, []byte(`"stream"`)) {
					respondStream(events...)(w, r)
					return
				}
				respond(http.StatusOK, "application/json", plain)(w, r)
			})
			h := newHarness(t, nil, backend)
			if got := h.complete(`{"model":"m","prompt":[1,2,3,4,5],"max_tokens":1}`).body; got != plain {
				t.Errorf("got the response %s, want that of the backend", got)
			}
			stream := h.complete(`{"model":"m","prompt":[1,2,3,4,5],"max_tokens":1,"stream":true,"stream_options":{"include_usage":true}}`)
			if got := stream.body; got != strings.Join(events, "") {
				t.Errorf("got the stream %s, want that of the backend", got)
			}
			for _, row := range h.awaitRows(2) {
				if diff := cmp.Diff(c.want, row.Reported); diff != "" {
					t.Errorf("stream %v (-want +got):\n%s", row.Stream, diff)
				}
			}
			want := [2]int{}
			if n := c.want.CachedTokens; n != nil {
				want = [2]int{2 * int(*n), 2 * 5}
			}
			const labels = `{backend="b0",model="m"}`
			if got := [2]int{h.metric("basegate_cached_prompt_tokens_total" + labels), h.metric("basegate_cache_known_prompt_tokens_total" + labels)}; got != want {
				t.Errorf("got %v cached and known tokens in the metrics, want %v", got, want)
			}
		})
	}
}
