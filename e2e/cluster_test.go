//go:build e2e

package e2e_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"basegate/internal/poll"
	"basegate/internal/postgrestest"
	"basegate/mockvllm"
)

// startTwo starts two gateways on one database of a PostgreSQL server.
func startTwo(t *testing.T, server *postgrestest.Server, s settings, options mockvllm.Options) (first, second *gateway, mock *mockvllm.Process) {
	t.Helper()
	mock = startMock(t, options)
	s.postgres = server
	env := newEnvironment(t, s, mock.URL())
	first = env.serve()
	second = env.another("second").serveWithKey(first.secret)
	return first, second, mock
}

// waitForBackend waits until a mock has received so many completion requests.
func waitForBackend(t *testing.T, mock *mockvllm.Process, n int) {
	t.Helper()
	poll.Until(t, fmt.Sprintf("the backend has %d requests", n), func() bool { return completionRequests(mock) == n })
}

// admitted sends a request, and again while PostgreSQL does not answer its gateway in time.
func admitted(t *testing.T, url, secret string) (got response) {
	t.Helper()
	poll.Until(t, "the gateway is not overloaded", func() bool {
		var err error
		got, err = post(url, secret, smallRequest)
		must(t, err)
		return got.status != http.StatusServiceUnavailable || got.apiError(t).Code != "overloaded"
	})
	return got
}

// streamRequest streams many tokens.
const streamRequest = `{"model": "m", "prompt": "Once upon a time", "max_tokens": 4000, "temperature": 0, "stream": true, "ignore_eos": true}`

