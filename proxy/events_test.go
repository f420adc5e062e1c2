package proxy_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// lastChunk is the event with the usage, which has no choices.
const lastChunk = "data: {\"id\":\"cmpl-1\",\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"total_tokens\":8,\"completion_tokens\":3}}\n\n"

// A stream is the same to the client however it is split on its way: in two at every byte, and byte by byte.
func TestAStreamIsTheSameHoweverItIsSplit(t *testing.T) {
	scored := `data: {"id":"cmpl-1","choices":[{"index":0,"text":"The sea","logprobs":{"text_offset":[0,3],"token_logprobs":[null,-1.25e-3],"tokens":["The"," sea"],"top_logprobs":[null,{" sea":-1.25e-3}]},"finish_reason":null}]}` + "\n\n"
	for _, c := range []struct {
		name, request string
		events        []string // the usage is what lastChunk says
	}{
		{"three choices, interleaved", `"prompt":"x","n":3`, []string{
			event(2, "a", "null"), event(0, "b", "null"), event(2, "", `"stop"`), event(1, "c", `"length"`), event(0, "d", `"stop"`), lastChunk,
		}},
		{"several prompts of two choices", `"prompt":["x","y"],"n":2`, []string{
			event(3, "a", `"stop"`), event(0, "b", `"stop"`), event(2, "c", `"stop"`), event(1, "d", `"stop"`), lastChunk,
		}},
		{"echo with logprobs", `"prompt":"x","echo":true,"logprobs":1`, []string{scored, event(0, ".", `"stop"`), lastChunk}},
		{"characters that look like line breaks", `"prompt":"x"`, []string{
			"data: {\"choices\":[{\"index\":0,\"text\":\"\u2028 \u2029 \u0085 🦙\u200d\ufe0f\",\"finish_reason\":null}]}\n\n", event(0, "data: [DONE]\n\n", `"stop"`), lastChunk,
		}},
		{"half a character", `"prompt":"x"`, []string{event(0, "", "null"), "data: {\"choices\":[{\"index\":0,\"text\":\"\xf0\x9f\",\"finish_reason\":\"stop\"}]}\n\n", lastChunk}},
		{"lines that end with CR LF", `"prompt":"x"`, []string{
			strings.ReplaceAll(event(0, "a", "null"), "\n\n", "\r\n\r\n"), strings.ReplaceAll(event(0, "b", `"stop"`), "\n\n", "\r\n\r\n"), strings.ReplaceAll(lastChunk, "\n\n", "\r\n\r\n"),
		}},
		{"comments and other fields between events", `"prompt":"x"`, []string{
			event(0, "a", "null"), ": ping\n\n", "event: message\nid: 7\n" + event(0, "b", "null"), ": ping\n" + event(0, "c", `"stop"`), lastChunk, ":\n\n",
		}},
		{"spaces in the JSON and none behind the colon", `"prompt":"x"`, []string{
			"data:{ \"choices\" : [ {\"finish_reason\" :\"stop\",\"index\": 0, \"text\":\"\"} ] }\n\n", lastChunk,
		}},
		{"usage in every event", `"prompt":"x"`, []string{
			`data: {"choices":[{"index":0,"text":"a","finish_reason":"stop"}],"usage":{"prompt_tokens":5,"total_tokens":6,"completion_tokens":1}}` + "\n\n", lastChunk,
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			sent := strings.Join(c.events, "") + doneEvent
			without := strings.Replace(sent, usageOf(c.events), "", 1)
			var writes []string
			r := newRig(t, nil, upstream(t, func(w http.ResponseWriter, q *http.Request) { streams(writes...)(w, q) }))
			check := func(how string) {
				t.Helper()
				for usage, want := range map[string]string{`,"stream_options":{"include_usage":true}`: sent, "": without} {
					got := r.complete(fmt.Sprintf(`{"model":"m",%s,"stream":true%s}`, c.request, usage))
					if got.body != want {
						t.Fatalf("%s, usage %q (-want +got):\n%s", how, usage, cmp.Diff(want, got.body))
					}
				}
			}
			for at := 1; at < len(sent); at++ {
				writes = []string{sent[:at], sent[at:]}
				check(fmt.Sprint("split at ", at))
			}
			writes = strings.Split(sent, "")
			check("byte by byte")
			writes = []string{sent}
			check("whole")
		})
	}
}

// usageOf is the event among events that has no choices.
func usageOf(events []string) string {
	for _, e := range events {
		if strings.Contains(e, `"choices":[]`) {
			return e
		}
	}
	return ""
}
