//go:build e2e

package e2e_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"basegate/internal/loopback"
	"basegate/internal/poll"
	"basegate/mockvllm"
)

// launchedModel is a model with one backend that the gateway starts and stops by scripts. The backend is a mock process
// on a fixed port, which listens bootDelay after the start.
type launchedModel struct {
	dir         string
	url         string
	bootTimeout string
}

func newLaunchedModel(t *testing.T, bootDelay time.Duration) *launchedModel {
	t.Helper()
	l := &launchedModel{dir: t.TempDir(), bootTimeout: "10m"}
	address := loopback.Address(t)
	l.url = "http://" + address
	script := func(name, text string) {
		must(t, os.WriteFile(filepath.Join(l.dir, name), []byte("#!/bin/sh\ncd "+l.dir+"\n"+text+"\n"), 0o700))
	}
	script("start", fmt.Sprintf("echo started >> log; (sleep %.3f; exec %s mockvllm --listen %s --model %s --token-delay 5ms) >mock.log 2>&1 & echo $! > pid",
		bootDelay.Seconds(), binary, address, checkpoint))
	script("stop", "echo stopped >> log; kill $(cat pid) && while kill -0 $(cat pid) 2>/dev/null; do sleep 0.02; done")
	t.Cleanup(func() {
		if output, err := os.ReadFile(filepath.Join(l.dir, "mock.log")); t.Failed() && err == nil {
			t.Logf("the launched mock at %s: %s", address, output)
		}
		if pid, err := os.ReadFile(filepath.Join(l.dir, "pid")); err == nil {
			if n, err := strconv.Atoi(strings.TrimSpace(string(pid))); err == nil {
				if p, err := os.FindProcess(n); err == nil {
					p.Kill()
				}
			}
		}
	})
	return l
}

// ranCommands returns the commands that have run, in order.
func (l *launchedModel) ranCommands() []string {
	text, err := os.ReadFile(filepath.Join(l.dir, "log"))
	if err != nil {
		return nil
	}
	return strings.Fields(string(text))
}

// config returns the model's element of the configuration; launch and more are members in YAML flow style, each with a
// comma before it. Tests set probeTimeout too: a backend that misses a probe while the machine stalls is launched again.
func (l *launchedModel) config(id, launch, more string) string {
	return fmt.Sprintf(`{id: %s, checkpoint: %s%s, backends: [{name: b, url: "%s", gpu: H100, launch: {start: [%s/start], stop: [%s/stop], boot_timeout: %s%s}}]}`,
		id, checkpoint, more, l.url, l.dir, l.dir, l.bootTimeout, launch)
}

func TestServerTimingHasTheBootThatARequestWaitedFor(t *testing.T) {
	l := newLaunchedModel(t, 0)
	g := newEnvironment(t, settings{probeTimeout: "10m", models: l.config("m", ", boot_estimate: 1s", ", cold_wait: 10m")}).serve()
	if timing := g.complete(smallRequest).header.Get("Server-Timing"); !regexp.MustCompile(`^boot;dur=[\d.]+, queue;dur=[\d.]+, upstream;dur=[\d.]+$`).MatchString(timing) {
		t.Errorf("of the request that started the model: got %q, want boot, queue and upstream", timing)
	}
	if timing := g.complete(smallRequest).header.Get("Server-Timing"); !strings.HasPrefix(timing, "queue;dur=") {
		t.Errorf("of the next request: got %q, want no boot", timing)
	}
}

func TestNoRequestFailsWhileAnIdleModelStops(t *testing.T) {
	t.Parallel() // it waits
	l := newLaunchedModel(t, 0)
	env := newEnvironment(t, settings{probeTimeout: "10m", models: l.config("m", ", boot_estimate: 1s, idle_after: 600ms", ", cold_wait: 10m")})
	g := env.serve()
	g.complete(smallRequest)
	restarted := func() bool { return strings.Contains(strings.Join(l.ranCommands(), " "), "stopped started") }
	for round := 0; round < 4 || round < 20 && !restarted(); round++ { // on a loaded machine the gateway takes longer to find out
		var wg sync.WaitGroup
		for i := range 6 {
			wg.Go(func() {
				delay := time.NewTimer(time.Duration(i) * 250 * time.Millisecond) // some requests arrive while the model stops
				<-delay.C
				got := g.complete(`{"model":"m","prompt":"Once upon a time","max_tokens":20,"stream":true}`)
				if got.status != http.StatusOK || !strings.HasSuffix(got.body, "data: [DONE]\n\n") {
					t.Errorf("round %d: got %d %s", round, got.status, got.body)
				}
			})
		}
		wg.Wait()
		idle := time.NewTimer(time.Duration(900+200*round) * time.Millisecond)
		<-idle.C
	}
	if !restarted() {
		t.Errorf("the model was never stopped and started again: %q", l.ranCommands())
	}
}

