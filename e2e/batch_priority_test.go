//go:build e2e

package e2e_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"basegate/internal/poll"
	"basegate/mockvllm"
)

// Lines carry their deadline as priority, only to a backend that schedules by it, and a live request overtakes the lines
// that wait there.
func TestLiveRequestsOvertakeLinesInTheBackendsQueue(t *testing.T) {
	for _, policy := range []string{mockvllm.PolicyPriority, mockvllm.PolicyFCFS} {
		t.Run(policy, func(t *testing.T) {
			// Slower than a loaded machine sends the lines and the live request.
			mock := startMock(t, mockvllm.Options{MaxNumSeqs: 1, FirstDelay: 100 * time.Millisecond, SchedulingPolicy: policy})
			g := newEnvironment(t, settings{
				models: fmt.Sprintf(`{id: m, checkpoint: %s, backends: [{url: %q, scheduling_policy: %s}]}`, checkpoint, mock.URL(), policy),
			}).serve()
			file, ids := batchLines(60)
			id := g.createBatch(g.secret, file)
			poll.Until(t, "lines wait at the backend", func() bool { return mock.Running() > 40 })
			if r := g.complete(smallRequest); r.status != http.StatusOK {
				t.Errorf("the live request: %d %s", r.status, r.body)
			}
			b := g.waitForBatch(g.secret, id, "completed")
			g.checkResults(g.secret, b, ids)
			var live mockvllm.Recorded
			var lines []mockvllm.Recorded
			for _, r := range mock.Requests() {
				switch {
				case r.Path != "/v1/completions":
				case gjson.GetBytes(r.Body, "max_tokens").Int() == 4:
					lines = append(lines, r)
				default:
					live = r
				}
			}
			behind := 0 // lines that had arrived before the live request, and ended after it
			want := int64(0)
			if policy == mockvllm.PolicyPriority {
				want = b.Get("expires_at").Int()
			}
			for _, line := range lines {
				if line.Time.Before(live.Time) && line.Finished.After(live.Finished) {
					behind++
				}
				if got := gjson.GetBytes(line.Body, "priority").Int(); got != want {
					t.Errorf("the priority of a line is %d, want %d", got, want)
				}
			}
			if (behind > 20) != (policy == mockvllm.PolicyPriority) {
				t.Errorf("the live request overtook %d of %d lines", behind, len(lines))
			}
			if gjson.GetBytes(live.Body, "priority").Exists() {
				t.Errorf("the live request was sent with a priority: %s", live.Body)
			}
		})
	}
}

// Lines that begin alike are sent one after another: a shuffled file finds nearly as much in the prefix cache as a sorted
// one, although the cache is much smaller than all prefixes together.
func TestShuffledBatchUsesThePrefixCache(t *testing.T) {
	lines, prefixes := 10_000, 50
	if testing.Short() {
		lines = 2_000
	}
	const prefixWords = 120
	var prefix []string
	for i := range prefixes {
		var words []string
		for w := range prefixWords {
			words = append(words, fmt.Sprintf("p%dw%d", i, w))
		}
		prefix = append(prefix, strings.Join(words, " "))
	}
	hits := func(order []int) (hits, queries float64) {
		mock := startMock(t, mockvllm.Options{PrefixCacheBlocks: 500})
		g := newEnvironment(t, settings{}, mock.URL()).serve()
		var file strings.Builder
		for _, n := range order {
			file.WriteString(batchLine(fmt.Sprint(n), fmt.Sprintf(`{"model":"m","prompt":"%s question %d","max_tokens":1}`, prefix[n*prefixes/lines], n)))
		}
		g.waitForBatch(g.secret, g.createBatch(g.secret, file.String()), "completed")
		metrics := g.get(mock.URL(), "/metrics").body
		return metricValue(t, metrics, "vllm:prefix_cache_hits_total"), metricValue(t, metrics, "vllm:prefix_cache_queries_total")
	}
	order := make([]int, lines)
	for i := range order {
		order[i] = i
	}
	sorted, queries := hits(order)
	rand.Shuffle(lines, func(i, j int) { order[i], order[j] = order[j], order[i] })
	shuffled, _ := hits(order)
	if sorted < 0.8*queries {
		t.Errorf("a sorted file found %.0f of %.0f tokens: the prompts share too little to test anything", sorted, queries)
	}
	if shuffled < 0.9*sorted {
		t.Errorf("a shuffled file found %.0f tokens in the cache, a sorted one %.0f", shuffled, sorted)
	}
	t.Logf("hits of %.0f tokens: %.3f sorted, %.3f shuffled", queries, sorted/queries, shuffled/queries)
}

// metricValue returns the value of a metric with one sample.
func metricValue(t *testing.T, metrics, name string) (value float64) {
	t.Helper()
	for line := range strings.Lines(metrics) {
		if strings.HasPrefix(line, name+"{") {
			if _, err := fmt.Sscan(line[strings.LastIndexByte(line, ' '):], &value); err != nil {
				t.Fatal(err)
			}
			return value
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}
