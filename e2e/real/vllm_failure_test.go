//go:build real

package real_test

import (
	"bufio"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"basegate/internal/poll"
)

const smallRequest = `{"model": "` + modelID + `", "prompt": "Once", "max_tokens": 2, "temperature": 0}`

// readToError reads the rest of a stream, which must end with one error event and without [DONE], and returns its code.
func readToError(t *testing.T, lines *bufio.Scanner) string {
	t.Helper()
	last := ""
	for lines.Scan() {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			last = data
		}
	}
	code := gjson.Get(last, "error.code").Str
	if code == "" {
		t.Errorf("the stream does not end with an error: %s", last)
	}
	return code
}

// expectServed fails unless a request is served by another backend if there is one, and by the killed one after a
// restart. With -short the killed server is the last that is needed, so it is not restarted.
func expectServed(t *testing.T, g *gateway, all []*vllm, killed *vllm) {
	t.Helper()
	if len(all) > 1 {
		if r := g.complete(smallRequest); r.status != http.StatusOK {
			t.Errorf("the other backend did not serve the request: %d %s", r.status, r.body)
		}
	} else if r := g.complete(smallRequest); r.status < 500 || r.header.Get("Retry-After") == "" && r.status == http.StatusServiceUnavailable {
		t.Errorf("without a backend: %d %s", r.status, r.body)
	}
	if testing.Short() {
		killed.kill()
		return
	}
	killed.restart(t)
	g.waitBackend(killed, "ready")
	poll.Until(t, "a request is served after the restart", func() bool { return g.complete(smallRequest).status == http.StatusOK })
}

// streamFrom opens streams until one is served by the last of the servers, and returns it.
func streamFrom(t *testing.T, g *gateway, server *vllm) (id string, lines *bufio.Scanner) {
	t.Helper()
	for range 10 {
		before := server.metric(t, "vllm:num_requests_running", "")
		r, lines := g.openStream(t.Context())
		t.Cleanup(func() { r.Body.Close() })
		if server.metric(t, "vllm:num_requests_running", "") > before {
			return r.Header.Get("X-Request-Id"), lines
		}
	}
	t.Fatal("no stream was served by " + server.name)
	return "", nil
}

func TestKilledServer(t *testing.T) {
	all := backends(t)
	victim := all[len(all)-1]
	g := startGateway(t, "", all...)
	id, lines := streamFrom(t, g, victim)
	victim.signalAll(t, syscall.SIGKILL)
	code := readToError(t, lines)
	row := g.ledger()[id]
	t.Logf("the client received %s, the ledger has %+v", code, row)
	if row.Code != code || row.Completion < 5 || row.Prompt == 0 {
		t.Errorf("the client received %s, the ledger has %+v", code, row)
	}
	expectServed(t, g, all, victim)
}

func TestKilledEngine(t *testing.T) {
	if testing.Short() {
		t.Skip("a boot more")
	}
	all := backends(t)
	victim := all[len(all)-1]
	g, alone := startGateway(t, "", all...), startGateway(t, "", victim)
	plain := make(chan response, 1)
	go func() { plain <- alone.complete(longRequest(false)) }()
	poll.Until(t, "the plain request runs", func() bool { return victim.metric(t, "vllm:num_requests_running", "") > 0 })
	_, lines := streamFrom(t, g, victim)
	must(t, syscall.Kill(victim.enginePID(t), syscall.SIGKILL))
	code := readToError(t, lines)
	t.Logf("the client received %s", code)
	if code != "vllm_engine_dead" {
		t.Errorf("the client received %s, want vllm_engine_dead", code)
	}
	if r := <-plain; gjson.Get(r.body, "error.code").Str != "vllm_engine_dead" {
		t.Errorf("the plain request: %d %s", r.status, r.body)
	}
	if r := alone.complete(smallRequest); r.status < 500 {
		t.Errorf("asked anew: %d %s", r.status, r.body)
	}
	expectServed(t, g, all, victim)
}

// TestServerThatIsAskedToStop sends SIGTERM to a server with running requests, which some versions leave without a byte.
func TestServerThatIsAskedToStop(t *testing.T) {
	if testing.Short() {
		t.Skip("a boot more")
	}
	all := backends(t)
	if len(all) < 2 {
		t.Skip("needs two servers")
	}
	victim := all[len(all)-1]
	g := startGateway(t, "upstream: {first_byte_timeout: 1h, idle_timeout: 1h}", all...)
	_, lines := streamFrom(t, g, victim)
	plain := make(chan response, 8)
	for range cap(plain) {
		go func() { plain <- g.complete(longRequest(false)) }()
	}
	poll.Until(t, "plain requests run", func() bool { return victim.metric(t, "vllm:num_requests_running", "") > 1 })
	must(t, victim.cmd.Process.Signal(syscall.SIGTERM))
	began := time.Now()
	t.Logf("the stream ended with %s after %v", readToError(t, lines), time.Since(began))
	for range cap(plain) {
		if r := <-plain; r.status != http.StatusOK {
			t.Errorf("a plain request: %d %s", r.status, r.body)
		}
	}
	t.Logf("the last plain request ended after %v", time.Since(began))
	expectServed(t, g, all, victim)
}

