//go:build e2e

package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// The environment of a process of this test that is an honest client: the gateway's URL, the key, and for how long it
// sends requests. It is a process of its own so that it does not wait for the hostile clients of the test's process.
const (
	honestURL      = "BASEGATE_HONEST_URL"
	honestKey      = "BASEGATE_HONEST_KEY"
	honestDuration = "BASEGATE_HONEST_DURATION"
)

// honestInterval is the time between the beginnings of two requests of an honest client.
const honestInterval = 25 * time.Millisecond

func isHonestClient() bool { return os.Getenv(honestURL) != "" }

// latencies are the times that requests took, in ascending order.
type latencies []time.Duration

// percentile returns a percentile, 0 if there are no requests.
func (l latencies) percentile(p int) time.Duration {
	if len(l) == 0 {
		return 0
	}
	return l[min(len(l)*p/100, len(l)-1)]
}

// String implements fmt.Stringer.
func (l latencies) String() string {
	return fmt.Sprintf("%d requests: median %v, 99th percentile %v, maximum %v",
		len(l), l.percentile(50), l.percentile(99), l.percentile(100))
}

// runHonestClient sends plain requests on a kept connection, and writes their latencies to stdout and failures to stderr.
func runHonestClient() (exitCode int) {
	d, err := time.ParseDuration(os.Getenv(honestDuration))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var all latencies
	tick := time.NewTicker(honestInterval)
	defer tick.Stop()
	for end := time.Now().Add(d); time.Now().Before(end); <-tick.C {
		began := time.Now()
		if err := sendHonestRequest(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			exitCode = 1
		}
		all = append(all, time.Since(began))
	}
	slices.Sort(all)
	if err := json.NewEncoder(os.Stdout).Encode(all); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return exitCode
}

func sendHonestRequest() error {
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, os.Getenv(honestURL)+"/v1/completions", strings.NewReader(smallRequest))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+os.Getenv(honestKey))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%d %s: %w", resp.StatusCode, body, err)
	}
	return nil
}

// startHonestClient starts an honest client, whose requests must all succeed. The returned function waits for its end.
func startHonestClient(t *testing.T, url, secret string, d time.Duration) (wait func() latencies) {
	t.Helper()
	executable, err := os.Executable()
	must(t, err)
	cmd := exec.CommandContext(t.Context(), executable)
	cmd.Env = append(os.Environ(), honestURL+"="+url, honestKey+"="+secret, honestDuration+"="+d.String())
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	must(t, cmd.Start())
	return func() (all latencies) {
		t.Helper()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the honest client: %v: %s", err, errs.String())
		}
		must(t, json.Unmarshal([]byte(out.String()), &all))
		return all
	}
}
