//go:build e2e

package e2e_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
)

// startLlamaServer starts a server that responds in the form recorded from llama.cpp's llama-server, build 10434.
func startLlamaServer(t *testing.T) string {
	t.Helper()
	const tail = `"created":1,"model":"tiny","system_fingerprint":"b1","object":"text_completion","id":"chatcmpl-1"`
	choice := func(text, logprobs, finish string) string {
		return fmt.Sprintf(`{"text":%q,"index":0,"logprobs":%s,"finish_reason":%s}`, text, logprobs, finish)
	}
	mux := http.NewServeMux()
	respond := func(w http.ResponseWriter, body string) {
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		io.WriteString(w, body)
	}
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { respond(w, `{"status":"ok"}`) })
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		respond(w, `{"object":"list","data":[{"id":"`+checkpoint+`","object":"model","owned_by":"llamacpp"}]}`)
	})
	mux.HandleFunc("POST /tokenize", func(w http.ResponseWriter, _ *http.Request) { respond(w, `{"tokens":[]}`) })
	mux.HandleFunc("POST /v1/completions", func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		request := gjson.ParseBytes(text)
		usage := fmt.Sprintf(`"usage":{"completion_tokens":%[1]d,"prompt_tokens":6,"total_tokens":%[2]d}`,
			request.Get("max_tokens").Int(), 6+request.Get("max_tokens").Int())
		logprobs := "null"
		if request.Get("logprobs").Exists() {
			logprobs = `{"content":[{"id":60,"token":"i","logprob":-4.4,"top_logprobs":[]}]}`
		}
		if !request.Get("stream").Bool() {
			choices := strings.TrimSuffix(strings.Repeat(choice("ipt", logprobs, `"length"`)+",", max(1, int(request.Get("n").Int()))), ",")
			respond(w, `{"choices":[`+choices+`],`+tail+`,`+usage+`}`)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for _, token := range []string{"i", "p", "t"} {
			fmt.Fprintf(w, "data: {\"choices\":[%s],%s}\n\n", choice(token, logprobs, "null"), tail)
		}
		fmt.Fprintf(w, "data: {\"choices\":[%s],%s,%s}\n\ndata: [DONE]\n\n", choice("", logprobs, `"length"`), tail, usage)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

func TestProbeNamesWhatAServerLacks(t *testing.T) {
	env := newEnvironment(t, settings{probeTimeout: loadedProbe}, startLlamaServer(t))
	table, _, code := runCommand(t, "check", "--probe", "--config", env.config)
	if code != 1 { // it cannot count tokens
		t.Errorf("got exit code %d, want 1", code)
	}
	for _, name := range []string{"logprobs", "prompt_logprobs", "echo", "usage of n", "several prompts", "return_token_ids"} {
		if !strings.Contains(table, "lacks "+name+":") {
			t.Errorf("the table does not say that the server lacks %s", name)
		}
	}
	for _, name := range []string{"usage", "usage in streams", "n", "token ids as prompt"} {
		if strings.Contains(table, "lacks "+name+":") {
			t.Errorf("the table says that the server lacks %s", name)
		}
	}
	if !strings.Contains(table, "tokens spent") || t.Failed() {
		t.Errorf("got the table\n%s", table)
	}
}