// TestRequestsOfOneKeyThatFail repeats a request at which 0.32 and 0.33 fail with a healthy engine.
func TestRequestsOfOneKeyThatFail(t *testing.T) {
	g := startGateway(t, "breaker: {consecutive_failures: 5, open_for: 1h}", backends(t)[0])
	g.run("account", "create", "bob@example.org")
	other := strings.TrimSpace(g.run("key", "create", "--account", "bob@example.org", "--name", "real"))
	const failing = `{"model": "` + modelID + `", "prompt": "hello there", "stream": true, "echo": true, "logprobs": 0, "n": 16, "max_tokens": 8, "seed": 7}`
	codes := map[string]int{}
	for range 30 {
		r := g.complete(failing)
		body := r.body[strings.LastIndex(r.body, "{\"error\"")+1:]
		codes[gjson.Get("{"+body, "error.code").Str]++
		if r := readAll(t, open(t.Context(), t, g.url, other, smallRequest)); r.status != http.StatusOK {
			t.Fatalf("another key's request: %d %s, after %v", r.status, r.body, codes)
		}
	}
	t.Logf("the failing key received %v", codes)
}

func TestStoppedServer(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for timeouts")
	}
	all := backends(t)
	victim := all[len(all)-1]
	g := startGateway(t, "upstream: {first_byte_timeout: 20s, idle_timeout: 3s}", all...)
	_, lines := streamFrom(t, g, victim)
	victim.signalAll(t, syscall.SIGSTOP)
	defer victim.signalAll(t, syscall.SIGCONT)
	code := readToError(t, lines)
	t.Logf("the client received %s", code)
	g.waitBackend(victim, "unreachable")
	if r := g.complete(smallRequest); r.status != http.StatusOK {
		t.Errorf("the other backend did not serve the request: %d %s", r.status, r.body)
	}
	victim.signalAll(t, syscall.SIGCONT)
	g.waitBackend(victim, "ready")
}

// TestLaunch lets the gateway start and stop a server by a script.
func TestLaunch(t *testing.T) {
	if testing.Short() {
		t.Skip("a boot more")
	}
	backends(t) // they have booted, so this one does not compete with them
	server := newVLLM(t, "launched")
	dir := t.TempDir()
	pid := filepath.Join(dir, "pid")
	start := []string{"sh", "-c", server.shellCommand(pid)}
	stop := []string{"sh", "-c", fmt.Sprintf("kill -TERM -$(cat %[1]s); while kill -0 $(cat %[1]s) 2>/dev/null; do sleep 0.2; done", pid)}
	backend := fmt.Sprintf("{name: launched, url: %q, launch: {start: [%s], stop: [%s], boot_estimate: 1m, boot_timeout: 15m}}",
		server.url, quoted(start), quoted(stop))
	t.Cleanup(func() {
		if id, err := os.ReadFile(pid); err == nil { // it runs if the test failed before the stop
			if group, err := strconv.Atoi(strings.TrimSpace(string(id))); err == nil {
				syscall.Kill(-group, syscall.SIGKILL)
			}
		}
		if t.Failed() {
			t.Logf("the end of vLLM's log:\n%s", server.logTail())
		}
	})
	g := startGatewayWith(t, "", backend)
	g.waitStatus("cold")
	r := g.complete(smallRequest)
	if r.status != http.StatusServiceUnavailable || gjson.Get(r.body, "error.code").Str != "modal_cold_boot" || r.header.Get("Retry-After") == "" {
		t.Errorf("a cold model: %d %v %s", r.status, r.header, r.body)
	}
	began := time.Now()
	g.waitStatus("warm")
	t.Logf("the boot took %v", time.Since(began).Round(time.Second))
	if r := g.complete(smallRequest); r.status != http.StatusOK {
		t.Errorf("a warm model: %d %s", r.status, r.body)
	}
	g.run("model", "stop", modelID)
	g.waitBackend(server, "stopped")
	if status, _ := server.tryGet("/health"); status != 0 {
		t.Errorf("the stopped server answers %d", status)
	}
}

// quoted returns a command as the elements of a YAML list in flow style.
func quoted(command []string) string {
	var all []string
	for _, word := range command {
		all = append(all, "'"+strings.ReplaceAll(word, "'", "''")+"'")
	}
	return strings.Join(all, ", ")
}
