//go:build e2e

package e2e_test

import (
	"errors"
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

// Markers that enter in every way that a client or a backend has, failures included, leave the gateway in responses only.
func TestPromptsCompletionsAndKeysAreStoredNowhere(t *testing.T) {
	const prompt, completion, upstreamMessage, field = "marker-prompt-Xq7", "marker-completion-Yw8", "marker-upstream-Zv9", "marker-field-Uu5"
	g, mock := startGateway(t, settings{extra: "log: {level: debug}\nbreaker: {consecutive_failures: 1000}"}, mockvllm.Options{})
	send := func(extra string) response {
		return g.complete(fmt.Sprintf(`{"model": "m", "prompt": %q, "max_tokens": 4%s}`, prompt, extra))
	}
	inject := func(kind string, f mockvllm.Fault) { f.Kind = kind; mock.InjectFault(f) }

	if got := send(`, "echo": true`); !strings.Contains(got.body, prompt) {
		t.Fatalf("the prompt was not echoed, so the test proves nothing: %s", got.body)
	}
	send(`, "stream": true`)
	inject("error", mockvllm.Fault{Status: 200, Body: fmt.Sprintf(`{"id":"c","object":"text_completion","created":1,"model":%q,"choices":[{"index":0,"text":%q,"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}`, checkpoint, completion)})
	if got := send(""); !strings.Contains(got.body, completion) {
		t.Fatalf("the response lacks the completion, so the test proves nothing: %s", got.body)
	}
	inject("nested", mockvllm.Fault{Status: 400, Message: upstreamMessage + " " + prompt})
	if got := send(""); got.status != http.StatusBadRequest || !strings.Contains(got.body, upstreamMessage) {
		t.Fatalf("the response lacks vLLM's message, so the test proves nothing: %d %s", got.status, got.body)
	}
	for _, kind := range []string{"nested", "flat", "text", "oom", "ok_error", "error_event"} {
		inject(kind, mockvllm.Fault{Message: upstreamMessage + " " + prompt, Times: 3})
		send("")
		mock.ClearFaults()
		inject(kind, mockvllm.Fault{Message: upstreamMessage + " " + prompt, AfterEvents: 1})
		send(`, "stream": true`)
		mock.ClearFaults()
	}
	inject("garbage", mockvllm.Fault{Body: upstreamMessage, Times: 3})
	send("")
	mock.ClearFaults()
	inject("cut", mockvllm.Fault{AfterEvents: 1})
	send(`, "stream": true`)
	send(fmt.Sprintf(`, %q: 1`, field))
	send(fmt.Sprintf(`, "stop": [%q, 7]`, prompt))
	g.complete(fmt.Sprintf(`{"model": %q, "prompt": "x"}`, field))
	g.complete(fmt.Sprintf(`{"prompt": %q, "model": "m", `, prompt)) // truncated JSON
	unknownKey := "acs-bm-" + strings.Repeat("Other", 8) + "abc"
	if _, err := post(g.url, unknownKey, smallRequest); err != nil {
		t.Fatal(err)
	}
	g.get(g.url, "/v1/models?token="+field)

	outputs := map[string]string{"/metrics": g.get(g.admin, "/metrics").body}
	g.signal(syscall.SIGTERM)
	g.waitExit()
	outputs["stderr"], outputs["stdout"] = g.stderr.String(), g.stdout.String()
	maps.Copy(outputs, readFiles(t, g.dir))
	if len(outputs) < 5 || !strings.Contains(outputs["stderr"], g.email) {
		t.Fatalf("too few outputs were searched: %d", len(outputs))
	}
	secretTail := g.secret[len("acs-bm-")+6:]
	for output, text := range outputs {
		for name, marker := range map[string]string{
			"the prompt": prompt, "the completion": completion, "vLLM's message": upstreamMessage, "an unknown field's name": field,
			"the key": secretTail, "an unknown key": unknownKey[13:],
		} {
			if strings.Contains(text, marker) {
				t.Errorf("%s is in %s: %s", name, output, lineContaining(text, marker))
			}
		}
	}
}

// readFiles returns the contents of all files in a folder, by path.
func readFiles(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			return nil
		}
		var text []byte
		if err == nil {
			text, err = os.ReadFile(path)
		}
		if path != dir && errors.Is(err, fs.ErrNotExist) {
			return nil // deleted since its folder was listed
		}
		all[path] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// lineContaining returns the first line that contains part, or "".
func lineContaining(text, part string) string {
	for line := range strings.Lines(text) {
		if strings.Contains(line, part) {
			return line
		}
	}
	return ""
}
