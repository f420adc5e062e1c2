//go:build e2e

package e2e_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/tidwall/gjson"

	"basegate/internal/loopback"
	"basegate/internal/poll"
	"basegate/internal/postgrestest"
)

// replicaLauncher writes a program that starts and stops mocks by their numbers. The first start of the second one fails.
func replicaLauncher(t *testing.T, most int) (program string) {
	t.Helper()
	dir := t.TempDir()
	program = filepath.Join(dir, "launch")
	var addresses strings.Builder
	for i := range most {
		fmt.Fprintf(&addresses, "%d) at=%s ;;\n", i+1, loopback.Address(t))
	}
	must(t, os.WriteFile(program, []byte(fmt.Sprintf(`#!/bin/sh
cd %s
n=$BASEGATE_REPLICA
case $n in
%sesac
echo $1 $n $BASEGATE_FENCE >>log
case $1 in
start)
	[ $n != 2 ] || [ -e failed ] || { touch failed; echo no node is free >&2; exit 1; }
	%s mockvllm --listen $at --model %s --max-num-seqs 2 --token-delay 20ms >mock$n.log 2>&1 &
	echo $! >pid$n
	echo url=http://$at ;;
stop) kill $(cat pid$n) && while kill -0 $(cat pid$n) 2>/dev/null; do sleep 0.02; done ;;
esac
`, dir, addresses.String(), binary, checkpoint)), 0o700))
	t.Cleanup(func() {
		for i := range most {
			text, _ := os.ReadFile(filepath.Join(dir, fmt.Sprint("pid", i+1)))
			var pid int
			if n, _ := fmt.Sscan(string(text), &pid); n == 1 {
				syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	})
	return program
}

// A model gets a second and a third replica while requests wait, also after a start that has failed, and loses them when two and
// then one are enough. A replica that drains ends its streams first.
func TestModelScalesToThreeReplicasUnderLoadAndBack(t *testing.T) {
	t.Parallel() // it waits for minutes
	launch := replicaLauncher(t, 3)
	g := newEnvironment(t, replicaSettings(launch)).serve()
	g.awaitReplicas("the first replica runs without a request", "ready stopped stopped")
	// A replica that has no request for two seconds is stopped, which may be before it gets its streams.
	var streams []heldReplicaStream
	for attempt := 1; len(streams) == 0; attempt++ {
		unload := g.load(12)
		g.awaitReplicas("three replicas run under load", "ready ready ready")
		unload()
		poll.Until(t, "the load has left all replicas", func() bool { // a response ends before its attempt
			for _, b := range g.replicas() {
				if b.Get("in_flight").Int() > 0 {
					return false
				}
			}
			return true
		})
		if streams = g.holdStreams(); len(streams) == 0 && attempt == 5 {
			t.Fatal("never were there two streams at each replica")
		}
	}
	var draining []heldReplicaStream
	cancelled := 0
	for _, s := range streams {
		switch {
		case s.on == "gpu-3":
			draining = append(draining, s)
		case cancelled < 2:
			s.cancel()
			cancelled++
		}
	}
	var all map[string]gjson.Result
	poll.Until(t, "the third replica is not needed", func() bool {
		all = g.replicas()
		return all["gpu-3"].Get("state").Str == "draining"
	})
	if n := all["gpu-3"].Get("in_flight").Int(); n != 2 || len(draining) != 2 {
		t.Errorf("the replica that drains has %d requests, of %d streams, want two", n, len(draining))
	}
	// What is left is enough for one replica, so the second one follows after two seconds.
	second := all["gpu-2"]
	if all["gpu"].Get("state").Str != "ready" || second.Get("state").Str != "ready" && !second.Get("since").Time().After(all["gpu-3"].Get("since").Time()) {
		t.Errorf("while the third replica drains the others are %s and %s, want that it was the first", all["gpu"].Raw, second.Raw)
	}
	g.eachMock(http.MethodDelete, "")
	for _, s := range draining {
		if got := <-s.ended; !strings.HasPrefix(got, "200 <nil> ") || !strings.HasSuffix(got, "data: [DONE]\n\n") {
			t.Errorf("a stream of the replica that drains ended with %q", got)
		}
	}
	g.awaitReplicas("one replica is left", "ready stopped stopped")
	if got := g.complete(smallRequest); got.status != http.StatusOK {
		t.Errorf("of one replica: got %d %s", got.status, got.body)
	}

	checkLaunched(t, launch)
}

// The gateway that leads starts replicas for requests that another one sends. When it is killed, the other one stops them.
func TestReplicasFollowTheRequestsOfAllGateways(t *testing.T) {
	t.Parallel() // it waits for minutes
	launch := replicaLauncher(t, 3)
	s := replicaSettings(launch)
	s.postgres = postgrestest.Shared(t)
	env := newEnvironment(t, s)
	first := env.serve()
	first.awaitReplicas("the first gateway leads", "ready stopped stopped")
	second := env.another("second").serveWithKey(first.secret)
	unload := second.load(12)
	for _, g := range []*gateway{first, second} {
		g.awaitReplicas("three replicas run under load", "ready ready ready")
	}
	first.signal(syscall.SIGKILL)
	<-first.exited
	poll.Until(t, "the other gateway takes over", func() bool {
		return strings.Contains(second.stderr.String(), "this gateway takes over the lead")
	})
	unload()
	second.awaitReplicas("one replica is left", "ready stopped stopped")
	if got := second.complete(smallRequest); got.status != http.StatusOK {
		t.Errorf("of one replica: got %d %s", got.status, got.body)
	}
	checkLaunched(t, launch)
}

// replicaSettings are those of a gateway with a model of up to three replicas.
func replicaSettings(launch string) settings {
	return settings{
		probeTimeout: "10m", extra: "limits: {concurrency_per_key: 64, concurrency_per_account: 64}",
		models: fmt.Sprintf(`{id: m, checkpoint: %s, cold_wait: 10m, balance: least_inflight, backends: [{name: gpu, url: "http://127.0.0.1:1",
			replicas: {min: 1, max: 3, queue: 1}, launch: {start: [%s, start], stop: [%s, stop], boot_timeout: 10m, idle_after: 2s}}]}`, checkpoint, launch, launch),
	}
}

// replicas returns the replicas of the model by their names.
func (g *gateway) replicas() map[string]gjson.Result {
	all := map[string]gjson.Result{}
	for _, b := range gjson.Get(g.get(g.admin, "/models").body, "0.backends").Array() {
		all[b.Get("name").Str] = b
	}
	return all
}

func (g *gateway) awaitReplicas(what, states string) {
	g.t.Helper()
	poll.Until(g.t, what, func() bool {
		all := g.replicas()
		return fmt.Sprint(all["gpu"].Get("state"), all["gpu-2"].Get("state"), all["gpu-3"].Get("state")) == states
	})
}

// load sends requests, each client one after another, until the function that it returns is called, which cancels them. They take
// seconds, so that the queues of the replicas stay long for a minute, also if this process stalls between them.
func (g *gateway) load(clients int) (unload func()) {
	ctx, cancel := context.WithCancel(g.t.Context())
	var load sync.WaitGroup
	for range clients {
		load.Go(func() {
			for ctx.Err() == nil {
				got, ok := <-g.sendAsync(ctx, g.secret, `{"model":"m","prompt":"Once upon a time","max_tokens":200,"ignore_eos":true}`)
				if ctx.Err() == nil && (!ok || got.status != http.StatusOK) {
					g.t.Errorf("under load: got %d", got.status)
					return
				}
			}
		})
	}
	unload = func() { cancel(); load.Wait() }
	g.t.Cleanup(unload)
	return unload
}

// heldReplicaStream is a stream that the mock of a replica holds.
type heldReplicaStream struct {
	on     string // the replica's name
	cancel context.CancelFunc
	ended  chan string
}

// holdStreams begins six streams, which the mocks hold, and returns none if there are not two of them at each replica.
func (g *gateway) holdStreams() (streams []heldReplicaStream) {
	g.t.Helper()
	g.eachMock(http.MethodPost, `{"kind": "hang", "after_events": 3, "times": -1}`)
	for range 6 {
		before := g.replicas()
		ctx, cancel := context.WithCancel(g.t.Context())
		g.t.Cleanup(cancel)
		r := g.request(ctx, http.MethodPost, g.url+"/v1/completions",
			`{"model":"m","prompt":"Once upon a time","max_tokens":100,"ignore_eos":true,"stream":true}`)
		s := heldReplicaStream{cancel: cancel, ended: make(chan string, 1)}
		go func() {
			resp, err := httpClient.Do(r) // which waits for the first event, of a third stream at a replica for ever
			if err != nil {
				s.ended <- err.Error()
				return
			}
			defer resp.Body.Close()
			text, err := io.ReadAll(resp.Body)
			s.ended <- fmt.Sprint(resp.StatusCode, err) + " " + string(text[max(0, len(text)-20):])
		}()
		poll.Until(g.t, "a replica has the stream", func() bool {
			for name, b := range g.replicas() {
				if b.Get("in_flight").Int() > before[name].Get("in_flight").Int() {
					s.on = name
				}
			}
			return s.on != ""
		})
		streams = append(streams, s)
	}
	for name, b := range g.replicas() {
		if b.Get("state").Str == "ready" && b.Get("in_flight").Int() == 2 {
			continue
		}
		g.t.Logf("%s is %s, not ready with two streams", name, b.Raw)
		for _, s := range streams {
			s.cancel()
		}
		g.eachMock(http.MethodDelete, "")
		return nil
	}
	return streams
}

// eachMock changes the faults of the mock of each replica that runs.
func (g *gateway) eachMock(method, fault string) {
	g.t.Helper()
	for name, b := range g.replicas() {
		if state := b.Get("state").Str; state != "ready" && state != "draining" {
			continue
		}
		resp, err := httpClient.Do(g.request(g.t.Context(), method, strings.TrimSuffix(b.Get("url").Str, "/")+"/mock/fault", fault))
		if err != nil {
			g.t.Logf("%s has stopped meanwhile: %v", name, err)
			continue
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			g.t.Fatalf("%s of the fault of %s: got %d", method, name, resp.StatusCode)
		}
	}
}

// checkLaunched checks that of all replicas that were started one is left, and that the fences of a replica rise. One start has
// failed. A replica may have been stopped and started again, since it takes two seconds without a request.
func checkLaunched(t *testing.T, launch string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(filepath.Dir(launch), "log"))
	must(t, err)
	var ran []string
	lastFence := map[string]int64{}
	for line := range strings.Lines(string(text)) {
		var action, replica string
		var fence int64
		_, err := fmt.Sscan(line, &action, &replica, &fence)
		must(t, err)
		ran = append(ran, action+replica)
		if fence <= lastFence[replica] {
			t.Errorf("%s of replica %s has the fence %d after %d", action, replica, fence, lastFence[replica])
		}
		lastFence[replica] = fence
	}
	got := strings.Join(ran, " ")
	if starts, stops := strings.Count(got, "start"), strings.Count(got, "stop"); starts-stops != 2 || strings.Contains(got, "stop1") || !strings.HasPrefix(got, "start1 start2 start3") {
		t.Errorf("got the programs %s", got)
	}
}
