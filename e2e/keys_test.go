//go:build e2e

package e2e_test

import (
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"basegate/internal/poll"
	"basegate/mockvllm"
)

// obedience is how soon a running server must follow a command.
const obedience = time.Second

// post sends a completion request with a key, from any goroutine.
func post(url, secret, body string) (reply, error) {
	return postTo(url+"/v1/completions", secret, body)
}

func postTo(address, secret, body string) (reply, error) {
	r, err := http.NewRequest(http.MethodPost, address, strings.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	r.Header.Set("Authorization", "Bearer "+secret)
	resp, err := client.Do(r)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, string(text)}, err
}

// becomes waits until requests with the key are answered with a status, which must be within a second.
func (g *gateway) becomes(secret string, status int) {
	g.t.Helper()
	poll.Within(g.t, obedience, http.StatusText(status), func() bool {
		answer, err := post(g.url, secret, small)
		return err == nil && answer.status == status
	})
}

func TestTheRunningServerObeysKeyCommands(t *testing.T) {
	g, _ := gatewayOf(t, settings{}, mockvllm.Options{})

	secret := g.key("new")
	prefix := secret[:13]
	g.becomes(secret, http.StatusOK)
	g.run("key", "pause", prefix)
	g.becomes(secret, http.StatusUnauthorized)
	g.run("key", "resume", prefix)
	g.becomes(secret, http.StatusOK)
	g.run("key", "revoke", prefix)
	g.becomes(secret, http.StatusUnauthorized)
	g.becomes(g.secret, http.StatusOK)
}

func TestTheRunningServerObeysAccountCommands(t *testing.T) {
	g, _ := gatewayOf(t, settings{}, mockvllm.Options{})
	g.becomes(g.secret, http.StatusOK)
	g.run("account", "disable", g.email)
	g.becomes(g.secret, http.StatusUnauthorized)
	g.run("account", "approve", g.email)
	g.becomes(g.secret, http.StatusOK)
}

// All refusals of a key read the same, but for the request's id, so that they tell an attacker nothing.
func TestAllRefusedKeysAreToldTheSame(t *testing.T) {
	g, _ := gatewayOf(t, settings{}, mockvllm.Options{})
	g.run("account", "set", g.email, "--monthly-budget", "1_000_000") // of which a key that may not ask is not told either
	paused, revoked := g.key("paused"), g.key("revoked")
	g.run("key", "pause", paused[:13])
	g.run("key", "revoke", revoked[:13])
	g.becomes(paused, http.StatusUnauthorized)
	g.becomes(revoked, http.StatusUnauthorized)

	unknown := "acs-bm-" + strings.Repeat("x", 43)
	var first fault
	var headers []string
	for i, secret := range []string{"", "nonsense", unknown, paused, revoked} {
		answer, err := post(g.url, secret, small)
		if err != nil {
			t.Fatal(err)
		}
		told := answer.fault(t)
		if i == 0 {
			first = told
		}
		if told != first || told.Code != "invalid_api_key" || told.Type != "authentication_error" {
			t.Errorf("key %d: %+v, the first was told %+v", i, told, first)
		}
		if h := answer.header; h.Get("WWW-Authenticate") != "Bearer" || h.Get("X-Should-Retry") != "false" {
			t.Errorf("key %d: headers %v", i, h)
		}
		names := slices.Sorted(maps.Keys(answer.header))
		if i == 0 {
			headers = names
		}
		if !slices.Equal(names, headers) {
			t.Errorf("key %d: %v, the first got %v", i, names, headers)
		}
	}
}
