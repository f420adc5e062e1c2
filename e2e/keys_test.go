//go:build e2e

package e2e_test

import (
	"fmt"
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

// withinASecond polls a condition of a running gateway until it holds, and fails the test after a second; on a loaded
// machine, after the time of 100 polls.
func withinASecond(t *testing.T, description string, condition func() bool) {
	t.Helper()
	began, polls := time.Now(), 0
	poll.Within(t, waitTimeout, description, func() bool {
		if condition() {
			return true
		}
		if polls++; polls > 100 && time.Since(began) > time.Second {
			t.Fatalf("after %v and %d polls: not yet true that %s", time.Since(began), polls, description)
		}
		return false
	})
}

// post sends a completion request with a key. It may be called from any goroutine.
func post(url, secret, body string) (response, error) {
	return postTo(url+"/v1/completions", secret, body)
}

// postTo sends a POST request with a key. It may be called from any goroutine.
func postTo(address, secret, body string) (response, error) {
	r, err := http.NewRequest(http.MethodPost, address, strings.NewReader(body))
	if err != nil {
		return response{}, err
	}
	r.Header.Set("Authorization", "Bearer "+secret)
	resp, err := httpClient.Do(r)
	if err != nil {
		return response{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return response{resp.StatusCode, resp.Header, string(text)}, err
}

// waitForStatus waits for at most a second until requests with the key get a status.
func (g *gateway) waitForStatus(secret string, status int) {
	g.t.Helper()
	withinASecond(g.t, fmt.Sprintf("the key gets %d %s", status, http.StatusText(status)), func() bool {
		got, err := post(g.url, secret, smallRequest)
		return err == nil && got.status == status
	})
}

func TestKeyCommandsApplyWithinASecond(t *testing.T) {
	g, _ := startGateway(t, settings{}, mockvllm.Options{})

	secret := g.createKey("new")
	prefix := secret[:13]
	g.waitForStatus(secret, http.StatusOK)
	g.run("key", "pause", prefix)
	g.waitForStatus(secret, http.StatusUnauthorized)
	g.run("key", "resume", prefix)
	g.waitForStatus(secret, http.StatusOK)
	g.run("key", "revoke", prefix)
	g.waitForStatus(secret, http.StatusUnauthorized)
	g.waitForStatus(g.secret, http.StatusOK)
}

func TestAccountCommandsApplyWithinASecond(t *testing.T) {
	g, _ := startGateway(t, settings{}, mockvllm.Options{})
	g.waitForStatus(g.secret, http.StatusOK)
	g.run("account", "disable", g.email)
	g.waitForStatus(g.secret, http.StatusUnauthorized)
	g.run("account", "approve", g.email)
	g.waitForStatus(g.secret, http.StatusOK)
}

// The gateway and the command are different processes, so the gateway has not seen the key before.
func TestKeyWorksAsSoonAsTheCommandHasCreatedOrRotatedIt(t *testing.T) {
	g, _ := startGateway(t, settings{}, mockvllm.Options{})
	for range 10 {
		secret := g.createKey("new")
		if got, err := post(g.url, secret, smallRequest); err != nil || got.status != http.StatusOK {
			t.Fatalf("a new key: got %+v, error %v", got, err)
		}
		rotated := strings.TrimSpace(g.run("key", "rotate", secret[:13], "--grace", "1h"))
		for _, given := range []string{rotated, secret} {
			if got, err := post(g.url, given, smallRequest); err != nil || got.status != http.StatusOK {
				t.Fatalf("after the rotation: got %+v, error %v", got, err)
			}
		}
	}
}

// All rejections of a key are identical except for the request ID, so that they reveal nothing to an attacker.
func TestAllRejectedKeysGetTheSameResponse(t *testing.T) {
	g, _ := startGateway(t, settings{}, mockvllm.Options{})
	g.run("account", "set", g.email, "--monthly-budget", "1_000_000") // must not show in the headers of a rejected key
	paused, revoked := g.createKey("paused"), g.createKey("revoked")
	g.run("key", "pause", paused[:13])
	g.run("key", "revoke", revoked[:13])
	g.waitForStatus(paused, http.StatusUnauthorized)
	g.waitForStatus(revoked, http.StatusUnauthorized)
	expired, replaced := g.createKey("expired"), g.createKey("replaced")
	g.run("key", "set", expired[:13], "--expires", "2020-01-01")
	g.run("key", "rotate", replaced[:13], "--grace", "0s")
	g.waitForStatus(expired, http.StatusUnauthorized)
	g.waitForStatus(replaced, http.StatusUnauthorized)

	unknown := "acs-bm-" + strings.Repeat("x", 43)
	var first apiError
	var headers []string
	for i, secret := range []string{"", "nonsense", unknown, paused, revoked, expired, replaced} {
		got, err := post(g.url, secret, smallRequest)
		if err != nil {
			t.Fatal(err)
		}
		apiErr := got.apiError(t)
		if i == 0 {
			first = apiErr
		}
		if apiErr != first || apiErr.Code != "invalid_api_key" || apiErr.Type != "authentication_error" {
			t.Errorf("key %d: got %+v, want the first key's %+v", i, apiErr, first)
		}
		if h := got.header; h.Get("WWW-Authenticate") != "Bearer" || h.Get("X-Should-Retry") != "false" {
			t.Errorf("key %d: wrong headers: %v", i, h)
		}
		names := slices.Sorted(maps.Keys(got.header))
		if i == 0 {
			headers = names
		}
		if !slices.Equal(names, headers) {
			t.Errorf("key %d: got the headers %v, want the first key's %v", i, names, headers)
		}
	}
}
