package validate_test

import (
	"bytes"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"basegate/validate"
)

// checkpoint replaces every short id in these tests.
const checkpoint = "org/C"

func TestUpstreamChangesOnlyTheEditedBytes(t *testing.T) {
	keep, drop, emulate := validate.KeepBestOf, validate.DropBestOf, validate.EmulateBestOf
	for _, c := range []struct {
		name      string
		maxTokens int64
		bestOf    validate.BestOf
		body      string
		want      string
	}{
		{"model alone", 0, keep, `{"model":"m","prompt":"a"}`, `{"model":"org/C","prompt":"a"}`},
		{"model last", 0, keep, `{"prompt":"a","model":"m"}`, `{"prompt":"a","model":"org/C"}`},
		{"model by an escaped name", 0, keep, `{"mod\u0065l":"m","prompt":"a"}`, `{"mod\u0065l":"org/C","prompt":"a"}`},
		{
			"spaces, escapes and number literals stay", 0, keep,
			" {\r\n\t\"model\" : \"m\" ,\n \"prompt\":\"\\u0041\\/\\n é\\ud83d\\ude00\" , \"temperature\":0.70,\"top_p\" :1.0e0, \"seed\": -0 }\n ",
			" {\r\n\t\"model\" : \"org/C\" ,\n \"prompt\":\"\\u0041\\/\\n é\\ud83d\\ude00\" , \"temperature\":0.70,\"top_p\" :1.0e0, \"seed\": -0 }\n ",
		},
		{
			"text that looks like members stays", 0, keep,
			`{"prompt":"{\"model\":\"m\",\"user\":null,","model":"m","user":"\"model\":null"}`,
			`{"prompt":"{\"model\":\"m\",\"user\":null,","model":"org/C","user":"\"model\":null"}`,
		},

		{"null first", 0, keep, `{"user":null,"model":"m","prompt":"a"}`, `{"model":"org/C","prompt":"a"}`},
		{"null first with spaces", 0, keep, `{ "user" : null , "model":"m","prompt":"a"}`, `{  "model":"org/C","prompt":"a"}`},
		{"null in the middle", 0, keep, `{"model":"m","user":null,"prompt":"a"}`, `{"model":"org/C","prompt":"a"}`},
		{"null in the middle with spaces", 0, keep, `{"model":"m" , "user" : null , "prompt":"a"}`, `{"model":"org/C"  , "prompt":"a"}`},
		{"null last", 0, keep, `{"model":"m","prompt":"a","user":null}`, `{"model":"org/C","prompt":"a"}`},
		{"null last with spaces", 0, keep, "{\"model\":\"m\",\"prompt\":\"a\" ,\n \"user\": null\n}", "{\"model\":\"org/C\",\"prompt\":\"a\" \n}"},
		{"two nulls first", 0, keep, `{"user":null,"n":null,"model":"m","prompt":"a"}`, `{"model":"org/C","prompt":"a"}`},
		{"two nulls in the middle", 0, keep, `{"model":"m","user":null,"n":null,"prompt":"a"}`, `{"model":"org/C","prompt":"a"}`},
		{"two nulls last", 0, keep, `{"model":"m","prompt":"a","user":null,"n":null}`, `{"model":"org/C","prompt":"a"}`},
		{"nulls everywhere", 0, keep, `{"user":null,"model":"m","n":null,"prompt":"a","stop":null}`, `{"model":"org/C","prompt":"a"}`},
		{
			"all optional fields null", 0, keep,
			`{"max_tokens":null,"temperature":null,"top_p":null,"top_k":null,"min_p":null,"model":"m","presence_penalty":null,"frequency_penalty":null,` +
				`"repetition_penalty":null,"seed":null,"n":null,"best_of":null,"prompt":"a","stop":null,"logprobs":null,"prompt_logprobs":null,"echo":null,` +
				`"stream":null,"stream_options":null,"logit_bias":null,"user":null}`,
			`{"model":"org/C","prompt":"a"}`,
		},

		{"clamp of a max_tokens that is present", 7, keep, `{"model":"m", "max_tokens" : 100 , "prompt":"a"}`, `{"model":"org/C", "max_tokens" : 7 , "prompt":"a"}`},
		{"clamp of a max_tokens that is absent", 7, keep, `{"model":"m","prompt":"a" }`, `{"model":"org/C","prompt":"a","max_tokens":7 }`},
		{"clamp of a max_tokens that is null", 7, keep, `{"max_tokens":null,"model":"m","prompt":"a"}`, `{"max_tokens":7,"model":"org/C","prompt":"a"}`},
		{"clamp beside a null at the end", 7, keep, `{"model":"m","prompt":"a","user":null}`, `{"model":"org/C","prompt":"a","max_tokens":7}`},
		{"clamp by an escaped name", 7, keep, `{"model":"m","prompt":"a","max_tok\u0065ns":16}`, `{"model":"org/C","prompt":"a","max_tok\u0065ns":7}`},
		{"no clamp and null", 0, keep, `{"model":"m","prompt":"a","max_tokens":null}`, `{"model":"org/C","prompt":"a"}`},

		{"stream without options", 0, keep, `{"model":"m","prompt":"a","stream":true}`, `{"model":"org/C","prompt":"a","stream":true,"stream_options":{"include_usage":true}}`},
		{"stream with options null", 0, keep, `{"model":"m","stream_options":null,"prompt":"a","stream":true}`, `{"model":"org/C","stream_options":{"include_usage":true},"prompt":"a","stream":true}`},
		{"stream with options empty", 0, keep, `{"model":"m","prompt":"a","stream":true,"stream_options":{}}`, `{"model":"org/C","prompt":"a","stream":true,"stream_options":{"include_usage":true}}`},
		{"stream with options of white space", 0, keep, `{"model":"m","prompt":"a","stream":true,"stream_options": { } }`, `{"model":"org/C","prompt":"a","stream":true,"stream_options": {"include_usage":true } }`},
		{"stream with usage false", 0, keep, `{"model":"m","prompt":"a","stream":true,"stream_options":{"include_usage":false}}`, `{"model":"org/C","prompt":"a","stream":true,"stream_options":{"include_usage":true}}`},
		{"stream with usage null", 0, keep, `{"model":"m","prompt":"a","stream":true,"stream_options":{"include_usage":null}}`, `{"model":"org/C","prompt":"a","stream":true,"stream_options":{"include_usage":true}}`},
		{
			"stream with usage false, with spaces and escapes", 0, keep,
			"{\"model\":\"m\",\"stream_options\" : {\n\t\"include\\u005fusage\" : false\n} , \"prompt\":\"a\",\"stream\":true}",
			"{\"model\":\"org/C\",\"stream_options\" : {\n\t\"include\\u005fusage\" : true\n} , \"prompt\":\"a\",\"stream\":true}",
		},
		{"stream with usage true", 0, keep, `{"model":"m","prompt":"a","stream":true,"stream_options":{ "include_usage":true }}`, `{"model":"org/C","prompt":"a","stream":true,"stream_options":{ "include_usage":true }}`},
		{"no stream", 0, keep, `{"model":"m","prompt":"a","stream":false}`, `{"model":"org/C","prompt":"a","stream":false}`},
		{"no stream and options null", 0, keep, `{"model":"m","prompt":"a","stream_options":null}`, `{"model":"org/C","prompt":"a"}`},
		{"stream, clamp and null at the end", 7, keep, `{"model":"m","prompt":"a","stream":true,"user":null}`, `{"model":"org/C","prompt":"a","stream":true,"max_tokens":7,"stream_options":{"include_usage":true}}`},

		{"best_of kept", 0, keep, `{"model":"m","prompt":"a","best_of":3,"n":2}`, `{"model":"org/C","prompt":"a","best_of":3,"n":2}`},
		{"nothing but nulls in an object", 0, keep, `{"vllm_xargs": { "a": null , "b":null },"model":"m","prompt":"a"}`, `{"vllm_xargs": {  },"model":"org/C","prompt":"a"}`},
		{"one null in an object", 0, keep, `{"model":"m","vllm_xargs":{"a":null},"n":1,"prompt":"a"}`, `{"model":"org/C","vllm_xargs":{},"n":1,"prompt":"a"}`},
		{"best_of dropped first", 0, drop, `{"best_of":2,"model":"m","prompt":"a","n":2}`, `{"model":"org/C","prompt":"a","n":2}`},
		{"best_of dropped in the middle", 0, drop, `{"model":"m","best_of":2,"prompt":"a","n":2}`, `{"model":"org/C","prompt":"a","n":2}`},
		{"best_of dropped last", 0, drop, `{"model":"m","prompt":"a","n":2,"best_of":2}`, `{"model":"org/C","prompt":"a","n":2}`},
		{"best_of dropped but absent", 0, drop, `{"model":"m","prompt":"a"}`, `{"model":"org/C","prompt":"a"}`},
		{"best_of dropped between nulls", 0, drop, `{"user":null,"best_of":1,"n":null,"model":"m","prompt":"a"}`, `{"model":"org/C","prompt":"a"}`},
		{"best_of dropped beside a clamp", 7, drop, `{"model":"m","prompt":"a","best_of":1}`, `{"model":"org/C","prompt":"a","max_tokens":7}`},
		{
			"best_of emulated, n and logprobs present", 0, emulate,
			`{"model":"m","prompt":"a","n":1,"best_of":4,"logprobs":2}`, `{"model":"org/C","prompt":"a","n":4,"logprobs":2}`,
		},
		{
			"best_of emulated, n and logprobs absent", 0, emulate,
			`{"model":"m","prompt":"a","best_of":4}`, `{"model":"org/C","prompt":"a","n":4,"logprobs":0}`,
		},
		{
			"best_of emulated, n and logprobs null", 0, emulate,
			`{"n":null,"best_of":4,"model":"m","prompt":"a","logprobs":null}`, `{"n":4,"model":"org/C","prompt":"a","logprobs":0}`,
		},
		{
			"best_of emulated, logprobs 0", 0, emulate,
			`{"model":"m","prompt":"a","best_of":4,"logprobs":0,"n":3}`, `{"model":"org/C","prompt":"a","logprobs":0,"n":4}`,
		},
		{
			"best_of emulated and clamped", 9, emulate,
			`{"best_of":4,"model":"m","prompt":"a","max_tokens":100}`, `{"model":"org/C","prompt":"a","max_tokens":9,"n":4,"logprobs":0}`,
		},
	} {
		r := mustParse(t, c.body)
		got := r.Upstream(validate.Edits{Model: checkpoint, MaxTokens: c.maxTokens, BestOf: c.bestOf})
		if diff := cmp.Diff(c.want, string(got.Append(nil))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
		checkReads(t, got)
		if _, err := parseMembers([]byte(c.want)); err != nil {
			t.Errorf("%s: the expected body is not an unambiguous JSON object: %v", c.name, err)
		}
	}
}

func TestCheckpointIsQuotedAsJSON(t *testing.T) {
	got := mustParse(t, minimal).Upstream(validate.Edits{Model: "a\"\\\n\u2028é"}).Append(nil)
	all, err := parseMembers(got)
	if err != nil {
		t.Fatalf("%s: %v", got, err)
	}
	if all[0].text() != "a\"\\\n\u2028é" {
		t.Errorf("%s", got)
	}
}

// A request may be sent to several backends in turn, each with different edits.
func TestUpstreamCanBeCalledAgain(t *testing.T) {
	r := mustParse(t, `{"model":"m","prompt":"a","best_of":2,"max_tokens":9}`)
	first := r.Upstream(validate.Edits{Model: "one", MaxTokens: 3, BestOf: validate.EmulateBestOf})
	second := r.Upstream(validate.Edits{Model: "two"})
	want := []string{`{"model":"one","prompt":"a","max_tokens":3,"n":2,"logprobs":0}`, `{"model":"two","prompt":"a","best_of":2,"max_tokens":9}`}
	if diff := cmp.Diff(want, []string{string(first.Append(nil)), string(second.Append(nil))}); diff != "" {
		t.Error(diff)
	}
}

func TestAppendKeepsExistingBytes(t *testing.T) {
	if got := string(mustParse(t, minimal).Upstream(validate.Edits{Model: "c"}).Append([]byte("before "))); !strings.HasPrefix(got, `before {"model": "c"`) {
		t.Error(got)
	}
}

// The segments share the client's bytes, so the cost is independent of the size of the prompt.
func TestUpstreamDoesNotCopyThePrompt(t *testing.T) {
	cost := func(size int) uint64 {
		r := mustParse(t, string(bodyOfSize(size)))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range 100 {
			r.Upstream(validate.Edits{Model: checkpoint, MaxTokens: 7})
		}
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	if small, large := cost(1<<10), cost(1<<20); large > small+1<<20 {
		t.Errorf("100 calls allocated %d bytes for a body of 1 KB, %d for one of 1 MB", small, large)
	}
}

// checkReads checks that all ways to read a body return the same bytes, and that Size is their number.
func checkReads(t *testing.T, b validate.Body) {
	t.Helper()
	want := b.Append(nil)
	if int64(len(want)) != b.Size() {
		t.Fatalf("Size is %d, but the body has %d bytes", b.Size(), len(want))
	}
	for name, r := range map[string]io.Reader{
		"at once": b.Reader(), "byte by byte": iotest.OneByteReader(b.Reader()), "by halves": iotest.HalfReader(b.Reader()),
	} {
		if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("read %s: %v\n%s", name, err, cmp.Diff(string(want), string(got)))
		}
	}
	for _, size := range []int{1, 2, 3, 5, 7, 64} {
		r, buffer := b.Reader(), make([]byte, size)
		var got []byte
		for {
			if n, err := r.Read(nil); n != 0 || err != nil {
				t.Fatalf("an empty read returned %d, %v", n, err)
			}
			n, err := r.Read(buffer)
			got = append(got, buffer[:n]...)
			if err == io.EOF {
				break
			}
			if err != nil || n == 0 {
				t.Fatalf("a read of %d bytes returned %d, %v", size, n, err)
			}
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("read %d bytes at a time (-want +got):\n%s", size, cmp.Diff(string(want), string(got)))
		}
		if n, err := r.Read(buffer); n != 0 || err != io.EOF {
			t.Fatalf("a read after the end returned %d, %v", n, err)
		}
	}
}

func TestUpstreamAddsThePriorityOfALine(t *testing.T) {
	got := mustParse(t, `{"model":"m","prompt":"a","n":null}`).Upstream(validate.Edits{Model: checkpoint, MaxTokens: 3, Priority: 1790000000}).Append(nil)
	const want = `{"model":"org/C","prompt":"a","priority":1790000000,"max_tokens":3}`
	if string(got) != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
