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

	type stream struct {
		on     string
		cancel context.CancelFunc
		ended  chan string
	}
	var streams []stream
	for range 6 { // two at each
		before := g.replicas()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		resp, err := httpClient.Do(g.request(ctx, http.MethodPost, g.url+"/v1/completions",
			`{"model":"m","prompt":"Once upon a time","max_tokens":1000,"ignore_eos":true,"stream":true}`))
		must(t, err)
		s := stream{cancel: cancel, ended: make(chan string, 1)}
		go func() {
			defer resp.Body.Close()
			text, err := io.ReadAll(resp.Body)
			s.ended <- fmt.Sprint(resp.StatusCode, err) + " " + string(text[max(0, len(text)-20):])
		}()
		poll.Until(t, "a replica has the stream", func() bool {
			for name, b := range g.replicas() {
				if b.Get("in_flight").Int() > before[name].Get("in_flight").Int() {
					s.on = name
				}
			}
			return s.on != ""
		})
		streams = append(streams, s)
	}
	var draining []stream
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
	g.awaitReplicas("the third replica is not needed", "ready ready draining")
	if n := g.replicas()["gpu-3"].Get("in_flight").Int(); n != 2 || len(draining) != 2 {
		t.Errorf("the replica that drains has %d requests, of %d streams, want two", n, len(draining))
	}
	for _, s := range draining {
		if got := <-s.ended; !strings.HasPrefix(got, "200 <nil> ") || !strings.HasSuffix(got, "data: [DONE]\n\n") {
			t.Errorf("a stream of the replica that drains ended with %q", got)
		}
	}
	g.awaitReplicas("one replica is left", "ready stopped stopped")
	if got := g.complete(smallRequest); got.status != http.StatusOK {
		t.Errorf("of one replica: got %d %s", got.status, got.body)
	}

	if got := launched(t, launch); got != "start1 start2 start3 start2 stop3 stop2" && got != "start1 start2 start3 start2 stop2 stop3" {
		t.Errorf("got the programs %s", got)
	}
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
	if got := launched(t, launch); strings.Count(got, "start") != 4 || strings.Count(got, "stop") != 2 {
		t.Errorf("got the programs %s", got)
	}
}

// replicaSettings are those of a gateway with a model of up to three replicas.
func replicaSettings(launch string) settings {
	return settings{
		probeTimeout: "20s", extra: "limits: {concurrency_per_key: 64, concurrency_per_account: 64}",
		models: fmt.Sprintf(`{id: m, checkpoint: %s, cold_wait: 30s, balance: least_inflight, backends: [{name: gpu, url: "http://127.0.0.1:1",
			replicas: {min: 1, max: 3, queue: 1}, launch: {start: [%s, start], stop: [%s, stop], boot_timeout: 60s, idle_after: 2s}}]}`, checkpoint, launch, launch),
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

// load sends requests, each client one after another, until the function that it returns is called.
func (g *gateway) load(clients int) (unload func()) {
	ctx, cancel := context.WithCancel(g.t.Context())
	var load sync.WaitGroup
	for range clients {
		load.Go(func() {
			for ctx.Err() == nil {
				if got := g.complete(`{"model":"m","prompt":"Once upon a time","max_tokens":20,"ignore_eos":true}`); got.status != http.StatusOK {
					g.t.Errorf("under load: got %d %s", got.status, got.body)
					return
				}
			}
		})
	}
	unload = func() { cancel(); load.Wait() }
	g.t.Cleanup(unload)
	return unload
}

// launched returns the programs that were run, each with its replica, and checks that the fences of a replica rise.
func launched(t *testing.T, launch string) string {
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
	return strings.Join(ran, " ")
}