func TestRequestThatWaitsForASlotWhileItsModelStopsWaitsForTheBoot(t *testing.T) {
	t.Parallel() // it waits
	l, mock := newLaunchedModel(t, 0), startMock(t, mockvllm.Options{TokenDelay: 5 * time.Millisecond})
	other := fmt.Sprintf(`{id: other, checkpoint: %s, backends: [{name: o, url: "%s"}]}`, checkpoint, mock.URL())
	g := newEnvironment(t, settings{extra: "limits: {concurrency_per_key: 1}", probeTimeout: "10m", models: l.config("m", "", ", cold_wait: 10m") + ", " + other}).serve()
	if got := g.complete(smallRequest); got.status != http.StatusOK {
		t.Fatalf("got %d %s", got.status, got.body)
	}
	ctx, release := context.WithCancel(t.Context())
	defer release()
	mock.InjectFault(mockvllm.Fault{Kind: "hang", AfterEvents: 3}) // keeps its slot until it is released
	occupying, err := httpClient.Do(g.request(ctx, http.MethodPost, g.url+"/v1/completions",
		`{"model":"other","prompt":"x","max_tokens":4000,"ignore_eos":true,"stream":true}`))
	must(t, err)
	defer occupying.Body.Close()
	answered := make(chan response, 1)
	go func() { answered <- g.complete(smallRequest) }()
	poll.Until(t, "the request waits for the slot", func() bool { return g.metric(metricQueued) == 1 })
	g.run("model", "stop", "m")
	poll.Until(t, "the model is stopped", func() bool { return strings.Contains(g.get(g.admin, "/models").body, `"state":"stopped"`) })
	release()
	if got := <-answered; got.status != http.StatusOK {
		t.Errorf("got %d %s, want the completion of the model that was started again", got.status, got.body)
	}
}

func TestModelCommandsReachTheRunningGateway(t *testing.T) {
	t.Parallel() // it waits
	l := newLaunchedModel(t, 0)
	env := newEnvironment(t, settings{adminListen: loopback.Address(t), probeTimeout: "10m", models: l.config("m", "", "")})
	env.serve()
	state := func() string { return gjson.Get(env.run("model", "list", "--json"), "0.backends.0.state").Str }
	if got := state(); got != "stopped" {
		t.Errorf("initial state %s, want stopped", got)
	}
	env.run("model", "warm", "m")
	poll.Until(t, "the model is ready", func() bool { return state() == "ready" })
	env.run("model", "stop", "m")
	poll.Until(t, "the model is stopped", func() bool { return state() == "stopped" })
	now := time.Now().UTC()
	env.run("model", "window", "add", "m", "--from", now.Format(time.RFC3339), "--to", now.Add(time.Hour).Format(time.RFC3339))
	poll.Until(t, "the warm window has started the model", func() bool { return state() == "ready" })
}

// When one of two replicas is killed under load, only streams that have started are affected, and they end with an error.
func TestKilledReplicaAffectsOnlyStartedStreams(t *testing.T) {
	launched, mock := newLaunchedModel(t, 0), startMock(t, mockvllm.Options{TokenDelay: 5 * time.Millisecond})
	other := fmt.Sprintf(`{name: other, url: "%s"}`, mock.URL())
	models := strings.Replace(launched.config("m", "", ", cold_wait: 10m"), "backends: [", "backends: ["+other+", ", 1)
	g := newEnvironment(t, settings{probeTimeout: "10m", models: models, extra: "limits: {concurrency_per_key: 64}"}).serve()
	must(t, exec.Command(filepath.Join(launched.dir, "start")).Run()) // started outside the gateway, which detects it
	poll.Until(t, "both replicas are ready", func() bool { return strings.Count(g.get(g.admin, "/models").body, `"state":"ready"`) == 2 })
	var failed, completed, interrupted atomic.Int64
	var wg sync.WaitGroup
	permits := make(chan struct{})
	for range 64 {
		wg.Go(func() {
			for range permits {
				resp, err := httpClient.Do(g.request(t.Context(), http.MethodPost, g.url+"/v1/completions",
					`{"model":"m","prompt":"Once upon a time","max_tokens":10,"stream":true}`))
				if err != nil {
					failed.Add(1)
					continue
				}
				text, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				switch {
				case err != nil || resp.StatusCode != http.StatusOK:
					failed.Add(1)
					t.Logf("%v %d %s", err, resp.StatusCode, text)
				case strings.HasSuffix(string(text), "data: [DONE]\n\n"):
					completed.Add(1)
				case strings.Contains(string(text), `data: {"error"`):
					interrupted.Add(1)
				default:
					t.Errorf("a stream without [DONE] or an error event: %q", text)
				}
			}
		})
	}
	wanted := int64(0) // completed streams at the end; 0 before the kill
	poll.Until(t, "streams complete before and after the kill", func() bool {
		select {
		case permits <- struct{}{}:
		default:
		}
		if n := completed.Load(); wanted == 0 && n >= 100 {
			wanted = n + 200
			pid, err := os.ReadFile(filepath.Join(launched.dir, "pid"))
			must(t, err)
			n, err := strconv.Atoi(strings.TrimSpace(string(pid)))
			must(t, err)
			p, err := os.FindProcess(n)
			must(t, err)
			must(t, p.Kill())
		}
		return wanted > 0 && completed.Load() >= wanted
	})
	close(permits)
	wg.Wait()
	t.Logf("%d completed, %d interrupted after their start, %d failed", completed.Load(), interrupted.Load(), failed.Load())
	if failed.Load() > 0 {
		t.Error("requests failed")
	}
}
