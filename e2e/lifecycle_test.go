//go:build e2e

package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"basegate/internal/poll"
	"basegate/mockvllm"
)

// launched is a model whose one backend is started and stopped by the gateway: scripts that run a mock on a port of its
// own. The mock answers after bootDelay.
type launched struct {
	dir string
	url string
}

func newLaunched(t *testing.T, bootDelay time.Duration) *launched {
	t.Helper()
	l := &launched{dir: t.TempDir()}
	address := freeAddress(t)
	l.url = "http://" + address
	script := func(name, text string) {
		must(t, os.WriteFile(filepath.Join(l.dir, name), []byte("#!/bin/sh\ncd "+l.dir+"\n"+text+"\n"), 0o700))
	}
	script("start", fmt.Sprintf("echo started >> log; (sleep %.3f; exec %s mockvllm --listen %s --model %s --token-delay 5ms) >mock.log 2>&1 & echo $! > pid",
		bootDelay.Seconds(), binary, address, checkpoint))
	script("stop", "echo stopped >> log; kill $(cat pid) && while kill -0 $(cat pid) 2>/dev/null; do sleep 0.02; done")
	t.Cleanup(func() {
		if said, err := os.ReadFile(filepath.Join(l.dir, "mock.log")); t.Failed() && err == nil {
			t.Logf("the launched mock at %s: %s", address, said)
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

// freeAddress is where nobody listens. It is below the ports that the kernel gives to connections and to whoever wants
// any, so that none of them takes it meanwhile.
func freeAddress(t *testing.T) string {
	t.Helper()
	for {
		address := fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(20_000))
		socket, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		must(t, err)
		must(t, socket.Close())
		return address
	}
}

// commands are those that were run, in order.
func (l *launched) commands() []string {
	text, err := os.ReadFile(filepath.Join(l.dir, "log"))
	if err != nil {
		return nil
	}
	return strings.Fields(string(text))
}

// model is the configuration's element; more is in YAML's flow style, each with a comma before it.
func (l *launched) model(id, launch, more string) string {
	return fmt.Sprintf(`{id: %s, checkpoint: %s%s, backends: [{name: b, url: "%s", gpu: H100, launch: {start: [%s/start], stop: [%s/stop], boot_timeout: 30s%s}}]}`,
		id, checkpoint, more, l.url, l.dir, l.dir, launch)
}

// The official SDKs do this: they wait as long as Retry-After says, and ask again.
func (g *gateway) retrying(body string) (answer reply, waited time.Duration) {
	g.t.Helper()
	began := time.Now()
	for {
		answer = g.complete(body)
		if answer.header.Get("X-Should-Retry") != "true" || time.Since(began) > patience {
			return answer, time.Since(began)
		}
		seconds, err := strconv.Atoi(answer.header.Get("Retry-After"))
		must(g.t, err)
		pause := time.NewTimer(time.Duration(seconds) * time.Second)
		<-pause.C
	}
}

func TestTwelveAtOnceOnAStoppedModelLaunchItOnce(t *testing.T) {
	const boot = 2 * time.Second
	l := newLaunched(t, boot)
	place := newSite(t, settings{models: l.model("m", ", boot_estimate: 1s, idle_after: 0s", "")})
	g := place.serve()
	stop := func() {
		place.run("model", "stop", "m")
		poll.Until(t, "it has stopped", func() bool { return strings.Contains(g.get(g.admin, "/models").body, `"state":"stopped"`) })
	}
	for range 2 { // two boots are measured
		if got, _ := g.retrying(small); got.status != http.StatusOK {
			t.Fatalf("got %d %s", got.status, got.body)
		}
		stop()
	}
	poll.Until(t, "the list says so", func() bool {
		return strings.Contains(g.get(g.url, "/v1/models").body, `"status":"cold"`)
	})
	before := len(l.commands())
	var all sync.WaitGroup
	var estimate atomic.Int64
	began := time.Now()
	for range 12 {
		all.Go(func() {
			got := g.complete(small)
			e := gjson.Get(got.body, "error")
			if got.status != http.StatusServiceUnavailable || e.Get("code").Str != "modal_cold_boot" || got.header.Get("X-Should-Retry") != "true" ||
				got.header.Get("Retry-After") != e.Get("retry_after_seconds").Raw || !e.Get("boot_elapsed_seconds").Exists() {
				t.Errorf("got %d %s %v", got.status, got.body, got.header)
			}
			estimate.Store(e.Get("boot_estimate_seconds").Int())
		})
	}
	all.Wait()
	poll.Until(t, "it answers", func() bool { return g.complete(small).status == http.StatusOK })
	took := time.Since(began)
	if got := l.commands()[before:]; len(got) != 1 || got[0] != "started" {
		t.Errorf("%q was run for twelve", got)
	}
	// Whole seconds are all that Retry-After can say.
	if off := math.Abs(float64(estimate.Load()) - math.Ceil(took.Seconds())); off > math.Max(1, 0.2*took.Seconds()) {
		t.Errorf("a boot of %v was estimated at %d s", took, estimate.Load())
	}
	t.Logf("a boot of %v was estimated at %d s", took, estimate.Load())
	stop()
	got, waited := g.retrying(small)
	if got.status != http.StatusOK {
		t.Errorf("who obeys Retry-After got %d %s after %v", got.status, got.body, waited)
	}
}

func TestAModelThatIdlesOutFailsNobody(t *testing.T) {
	l := newLaunched(t, 0)
	place := newSite(t, settings{models: l.model("m", ", boot_estimate: 1s, idle_after: 600ms", ", cold_wait: 20s")})
	g := place.serve()
	for round := range 4 {
		var all sync.WaitGroup
		for i := range 6 {
			all.Go(func() {
				late := time.NewTimer(time.Duration(i) * 250 * time.Millisecond) // some come while it stops
				<-late.C
				got := g.complete(`{"model":"m","prompt":"Once upon a time","max_tokens":20,"stream":true}`)
				if got.status != http.StatusOK || !strings.HasSuffix(got.body, "data: [DONE]\n\n") {
					t.Errorf("round %d: got %d %s", round, got.status, got.body)
				}
			})
		}
		all.Wait()
		idle := time.NewTimer(time.Duration(900+200*round) * time.Millisecond)
		<-idle.C
	}
	if n := strings.Count(strings.Join(l.commands(), " "), "stopped started"); n == 0 {
		t.Errorf("it never idled out and came back: %q", l.commands())
	}
}

func TestALaunchThatFailsIsTold(t *testing.T) {
	l := newLaunched(t, 0)
	must(t, os.WriteFile(filepath.Join(l.dir, "start"), []byte("#!/bin/sh\necho 'no such image' >&2; exit 4\n"), 0o700))
	g := newSite(t, settings{models: l.model("m", "", "")}).serve()
	if got := g.complete(small); got.status != http.StatusServiceUnavailable {
		t.Errorf("the first: %d %s", got.status, got.body)
	}
	poll.Until(t, "the failure is told", func() bool {
		got := g.complete(small)
		return got.status == http.StatusBadGateway && strings.Contains(got.body, `"upstream_unreachable"`) && strings.Contains(got.body, "no such image") &&
			got.header.Get("X-Acs-Upstream-Error-Kind") == "upstream_unreachable"
	})
	g.says(g.stderr, `"command says".*no such image`)
}

func TestCommandsReachTheRunningGateway(t *testing.T) {
	l := newLaunched(t, 0)
	place := newSite(t, settings{admin: freeAddress(t), models: l.model("m", "", "")})
	place.serve()
	state := func() string { return gjson.Get(place.run("model", "list", "--json"), "0.backends.0.state").Str }
	if got := state(); got != "stopped" {
		t.Errorf("at first it is %s", got)
	}
	place.run("model", "warm", "m")
	poll.Until(t, "it is warm", func() bool { return state() == "ready" })
	place.run("model", "stop", "m")
	poll.Until(t, "it is stopped", func() bool { return state() == "stopped" })
	now := time.Now().UTC()
	place.run("model", "window", "add", "m", "--from", now.Format(time.RFC3339), "--to", now.Add(time.Hour).Format(time.RFC3339))
	poll.Until(t, "the window starts it", func() bool { return state() == "ready" })
}

// One of two replicas is killed under load: nobody sees it but streams that had begun.
func TestAReplicaThatIsKilledUnderLoad(t *testing.T) {
	one, two := newLaunched(t, 0), startMock(t, mockvllm.Options{TokenDelay: 5 * time.Millisecond})
	other := fmt.Sprintf(`{name: other, url: "%s"}`, two.URL())
	models := strings.Replace(one.model("m", "", ", cold_wait: 20s"), "backends: [", "backends: ["+other+", ", 1)
	g := newSite(t, settings{models: models, rest: "limits: {concurrency_per_key: 64}"}).serve()
	must(t, exec.Command(filepath.Join(one.dir, "start")).Run()) // by hand: it is adopted
	poll.Until(t, "both are ready", func() bool { return strings.Count(g.get(g.admin, "/models").body, `"state":"ready"`) == 2 })
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	var failed, answered, cut atomic.Int64
	var all sync.WaitGroup
	tickets := make(chan struct{})
	for range 64 {
		all.Go(func() {
			for range tickets {
				resp, err := client.Do(g.request(t.Context(), http.MethodPost, g.url+"/v1/completions", `{"model":"m","prompt":"Once upon a time","max_tokens":10,"stream":true}`))
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
					answered.Add(1)
				case strings.Contains(string(text), `data: {"error"`):
					cut.Add(1)
				default:
					t.Errorf("an ambiguous end: %q", text)
				}
			}
		})
	}
	beat := time.NewTicker(5 * time.Millisecond)
	defer beat.Stop()
	killed := false
	for i := 0; ctx.Err() == nil; i++ {
		<-beat.C
		select {
		case tickets <- struct{}{}:
		default:
		}
		if i > 200 && !killed {
			killed = true
			pid, err := os.ReadFile(filepath.Join(one.dir, "pid"))
			must(t, err)
			n, err := strconv.Atoi(strings.TrimSpace(string(pid)))
			must(t, err)
			p, err := os.FindProcess(n)
			must(t, err)
			must(t, p.Kill())
		}
	}
	close(tickets)
	all.Wait()
	t.Logf("%d answered, %d cut after they had begun, %d failed", answered.Load(), cut.Load(), failed.Load())
	if failed.Load() > 0 || answered.Load() < 100 {
		t.Error("a client has seen it")
	}
}
