package validate_test

import (
	"strings"
	"testing"

	"basegate/validate"
)

// bodyTemplate is a body with most fields; "%" is replaced by the prompt.
const bodyTemplate = `{"model": "llama-8b", "prompt": "%", "max_tokens": 64, "temperature": 0.70, "top_p": 0.95, "top_k": 40, ` +
	`"seed": 42, "n": 1, "stop": ["\n\n", "END"], "logprobs": 5, "echo": false, "stream": true, ` +
	`"stream_options": {"include_usage": true}, "user": "run-17/sample-3"}`

const sentence = "The river was low that summer, and the men who kept the mill talked of little else. "

// bodyOfSize returns a body of about size bytes, most of it prompt.
func bodyOfSize(size int) []byte {
	prompt := strings.Repeat(sentence, 1+size/len(sentence))[:max(1, size-len(bodyTemplate))]
	return []byte(strings.Replace(bodyTemplate, "%", prompt, 1))
}

var anyModel = validate.Model{MaxLogprobs: 20, DefaultMaxTokens: validate.DefaultChatMaxTokens, XArgs: []string{"alpha", "beta"}}

// defaultLimits are the limits in most tests.
var defaultLimits = validate.Limits{
	Model: func(string) validate.Model { return anyModel },
}

func BenchmarkCompletion(b *testing.B) {
	for _, size := range []struct {
		name  string
		bytes int
	}{{"1KB", 1 << 10}, {"100KB", 100 << 10}, {"1MB", 1 << 20}} {
		body := bodyOfSize(size.bytes)
		b.Run(size.name, func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := validate.Completion(body, defaultLimits); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkUpstream(b *testing.B) {
	r, err := validate.Completion(bodyOfSize(1<<10), defaultLimits)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		r.Upstream(validate.Edits{Model: "meta-llama/Llama-3.1-8B"})
	}
}

func BenchmarkDeepNesting(b *testing.B) {
	brackets := []byte(strings.Repeat("[", 16<<20))
	nested := []byte(`{"model":` + strings.Repeat("[", 16<<20))
	for name, body := range map[string][]byte{"brackets": brackets, "nested": nested} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := validate.Completion(body, defaultLimits); err == nil {
					b.Fatal("accepted")
				}
			}
		})
	}
}
