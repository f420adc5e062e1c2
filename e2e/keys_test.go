//go:build e2e

package e2e_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"basegate/internal/poll"
	"basegate/mockvllm"
)

// withinASecond polls a condition of a running gateway until it holds. Only a machine that does nothing else keeps the second,
// so the test fails after it only if it was asked to measure (make hostile, make pages).
func withinASecond(t *testing.T, description string, condition func() bool) {
	t.Helper()
	began := time.Now()
	poll.Until(t, description, condition)
	took := time.Since(began)
	if _, requireTimes := attackDuration(t); took > time.Second && (requireTimes || os.Getenv("BASEGATE_PAGES") != "") {
		t.Errorf("after %v: %s", took, description)
	} else if took > time.Second {
		t.Logf("after %v: %s", took, description)
	}
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

// waitForStatus waits, as withinASecond does, until requests with the key get a status.
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
