package mockvllm_test

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"basegate/mockvllm"
)

var update = flag.Bool("update", false, "rewrite the golden files in testdata")

var versions = []string{"0.8.5", "0.11.0", "0.32.0", "0.33.0"}

// goldenRequests are sent to every version; the responses are its golden file.
var goldenRequests = []struct {
	name, path, body string
}{
	{"plain", completions, `{"model":"mock-model","prompt":"The capital of France is","max_tokens":2,"temperature":0,"logprobs":1}`},
	{"echo and scores", completions, `{"model":"mock-model","prompt":"The capital","max_tokens":1,"temperature":0,"prompt_logprobs":1,"echo":true,"return_token_ids":true}`},
	{"stream", completions, `{"model":"mock-model","prompt":"The capital of France is","max_tokens":2,"temperature":0,"stream":true}`},
	{"stream with usage", completions, `{"model":"mock-model","prompt":"The capital of France is","max_tokens":1,"temperature":0,"stream":true,"stream_options":{"include_usage":true}}`},
	{"stream with running usage", completions, `{"model":"mock-model","prompt":"The capital of France is","max_tokens":1,"temperature":0,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true},"return_token_ids":true}`},
	{"stop string", completions, `{"model":"mock-model","prompt":"The capital of France is","temperature":0,"stop":["."]}`},
	{"best_of", completions, `{"model":"mock-model","prompt":"The capital of France is","max_tokens":1,"seed":1,"best_of":3}`},
	{"unknown model", completions, `{"model":"nobody","prompt":"x"}`},
	{"too long", completions, `{"model":"mock-model","prompt":[1,2,3],"temperature":0,"max_tokens":100}`},
	{"too long text", completions, `{"model":"mock-model","prompt":"a b c d e f g h i j k l m n o p q r s t u v w x y z 1 2 3","temperature":0,"max_tokens":50}`},
	{"far too long text", completions, `{"model":"mock-model","prompt":"` + strings.Repeat("a", 1000) + `","max_tokens":50}`},
	{"max_tokens over the context", completions, `{"model":"mock-model","prompt":"x","max_tokens":65}`},
	{"wrong type", completions, `{"model":"mock-model","prompt":"x","temperature":"hot"}`},
	{"missing prompt", completions, `{"model":"mock-model"}`},
	{"bad JSON", completions, `{"model":"mock-model",}`},
	{"out of range", completions, `{"model":"mock-model","prompt":"x","top_p":0}`},
	{"greedy n", completions, `{"model":"mock-model","prompt":"x","temperature":0,"n":2}`},
	{"stream options without stream", completions, `{"model":"mock-model","prompt":"x","stream_options":{"include_usage":true}}`},
	{"logprobs over the limit", completions, `{"model":"mock-model","prompt":"x","logprobs":21}`},
	{"logprobs over the limit in a stream", completions, `{"model":"mock-model","prompt":"x","logprobs":21,"stream":true}`},
	{"suffix", completions, `{"model":"mock-model","prompt":"x","suffix":""}`},
	{"engine death in a stream", completions, `{"model":"mock-model","prompt":"The capital of France is","stream":true,"seed":1}`},
	{"dead engine", completions, `{"model":"mock-model","prompt":"x"}`},
}

// timestamps matches the part of a response that differs between runs.
var timestamps = regexp.MustCompile(`"created":\d+`)

func TestResponsesOfEachVersionMatchGoldenFiles(t *testing.T) {
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			p := start(t, mockvllm.Options{Version: version, MaxModelLen: 64})
			var got strings.Builder
			for _, request := range goldenRequests {
				if request.name == "engine death in a stream" {
					p.InjectFault(mockvllm.Fault{Kind: "engine_dead", AfterEvents: 1})
				}
				a := send(t, p, http.MethodPost, request.path, request.body)
				fmt.Fprintf(&got, "== %s: %.200s\n%d %s\n%s\n", request.name, request.body, a.status, a.header.Get("Content-Type"),
					timestamps.ReplaceAllString(a.body, `"created":0`))
			}
			compareGolden(t, version+".golden", got.String())
		})
	}
}

func compareGolden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

func TestMediaTypeCheckDependsOnVersion(t *testing.T) {
	for version, want := range map[string]int{"0.8.5": 415, "0.11.0": 400, "0.32.0": 400} {
		p := start(t, mockvllm.Options{Version: version})
		response, err := client().Post(p.URL()+completions, "text/plain", strings.NewReader(body(t, nil)))
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("%s: got %d, want %d", version, response.StatusCode, want)
		}
	}
}
