//go:build real

package real_test

import (
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/tidwall/gjson"
)

// TestRustFrontend puts a server with vLLM's Rust frontend behind the gateway, alone and beside one with the Python frontend. It
// takes one prompt and one completion, and ends with its engine.
func TestRustFrontend(t *testing.T) {
	if testing.Short() {
		t.Skip("a boot more")
	}
	rustProgram(t)
	python, rust := backends(t)[0], newVLLM(t, "rust")
	rust.rust = true
	rust.start(t)
	t.Cleanup(rust.kill)
	rust.waitReady(t)
	alone, beside := startGateway(t, "", rust), startGateway(t, "", rust, python)

	verify(t, alone)
	if stdout := alone.run("check", "--probe"); !strings.Contains(stdout, "Rust frontend") {
		t.Errorf("basegate check --probe does not name the Rust frontend:\n%s", stdout)
	}
	for field, members := range map[string]string{
		"n":      `"prompt": "Once", "n": 2`,
		"prompt": `"prompt": ["Once", "Twice"]`,
	} {
		body := fmt.Sprintf(`{"model": %q, "max_tokens": 4, "seed": 5, %s}`, modelID, members)
		if r := alone.complete(body); r.status != http.StatusBadRequest || gjson.Get(r.body, "error.param").Str != field {
			t.Errorf("%s: alone: got %d %s, want 400 about %s", members, r.status, r.body, field)
		}
		for range 8 {
			r := beside.complete(body)
			if b := beside.ledger()[r.header.Get("X-Request-Id")].Backend; r.status != http.StatusOK || b != python.name {
				t.Errorf("%s: beside another: got %d of backend %q: %s, want 200 of %s", members, r.status, b, r.body, python.name)
			}
		}
	}

	chat := startGatewayOf(t, "", "chat: true, completions: true, ", fmt.Sprintf("{name: rust, url: %q, gpu: cpu}", rust.url))
	if stdout, _, err := chat.try("check"); err == nil || !strings.Contains(stdout, "has no chat template") {
		t.Errorf("basegate check: error %v, want one, and the template named:\n%s", err, stdout)
	}

	id, lines := streamFrom(t, alone, rust)
	must(t, syscall.Kill(rust.enginePID(t), syscall.SIGKILL))
	code := readToError(t, lines)
	if row := alone.ledger()[id]; row.Code != code || row.Completion < 5 {
		t.Errorf("the client received %s, the ledger has %+v", code, row)
	}
	if r := beside.complete(smallRequest); r.status != http.StatusOK {
		t.Errorf("the other backend did not serve the request: %d %s", r.status, r.body)
	}
}
