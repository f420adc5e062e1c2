//go:build e2e

package e2e_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"basegate/internal/poll"
	"basegate/mockvllm"
)

// stalledRequest is a request of 4 prompt tokens and up to 60 completion tokens. The mock of the test does not respond.
const stalledRequest = `{"model":"m","prompt":[7,7,7,7],"max_tokens":60}`

// sendAsync sends a request in the background. The channel gets its status and headers, and is closed if there is no
// response.
func (g *gateway) sendAsync(ctx context.Context, secret, body string) <-chan response {
	g.t.Helper()
	r := g.request(ctx, http.MethodPost, g.url+"/v1/completions", body)
	r.Header.Set("Authorization", "Bearer "+secret)
	result := make(chan response, 1)
	go func() {
		defer close(result)
		resp, err := httpClient.Do(r)
		if err != nil {
			return
		}
		defer resp.Body.Close()
		result <- response{status: resp.StatusCode, header: resp.Header}
	}()
	return result
}

// waitForMetric waits, as withinASecond does, until a metric has a value.
func (g *gateway) waitForMetric(name string, value float64) {
	g.t.Helper()
	withinASecond(g.t, fmt.Sprintf("%s is %v", name, value), func() bool { return g.metric(name) == value })
}

const (
	metricRunning             = "basegate_admission_running_requests"
	metricQueued              = "basegate_admission_waiting_requests"
	metricWaitingReservations = "basegate_ledger_waiting_reservations"
)

// Changes of keys and caps apply to requests that are waiting already, within a second.
func TestCommandsApplyToWaitingRequests(t *testing.T) {
	g, mock := startGateway(t, settings{}, mockvllm.Options{FirstDelay: time.Hour})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	waitForBackend := func(n int) {
		t.Helper()
		poll.Until(t, "the backend has the request", func() bool { return completionRequests(mock) == n })
	}
	g.run("account", "set", g.email, "--monthly-budget", "100")
	first, second := g.createKey("first"), g.createKey("second")
	g.waitForKey(second)

	g.sendAsync(ctx, first, stalledRequest)
	waitForBackend(1)
	g.sendAsync(ctx, first, stalledRequest)
	g.waitForMetric(metricWaitingReservations, 1)
	g.run("account", "set", g.email, "--monthly-budget", "130")
	g.waitForMetric(metricWaitingReservations, 0)
	waitForBackend(2)

	refused := g.sendAsync(ctx, second, stalledRequest)
	g.waitForMetric(metricWaitingReservations, 1)
	g.run("key", "pause", second[:13])
	g.waitForMetric(metricWaitingReservations, 0)
	if got := <-refused; got.status != http.StatusUnauthorized || got.header.Get("X-Ratelimit-Limit-Tokens") != "" {
		t.Errorf("a request whose key is paused while it waits: %d %v", got.status, got.header)
	}

	overCap := g.sendAsync(ctx, first, stalledRequest)
	g.waitForMetric(metricWaitingReservations, 1)
	g.run("account", "set", g.email, "--monthly-budget", "3")
	g.waitForMetric(metricWaitingReservations, 0)
	if got := <-overCap; got.status != http.StatusTooManyRequests || got.header.Get("X-Ratelimit-Limit-Tokens") != "3" {
		t.Errorf("a request whose cap is lowered below its prompt: %d %v", got.status, got.header)
	}

	g.run("account", "set", g.email, "--monthly-budget", "unbounded")
	third := strings.TrimSpace(g.run("key", "create", "--account", g.email, "--name", "third", "--concurrency", "1"))
	g.waitForKey(third)
	g.sendAsync(ctx, third, stalledRequest)
	waitForBackend(3)
	g.sendAsync(ctx, third, stalledRequest)
	g.waitForMetric(metricQueued, 1)
	g.run("key", "set", third[:13], "--concurrency", "2")
	g.waitForMetric(metricQueued, 0)
	waitForBackend(4)

	g.run("account", "set", g.email, "--concurrency", "1")
	fourth := g.createKey("fourth")
	g.waitForKey(fourth)
	g.sendAsync(ctx, fourth, stalledRequest)
	waitForBackend(5)
	g.sendAsync(ctx, fourth, stalledRequest)
	g.waitForMetric(metricQueued, 1)
	g.run("account", "set", g.email, "--concurrency", "0")
	g.waitForMetric(metricQueued, 0)
	waitForBackend(6)

	fifth := strings.TrimSpace(g.run("key", "create", "--account", g.email, "--name", "fifth", "--concurrency", "1"))
	g.waitForKey(fifth)
	g.sendAsync(ctx, fifth, stalledRequest)
	waitForBackend(7)
	queued := g.sendAsync(ctx, fifth, stalledRequest)
	g.waitForMetric(metricQueued, 1)
	g.run("key", "pause", fifth[:13])
	g.waitForMetric(metricQueued, 0)
	if got := <-queued; got.status != http.StatusUnauthorized {
		t.Errorf("a request whose key is paused while it waits for a slot: %d, want 401", got.status)
	}

	cancel()
	poll.Until(t, "no request runs", func() bool { return g.metric(metricRunning) == 0 }) // after the commits of all of them
}

// waitForKey waits until the running gateway accepts a key.
func (g *gateway) waitForKey(secret string) {
	g.t.Helper()
	withinASecond(g.t, "the gateway accepts the key", func() bool {
		got, err := postTo(g.url+"/v1/chat/completions", secret, "{}")
		return err == nil && got.status == http.StatusBadRequest
	})
}
