//go:build e2e

package e2e_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"basegate/internal/poll"
	"basegate/mockvllm"
)

// stuck is a request that the backend of the test does not answer.
const stuck = `{"model":"m","prompt":[7,7,7,7],"max_tokens":60}`

// ask sends a request that is not waited for. Its answer, or that there is none, comes on the channel.
func (g *gateway) ask(ctx context.Context, secret, body string) <-chan reply {
	g.t.Helper()
	r := g.request(ctx, http.MethodPost, g.url+"/v1/completions", body)
	r.Header.Set("Authorization", "Bearer "+secret)
	answered := make(chan reply, 1)
	go func() {
		defer close(answered)
		resp, err := client.Do(r)
		if err != nil {
			return
		}
		defer resp.Body.Close()
		answered <- reply{status: resp.StatusCode, header: resp.Header}
	}()
	return answered
}

// reads waits until a figure of the gateway has a value, which must be within a second.
func (g *gateway) reads(name string, value float64) {
	g.t.Helper()
	poll.Within(g.t, obedience, name, func() bool { return g.metric(name) == value })
}

const (
	running   = "basegate_admission_running_requests"
	queued    = "basegate_admission_waiting_requests"
	undecided = "basegate_ledger_waiting_reservations"
)

// Who waits is held to a command as soon as who comes afterwards.
func TestTheRunningServerObeysForThoseWhoWaitAlready(t *testing.T) {
	g, mock := gatewayOf(t, settings{}, mockvllm.Options{FirstDelay: time.Hour})
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	backend := func(n int) {
		t.Helper()
		poll.Until(t, "the backend is asked", func() bool { return completions(mock) == n })
	}
	g.run("account", "set", g.email, "--monthly-budget", "100")
	first, second := g.key("first"), g.key("second")
	g.becomesKnown(second)

	g.ask(ctx, first, stuck)
	backend(1)
	g.ask(ctx, first, stuck)
	g.reads(undecided, 1)
	g.run("account", "set", g.email, "--monthly-budget", "130")
	g.reads(undecided, 0)
	backend(2)

	refused := g.ask(ctx, second, stuck)
	g.reads(undecided, 1)
	g.run("key", "pause", second[:13])
	g.reads(undecided, 0)
	if answer := <-refused; answer.status != http.StatusUnauthorized || answer.header.Get("X-Ratelimit-Limit-Tokens") != "" {
		t.Errorf("a key that is paused while it waits gets %d %v", answer.status, answer.header)
	}

	spent := g.ask(ctx, first, stuck)
	g.reads(undecided, 1)
	g.run("account", "set", g.email, "--monthly-budget", "3")
	g.reads(undecided, 0)
	if answer := <-spent; answer.status != http.StatusTooManyRequests || answer.header.Get("X-Ratelimit-Limit-Tokens") != "3" {
		t.Errorf("a cap that was lowered below a prompt gives %d %v", answer.status, answer.header)
	}

	g.run("account", "set", g.email, "--monthly-budget", "unbounded")
	third := strings.TrimSpace(g.run("key", "create", "--account", g.email, "--name", "third", "--concurrency", "1"))
	g.becomesKnown(third)
	g.ask(ctx, third, stuck)
	backend(3)
	g.ask(ctx, third, stuck)
	g.reads(queued, 1)
	g.run("key", "set", third[:13], "--concurrency", "2")
	g.reads(queued, 0)
	backend(4)

	leave()
	g.reads(running, 0)
}

// becomesKnown waits until the running gateway has heard of a key.
func (g *gateway) becomesKnown(secret string) {
	g.t.Helper()
	poll.Within(g.t, obedience, "the key is known", func() bool {
		answer, err := postTo(g.url+"/v1/chat/completions", secret, "{}")
		return err == nil && answer.status == http.StatusBadRequest
	})
}
