//go:build e2e

package e2e_test

import (
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"basegate/mockvllm"
)

// Markers go in by every way that a client or a backend has, failures included, and come out nowhere but in answers.
func TestPromptsCompletionsAndKeysAreKeptNowhere(t *testing.T) {
	const prompt, completion, told, field = "marker-prompt-Xq7", "marker-completion-Yw8", "marker-upstream-Zv9", "marker-field-Uu5"
	g, mock := gatewayOf(t, settings{rest: "log: {level: debug}\nbreaker: {consecutive_failures: 1000}"}, mockvllm.Options{})
	send := func(extra string) reply {
		return g.complete(fmt.Sprintf(`{"model": "m", "prompt": %q, "max_tokens": 4%s}`, prompt, extra))
	}
	vllm := func(kind string, f mockvllm.Fault) { f.Kind = kind; mock.InjectFault(f) }

	if answer := send(`, "echo": true`); !strings.Contains(answer.body, prompt) {
		t.Fatalf("the prompt was not echoed, so nothing is proved: %s", answer.body)
	}
	send(`, "stream": true`)
	vllm("error", mockvllm.Fault{Status: 200, Body: fmt.Sprintf(`{"id":"c","object":"text_completion","created":1,"model":%q,"choices":[{"index":0,"text":%q,"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}`, checkpoint, completion)})
	if answer := send(""); !strings.Contains(answer.body, completion) {
		t.Fatalf("the completion did not come, so nothing is proved: %s", answer.body)
	}
	vllm("nested", mockvllm.Fault{Status: 400, Message: told + " " + prompt})
	if answer := send(""); answer.status != http.StatusBadRequest || !strings.Contains(answer.body, told) {
		t.Fatalf("vLLM's message did not come, so nothing is proved: %d %s", answer.status, answer.body)
	}
	for _, kind := range []string{"nested", "flat", "text", "oom", "ok_error", "error_event"} {
		vllm(kind, mockvllm.Fault{Message: told + " " + prompt, Times: 3})
		send("")
		mock.ClearFaults()
		vllm(kind, mockvllm.Fault{Message: told + " " + prompt, AfterEvents: 1})
		send(`, "stream": true`)
		mock.ClearFaults()
	}
	vllm("garbage", mockvllm.Fault{Body: told, Times: 3})
	send("")
	mock.ClearFaults()
	vllm("cut", mockvllm.Fault{AfterEvents: 1})
	send(`, "stream": true`)
	send(fmt.Sprintf(`, %q: 1`, field))
	send(fmt.Sprintf(`, "stop": [%q, 7]`, prompt))
	g.complete(fmt.Sprintf(`{"model": %q, "prompt": "x"}`, field))
	g.complete(fmt.Sprintf(`{"prompt": %q, "model": "m", `, prompt)) // not whole
	stray := "acs-bm-" + strings.Repeat("Stray", 8) + "abc"
	if _, err := post(g.url, stray, small); err != nil {
		t.Fatal(err)
	}
	g.get(g.url, "/v1/models?token="+field)

	places := map[string]string{"/metrics": g.get(g.admin, "/metrics").body}
	g.signal(syscall.SIGTERM)
	g.code()
	places["stderr"], places["stdout"] = g.stderr.String(), g.stdout.String()
	maps.Copy(places, files(t, g.dir))
	if len(places) < 5 || !strings.Contains(places["stderr"], g.email) {
		t.Fatalf("looked at too little: %d places", len(places))
	}
	secretTail := g.secret[len("acs-bm-")+6:]
	for place, text := range places {
		for name, marker := range map[string]string{
			"the prompt": prompt, "the completion": completion, "vLLM's message": told, "an unknown field's name": field,
			"the key": secretTail, "a key that does not exist": stray[13:],
		} {
			if strings.Contains(text, marker) {
				t.Errorf("%s is in %s: %s", name, place, lineWith(text, marker))
			}
		}
	}
}

// files are all files of a folder.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		all[path] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