// eight slots are eight, whichever gateways the requests are sent to.
func TestSlotsOfAKeyAreThoseOfAllGateways(t *testing.T) {
	first, second, mock := startTwo(t, postgrestest.Shared(t), settings{}, mockvllm.Options{FirstDelay: time.Hour})
	secret := strings.TrimSpace(first.run("key", "create", "--account", first.email, "--name", "three", "--concurrency", "3"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	running, end := context.WithCancel(ctx)
	first.sendAsync(running, secret, stalledRequest)
	first.sendAsync(ctx, secret, stalledRequest)
	second.sendAsync(ctx, secret, stalledRequest)
	waitForBackend(t, mock, 3)
	second.sendAsync(ctx, secret, stalledRequest)
	poll.Until(t, "the fourth request waits", func() bool { return second.metric(metricWaitingReservations) == 1 })
	if n := completionRequests(mock); n != 3 {
		t.Errorf("%d requests reached the backend, want 3", n)
	}
	end() // the client of the other gateway disconnects
	waitForBackend(t, mock, 4)
}

// Clients of both gateways spend one cap at the same time: no token above it is charged, and it is used up.
func TestCapIsThatOfAllGateways(t *testing.T) {
	const budget, tokens = 600, 4 + 8
	first, second, _ := startTwo(t, postgrestest.Shared(t), settings{extra: "limits: {concurrency_per_key: 32}"}, mockvllm.Options{TokenDelay: time.Millisecond})
	secret := strings.TrimSpace(first.run("key", "create", "--account", first.email, "--name", "capped", "--monthly-budget", fmt.Sprint(budget)))
	var (
		clients sync.WaitGroup
		mu      sync.Mutex
		codes   = map[string]int{}
	)
	for i := range 12 {
		clients.Go(func() {
			for range 10 {
				got, err := post([]*gateway{first, second}[i%2].url, secret, `{"model":"m","prompt":[7,7,7,7],"max_tokens":8,"ignore_eos":true}`)
				if err != nil {
					t.Error(err)
					return
				}
				code := ""
				if got.status != http.StatusOK {
					code = got.apiError(t).Code
				}
				mu.Lock()
				codes[code]++
				mu.Unlock()
			}
		})
	}
	clients.Wait()
	rows, err := first.ledgerRows(t.Context())
	must(t, err)
	var spent int64
	for _, row := range rows {
		if strings.HasPrefix(secret, row.Key) {
			spent += row.Prompt + row.Completion
		}
	}
	delete(codes, "overloaded") // PostgreSQL may not answer in time
	if spent > budget || spent <= budget-tokens || codes[""] == 0 || codes["budget_exceeded"] == 0 || len(codes) != 2 {
		t.Errorf("%d of %d tokens are charged, and the responses were %v; want the cap used up, and budget_exceeded after that", spent, budget, codes)
	}
}

func TestKeyCommandsApplyAtAllGateways(t *testing.T) {
	first, second, _ := startTwo(t, postgrestest.Shared(t), settings{}, mockvllm.Options{})
	for i := range 3 {
		secret := first.createKey(fmt.Sprint("new ", i))
		for _, g := range []*gateway{first, second} {
			if got := admitted(t, g.url, secret); got.status != http.StatusOK {
				t.Fatalf("a new key: got %+v", got)
			}
		}
		first.run("key", "pause", secret[:13])
		for _, g := range []*gateway{first, second} {
			g.waitForStatus(secret, http.StatusUnauthorized)
		}
		first.run("key", "resume", secret[:13])
		for _, g := range []*gateway{second, first} {
			g.waitForStatus(secret, http.StatusOK)
		}
	}
}

// The slot of a stream whose gateway is killed goes to a request that waits at the other one, and the stream is charged
// its last checkpoint.
func TestLeasesOfAKilledGatewayAreTakenOver(t *testing.T) {
	t.Parallel() // it waits for the end of leases
	first, second, mock := startTwo(t, postgrestest.Shared(t), settings{}, mockvllm.Options{TokenDelay: 50 * time.Millisecond})
	secret := strings.TrimSpace(first.run("key", "create", "--account", first.email, "--name", "one", "--concurrency", "1"))
	stream := &gateway{process: first.process, environment: first.environment, t: t, url: first.url, secret: secret}
	request := stream.request(t.Context(), http.MethodPost, first.url+"/v1/completions", streamRequest)
	var broken sync.WaitGroup
	broken.Go(func() {
		if resp, err := httpClient.Do(request); err == nil {
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
	})
	defer broken.Wait()
	waitForBackend(t, mock, 1)
	var checkpoint int64
	poll.Until(t, "a checkpoint is written", func() bool {
		rows, err := first.ledgerRows(t.Context())
		must(t, err)
		if len(rows) != 1 {
			return false
		}
		checkpoint = rows[0].Completion
		return checkpoint > 0
	})
	waiting := second.sendAsync(t.Context(), secret, smallRequest)
	poll.Until(t, "the second request waits", func() bool { return second.metric(metricWaitingReservations) == 1 })
	first.signal(syscall.SIGKILL)
	<-first.exited
	poll.Until(t, "the second request is served", func() bool { return completionRequests(mock) == 2 })
	if got := <-waiting; got.status != http.StatusOK {
		t.Errorf("the request that waited: got %d, want 200", got.status)
	}
	states := map[string]ledgerRow{}
	poll.Until(t, "both requests have ended", func() bool {
		clear(states)
		rows, err := second.ledgerRows(t.Context())
		must(t, err)
		for _, row := range rows {
			states[row.State] = row
		}
		return len(rows) == 2 && states["in_flight"].ID == ""
	})
	if got := states["interrupted"]; got.Completion < checkpoint || got.Prompt == 0 {
		t.Errorf("the interrupted stream: got %+v, want at least its checkpoint of %d tokens charged", got, checkpoint)
	}
}

// A gateway that was stopped for so long that another one declared it dead ends its streams with an error, and serves on.
func TestStoppedGatewayIsFencedAndServesAgain(t *testing.T) {
	t.Parallel() // it waits for the end of leases
	first, second, mock := startTwo(t, postgrestest.Shared(t), settings{}, mockvllm.Options{})
	stream := first.heldStream(mock)
	first.signal(syscall.SIGSTOP)
	t.Cleanup(func() { first.cmd.Process.Signal(syscall.SIGCONT) })
	poll.Until(t, "the lease has ended", func() bool {
		rows, err := second.ledgerRows(t.Context())
		must(t, err)
		return len(rows) == 1 && rows[0].State == "interrupted"
	})
	first.signal(syscall.SIGCONT)
	rest := stream.readAll()
	if !strings.Contains(rest, `"code":"overloaded"`) || strings.Contains(rest, "[DONE]") {
		t.Errorf("the stream of the fenced gateway ended with %q, want the error overloaded and no [DONE]", rest)
	}
	mock.ClearFaults()
	poll.Until(t, "the gateway serves again", func() bool {
		got, err := post(first.url, first.secret, smallRequest)
		return err == nil && got.status == http.StatusOK
	})
	rows, err := second.ledgerRows(t.Context())
	must(t, err)
	interrupted := 0
	for _, row := range rows {
		if row.State == "interrupted" {
			interrupted++
		}
	}
	if len(rows) < 2 || interrupted != 1 {
		t.Errorf("got the rows %+v; want the interrupted stream once, and the new requests", rows)
	}
}

// A gateway can be stopped while PostgreSQL holds its connections and does not respond.
func TestSIGTERMEndsWhilePostgreSQLDoesNotRespond(t *testing.T) {
	t.Parallel() // it waits for the end of the clean-up
	server := postgrestest.Start(t)
	first, second, mock := startTwo(t, server, settings{server: ", drain_timeout: 1s"}, mockvllm.Options{})
	stream := first.heldStream(mock)
	server.Pause(t)
	t.Cleanup(func() { server.Resume(t) })
	first.signal(syscall.SIGTERM)
	first.waitForOutput(first.stderr, "the database did not respond in time")
	first.waitExit()
	if rest := stream.readAll(); strings.Contains(rest, "[DONE]") {
		t.Errorf("the stream that was not charged ended with %q", rest)
	}
	server.Resume(t)
	poll.Until(t, "the request is over, by a call that was on its way or by the other gateway", func() bool {
		rows, err := second.ledgerRows(t.Context())
		return err == nil && len(rows) == 1 && rows[0].State != "in_flight"
	})
}

// While PostgreSQL is away nothing is served that cannot be charged, waiters keep their places, and everything goes on
// when it is back.
func TestNothingIsServedWhilePostgreSQLIsAway(t *testing.T) {
	t.Parallel() // it waits for the gateways to notice
	server := postgrestest.Start(t)
	first, second, mock := startTwo(t, server, settings{}, mockvllm.Options{TokenDelay: time.Millisecond})
	secret := strings.TrimSpace(first.run("key", "create", "--account", first.email, "--name", "one", "--concurrency", "1"))
	unknown := first.createKey("unknown")
	first.waitForStatus(first.secret, http.StatusOK)
	before := completionRequests(mock)
	stream := (&gateway{process: first.process, environment: first.environment, t: t, url: first.url, admin: first.admin, secret: secret}).heldStream(mock)
	waiting := second.sendAsync(t.Context(), secret, smallRequest)
	poll.Until(t, "the second request waits", func() bool { return second.metric(metricWaitingReservations) == 1 })

	began := time.Now()
	server.Stop(t)
	for _, g := range []*gateway{first, second} {
		poll.Until(t, "requests are refused", func() bool {
			got, err := post(g.url, g.secret, smallRequest)
			must(t, err)
			return got.status == http.StatusServiceUnavailable && got.apiError(t).Code == "overloaded" && got.header.Get("Retry-After") != ""
		})
		if got, err := post(g.url, unknown[:len(unknown)-1]+"x", smallRequest); err != nil || got.status == http.StatusOK {
			t.Errorf("a malformed key: got %+v, error %v", got, err)
		}
		if ready := g.get(g.url, "/readyz"); ready.status != http.StatusServiceUnavailable {
			t.Errorf("/readyz: got %d %s, want 503", ready.status, ready.body)
		}
		if alive := g.get(g.url, "/healthz"); alive.status != http.StatusOK {
			t.Errorf("/healthz: got %d, want 200", alive.status)
		}
	}
	if n := completionRequests(mock); n != before+1 {
		t.Errorf("%d requests reached the backend in the outage, want only the stream that began before", n-before)
	}
	select {
	case got := <-waiting:
		t.Errorf("the request that waits got %d in the outage", got.status)
	default:
	}

	server.Run(t)
	mock.ClearFaults()
	rest := stream.readAll()
	cutOff := time.Since(began) > 50*time.Second && strings.Contains(rest, `"code":"overloaded"`) // as docs/cluster.md says
	if !cutOff && !strings.HasSuffix(rest, "data: [DONE]\n\n") {
		t.Errorf("the stream over the outage ended with %q, want [DONE]", rest)
	}
	if got := <-waiting; got.status != http.StatusOK {
		t.Errorf("the request that waited over the outage: got %d, want 200", got.status)
	}
	for _, g := range []*gateway{first, second} {
		poll.Until(t, "the gateway is ready and serves", func() bool {
			got, err := post(g.url, g.secret, smallRequest)
			return err == nil && got.status == http.StatusOK && g.get(g.url, "/readyz").status == http.StatusOK
		})
	}
}

// Two processes with one name would end each other's requests for ever: the older one stops, and says why.
func TestGatewayWhoseNameIsTakenStops(t *testing.T) {
	t.Parallel() // it waits for a heartbeat
	mock := startMock(t, mockvllm.Options{})
	env := newEnvironment(t, settings{postgres: postgrestest.Shared(t)}, mock.URL())
	first := env.serve()
	second := env.serveWithKey(first.secret)
	if code := first.waitExit(); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	if log := first.stderr.String(); !strings.Contains(log, "gateway.name") || !strings.Contains(log, `another process has the name`) {
		t.Errorf("the log does not say that the name is taken: %s", log)
	}
	if got := admitted(t, second.url, second.secret); got.status != http.StatusOK {
		t.Errorf("the newer gateway: got %d %s, want 200", got.status, got.body)
	}
}

// A second process of one configuration on one machine fails at its address and changes nothing.
func TestSecondProcessOfAConfigurationEndsNoEpoch(t *testing.T) {
	mock := startMock(t, mockvllm.Options{})
	env := newEnvironment(t, settings{postgres: postgrestest.Shared(t)}, mock.URL())
	first := env.serve()
	env.writeConfig(settings{postgres: env.postgres, adminListen: strings.TrimPrefix(first.admin, "http://")}, mock.URL())
	stream := first.heldStream(mock)
	second := startProcess(t, "serve", "--config", env.config)
	if code := second.waitExit(); code != 1 || !strings.Contains(second.stderr.String(), "address already in use") {
		t.Errorf("exit code %d and %s, want 1 and an address in use", code, second.stderr.String())
	}
	mock.ClearFaults()
	if rest := stream.readAll(); !strings.HasSuffix(rest, "data: [DONE]\n\n") {
		t.Errorf("the stream of the first gateway ended with %q, want [DONE]", rest)
	}
}

func TestPasswordOfTheDatabaseIsShownNowhere(t *testing.T) {
	mock := startMock(t, mockvllm.Options{})
	env := newEnvironment(t, settings{postgres: postgrestest.Shared(t)}, mock.URL())
	env.postgresURL = strings.Replace(env.postgresURL, "postgres@", "postgres:LETMEIN@", 1)
	env.writeConfig(settings{postgres: env.postgres, probeTimeout: loadedProbe}, mock.URL())
	g := env.serve()
	shown := g.get(g.admin, "/status").body + g.run("check") + g.stderr.String()
	if strings.Contains(shown, "LETMEIN") {
		t.Errorf("the password is shown: %s", shown)
	}
	_, stderr, code := runCommand(t, "backup", "copy.db", "--config", env.config)
	if code != 1 || !strings.Contains(stderr, "pg_dump") || strings.Contains(stderr, "LETMEIN") {
		t.Errorf("backup: exit code %d, %s; want 1 and pg_dump", code, stderr)
	}
}
