//go:build real

package real_test

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/tidwall/gjson"

	"basegate/internal/loopback"
	"basegate/internal/poll"
)

// collectorBuilder makes the collector of collector.yaml.
const collectorBuilder = "go.opentelemetry.io/collector/cmd/builder@v0.139.0"

// buildCollector returns an OpenTelemetry collector, which is built once for all runs: that takes minutes.
func buildCollector(t *testing.T) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	must(t, err)
	folder := filepath.Join(cache, "basegate-real", "otelcol")
	program := filepath.Join(folder, "otelcol")
	if _, err := os.Stat(program); err == nil {
		return program
	}
	build := exec.CommandContext(t.Context(), "go", "run", collectorBuilder, "--config", "collector.yaml", "--set", "dist::output_path="+folder)
	build.Env = append(os.Environ(), "GOFLAGS=")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the collector: %v\n%s", err, output)
	}
	return program
}

// startCollector starts a collector, which writes what it receives to a file.
func startCollector(t *testing.T, program string) (http, grpc, file string) {
	t.Helper()
	dir := t.TempDir()
	http, grpc, file = loopback.Address(t), loopback.Address(t), filepath.Join(dir, "spans.json")
	settings := filepath.Join(dir, "collector.yaml")
	must(t, os.WriteFile(settings, fmt.Appendf(nil, `receivers: {otlp: {protocols: {http: {endpoint: %q}, grpc: {endpoint: %q}}}}
exporters: {file: {path: %q, flush_interval: 100ms}}
service: {telemetry: {metrics: {level: none}}, pipelines: {traces: {receivers: [otlp], exporters: [file]}}}
`, http, grpc, file), 0o600))
	cmd := exec.Command(program, "--config", settings)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	return http, grpc, file
}

// span is a span in the collector's file.
type span struct{ service, name, id, parent string }

// spansOf returns the spans of a trace.
func spansOf(t *testing.T, file, trace string) (all []span) {
	t.Helper()
	text, err := os.ReadFile(file)
	must(t, err)
	for line := range strings.Lines(string(text)) {
		for _, of := range gjson.Get(line, "resourceSpans").Array() {
			service := of.Get(`resource.attributes.#(key="service.name").value.stringValue`).Str
			for _, s := range of.Get("scopeSpans.#.spans|@flatten").Array() {
				if s.Get("traceId").Str == trace {
					all = append(all, span{service, s.Get("name").Str, s.Get("spanId").Str, s.Get("parentSpanId").Str})
				}
			}
		}
	}
	return all
}

// TestTraceSpansGatewayAndVLLM reads one trace of both back from a collector, and what no trace may have. The same 1,000 requests
// have as many cached tokens on the ledger as vLLM has counted.
func TestTraceSpansGatewayAndVLLM(t *testing.T) {
	if testing.Short() {
		t.Skip("the collector is built, which takes minutes")
	}
	receiver, vllmReceiver, file := startCollector(t, buildCollector(t))
	s := newVLLM(t, "traced")
	s.more = []string{"--otlp-traces-endpoint", "http://" + vllmReceiver, "--enable-prompt-tokens-details"}
	s.environment = []string{"OTEL_SERVICE_NAME=vllm", "OTEL_EXPORTER_OTLP_TRACES_INSECURE=true"}
	s.start(t)
	t.Cleanup(s.kill)
	s.waitReady(t)
	g := startGateway(t, fmt.Sprintf("telemetry: {otlp: %q, sample: 0}\nlimits: {concurrency_per_key: 50}", "http://"+receiver), s)

	const marker, trace, parent = "MARKED-BY-THE-TEST", "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, g.url+"/v1/completions",
		strings.NewReader(fmt.Sprintf(`{"model": %q, "prompt": "%s", "max_tokens": 8, "user": "%[2]s", %[3]s}`, modelID, marker, noEOS)))
	must(t, err)
	request.Header.Set("Authorization", "Bearer "+g.secret)
	request.Header.Set("Traceparent", "00-"+trace+"-"+parent+"-01")
	r, err := httpClient.Do(request)
	must(t, err)
	answer := readAll(t, r)
	if answer.status != http.StatusOK {
		t.Fatalf("%d %s", answer.status, answer.body)
	}
	const ofServer, ofVLLM = "POST /v1/completions", "llm_request"
	var all []span
	byName, byID := map[string]span{}, map[string]span{}
	poll.Until(t, "the spans of both are in the collector", func() bool {
		all = spansOf(t, file, trace)
		for _, s := range all {
			byName[s.name], byID[s.id] = s, s
		}
		return byName[ofServer].id != "" && byName[ofVLLM].id != ""
	})
	server := byName[ofServer]
	if server.parent != parent || server.service != "basegate" {
		t.Errorf("got the server's span %+v, want one of basegate below %s, of %+v", server, parent, all)
	}
	if parent := byID[byName[ofVLLM].parent]; parent.name != "attempt" || byID[parent.parent] != server {
		t.Errorf("vLLM's span is not below the attempt of the server's: %+v", all)
	}

	before := cachedByVLLM(t, s)
	var clients sync.WaitGroup
	for c := range 20 {
		clients.Go(func() {
			for i := range 50 {
				prompt := strings.Repeat(fmt.Sprintf("Shared by family %d. ", (c+i)%7), 40) + strconv.Itoa(c*50+i)
				if r := g.complete(fmt.Sprintf(`{"model": %q, "prompt": %q, "max_tokens": 2, %s}`, modelID, prompt, noEOS)); r.status != http.StatusOK {
					t.Errorf("%d %s", r.status, r.body)
				}
			}
		})
	}
	clients.Wait()
	var cached, known int64
	for _, row := range gjson.Parse(g.run("usage", "--json")).Array() {
		if row.Get("request_id").Str != answer.header.Get("X-Request-Id") {
			cached += row.Get("cached_tokens").Int()
			known++
		}
	}
	if got := cachedByVLLM(t, s) - before; got != cached || cached == 0 || known != 1000 {
		t.Errorf("vLLM has counted %d cached tokens, the ledger has %d, of %d requests", got, cached, known)
	}
	text, err := os.ReadFile(file)
	must(t, err)
	for _, secret := range []string{marker, g.secret, strings.TrimSpace(gjson.Get(answer.body, "choices.0.text").Str), "127.0.0.1"} {
		if len(secret) > 3 && strings.Contains(string(text), secret) {
			t.Errorf("%q is in a trace", secret)
		}
	}
	if spans := strings.Count(string(text), strconv.Quote(ofServer)); spans != 1 {
		t.Errorf("%d requests were traced, and one was sampled", spans)
	}
}

// cachedByVLLM returns how many prompt tokens the server has found in its prefix cache.
func cachedByVLLM(t *testing.T, s *vllm) (tokens int64) {
	t.Helper()
	r, err := httpClient.Get(s.url + "/metrics")
	must(t, err)
	for line := range strings.Lines(readAll(t, r).body) {
		if fields := strings.Fields(line); len(fields) == 2 && strings.HasPrefix(line, "vllm:prefix_cache_hits_total{") {
			n, err := strconv.ParseFloat(fields[1], 64)
			must(t, err)
			tokens += int64(n)
		}
	}
	return tokens
}
