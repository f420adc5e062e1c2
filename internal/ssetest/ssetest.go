// Package ssetest provides example streams of vLLM's completion API to the tests of several packages. It is imported by
// tests only.
package ssetest

import (
	"embed"
	"fmt"
	"path"
	"regexp"
	"strings"
)

// Done is the event that ends a stream.
const Done = "data: [DONE]\n\n"

// usage is the event that reports the usage; it has no choices.
const usage = "data: {\"id\":\"cmpl-1\",\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"total_tokens\":8,\"completion_tokens\":3}}\n\n"

// Event returns an event with one choice. finishReason is JSON: null or a string.
func Event(index int, text, finishReason string) string {
	return fmt.Sprintf("data: {\"id\":\"cmpl-1\",\"choices\":[{\"index\":%d,\"text\":%q,\"finish_reason\":%s}]}\n\n", index, text, finishReason)
}

// Stream is a complete stream with usage.
type Stream struct {
	Name    string
	Request string   // the members of the request's body that the stream depends on
	Choices int      // number of prompts times n
	Events  []string // with terminators; the last ones are the usage event and Done
}

// Text returns the whole stream.
func (s Stream) Text() string { return strings.Join(s.Events, "") }

// Passed returns what a client receives of the stream: the events that have data, without comments, and with the usage event
// if the client asked for it.
func (s Stream) Passed(usage bool) string {
	var kept strings.Builder
	for _, e := range s.Events {
		if usage || !IsUsage(e) {
			kept.WriteString(WithoutComments(e))
		}
	}
	return kept.String()
}

// IsUsage reports whether an event is the one of the usage.
func IsUsage(event string) bool {
	return strings.Contains(event, `"usage":{`) && !strings.Contains(event, `"choices":[{`)
}

// WithoutComments returns an event without its comments, and nothing if it has no data.
func WithoutComments(event string) string {
	without := regexp.MustCompile(`(?m)^:.*\r?\n`).ReplaceAllString(strings.TrimLeft(event, "\r\n"), "")
	if !regexp.MustCompile(`(?m)^data:.*\S`).MatchString(without) {
		return ""
	}
	return without
}

// Streams returns the recorded streams of several versions of vLLM, and one stream for each unusual form that a parser
// could fail at.
func Streams() []Stream { return append(recordedStreams(), syntheticStreams()...) }

// recorded are streams that were requested with include_usage, byte for byte. The names of those with two choices
// contain "n2".
//
//go:embed recorded/*.sse
var recorded embed.FS

func recordedStreams() []Stream {
	const dir = "recorded"
	files, err := recorded.ReadDir(dir)
	if err != nil {
		panic(err) // impossible: the directory is embedded
	}
	all := make([]Stream, 0, len(files))
	for _, f := range files {
		text, err := recorded.ReadFile(path.Join(dir, f.Name()))
		if err != nil {
			panic(err) // impossible: the file is embedded
		}
		s := Stream{Name: f.Name(), Request: `"prompt":"x"`, Choices: 1}
		if strings.Contains(f.Name(), "n2") {
			s.Request, s.Choices = `"prompt":"x","n":2`, 2
		}
		s.Events = strings.SplitAfter(strings.TrimSuffix(string(text), "\n\n"), "\n\n")
		s.Events[len(s.Events)-1] += "\n\n"
		all = append(all, s)
	}
	return all
}

func syntheticStreams() []Stream {
	crlf := func(event string) string { return strings.ReplaceAll(event, "\n\n", "\r\n\r\n") }
	return []Stream{
		{"three choices, interleaved", `"prompt":"x","n":3`, 3, []string{
			Event(2, "a", "null"), Event(0, "b", "null"), Event(2, "", `"stop"`), Event(1, "c", `"length"`), Event(0, "d", `"stop"`), usage, Done,
		}},
		{"several prompts of two choices", `"prompt":["x","y"],"n":2`, 4, []string{
			Event(3, "a", `"stop"`), Event(0, "b", `"stop"`), Event(2, "c", `"stop"`), Event(1, "d", `"stop"`), usage, Done,
		}},
		{"echo with logprobs", `"prompt":"x","echo":true,"logprobs":1`, 1, []string{
			`data: {"id":"cmpl-1","choices":[{"index":0,"text":"The sea","logprobs":{"text_offset":[0,3],"token_logprobs":[null,-1.25e-3],` +
				`"tokens":["The"," sea"],"top_logprobs":[null,{" sea":-1.25e-3}]},"finish_reason":null}]}` + "\n\n",
			Event(0, ".", `"stop"`), usage, Done,
		}},
		{"characters that look like line breaks", `"prompt":"x"`, 1, []string{
			"data: {\"choices\":[{\"index\":0,\"text\":\"\u2028 \u2029 \u0085 🦙\u200d\ufe0f\",\"finish_reason\":null}]}\n\n", Event(0, "data: [DONE]\n\n", `"stop"`), usage, Done,
		}},
		{"half a character", `"prompt":"x"`, 1, []string{
			Event(0, "", "null"), "data: {\"choices\":[{\"index\":0,\"text\":\"\xf0\x9f\",\"finish_reason\":\"stop\"}]}\n\n", usage, Done,
		}},
		{"lines that end with CR LF", `"prompt":"x"`, 1, []string{
			crlf(Event(0, "a", "null")), crlf(Event(0, "b", `"stop"`)), crlf(usage), Done,
		}},
		{"comments and other fields between events", `"prompt":"x"`, 1, []string{
			Event(0, "a", "null"), ": ping\n\n", "event: message\nid: 7\n" + Event(0, "b", "null"), ": ping\n" + Event(0, "c", `"stop"`), usage, ":\n\n", Done,
		}},
		{"comments without an end, and events without data", `"prompt":"x"`, 1, []string{
			": one\n: two\n" + Event(0, "a", "null"), "\n" + Event(0, "b", "null"), "\r\n: ping\r\n\r\n", ":\n\n\n\n", "retry: 3000\n\n", "id: 7\n\n",
			"event: ping\n\n", "data\n\n", "data:\n\n", "data: \r\n\r\n", strings.TrimSuffix(Event(0, "c", `"stop"`), "\n") + ": receipt {}\n\n", usage, Done,
		}},
		{"a usage event with null for its choices", `"prompt":"x"`, 1, []string{
			Event(0, "a", `"stop"`), strings.Replace(usage, "[]", "null", 1), Done,
		}},
		{"a usage event without choices", `"prompt":"x"`, 1, []string{
			Event(0, "a", `"stop"`), strings.Replace(usage, `"choices":[],`, "", 1), Done,
		}},
		{"spaces in the JSON and none after the colon", `"prompt":"x"`, 1, []string{
			"data:{ \"choices\" : [ {\"finish_reason\" :\"stop\",\"index\": 0, \"text\":\"\"} ] }\n\n", usage, Done,
		}},
		{"usage in every event", `"prompt":"x"`, 1, []string{
			`data: {"choices":[{"index":0,"text":"a","finish_reason":"stop"}],"usage":{"prompt_tokens":5,"total_tokens":6,"completion_tokens":1}}` + "\n\n", usage, Done,
		}},
	}
}
