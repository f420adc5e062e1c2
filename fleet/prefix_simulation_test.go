package fleet_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"basegate/fleet"
	"basegate/internal/blockcache"
	"basegate/internal/prefixload"
)

const simBlock = 16 // tokens

// simulatedText returns a prompt's bytes, four for each token.
func simulatedText(prompt []int) (text []byte) {
	for _, id := range prompt {
		text = binary.LittleEndian.AppendUint32(text, uint32(id))
	}
	return text
}

// The caches of four replicas are worth nearly as much as one cache of their size, and none gets much over its share, also
// where the prompts fill the caches, and if a replica restarts on the way.
func TestRoutingIsNearlyWorthOneCacheOfAllReplicas(t *testing.T) {
	for _, c := range []struct {
		replicas int
		fill     int // of all caches by all prompts, in percent
		report   bool
		restarts bool
		share    float64 // of the cached tokens of one cache
	}{
		{replicas: 4, fill: 40, report: true, share: 0.95},
		{replicas: 4, fill: 73, report: true, share: 0.9},
		{replicas: 4, fill: 120, report: true, share: 0.75},
		{replicas: 4, fill: 120, report: false, share: 0.75},
		{replicas: 4, fill: 73, report: true, restarts: true, share: 0.8},
		{replicas: 2, fill: 40, report: true, share: 0.95},
		{replicas: 2, fill: 73, report: true, share: 0.9},
		{replicas: 2, fill: 120, report: true, share: 0.75},
	} {
		t.Run(fmt.Sprintf("%d replicas, %d %%, reported %t, restarts %t", c.replicas, c.fill, c.report, c.restarts), func(t *testing.T) {
			random := rand.New(rand.NewPCG(1, 2))
			queue := prefixload.New(100, 25, 20)
			requests := queue.Prompts()
			capacity := queue.Blocks(simBlock) * 100 / c.fill / c.replicas
			m, servers := startSizedReplicas(t, c.replicas, 16*capacity)
			ideal := blockcache.New(c.replicas*capacity, simBlock)
			caches, count := map[string]*blockcache.Cache{}, map[string]int{}
			for _, b := range m.Backends() {
				caches[b.Name] = blockcache.New(capacity, simBlock)
			}
			type request struct {
				lease  *fleet.Lease
				answer fleet.Usage
				rest   prefixload.Conversation
			}
			var inFlight []request
			hits, most, sent := 0, 0, 0
			for sent < requests || len(inFlight) > 0 {
				var prompts prefixload.Conversation
				if len(inFlight) < 4*c.replicas {
					prompts = queue.Next()
				}
				if prompts != nil {
					prompt := prompts[0]
					l := lease(t, m, string(simulatedText(prompt)))
					cached := caches[l.Name].Use(prompt, "")
					hits, most = hits+cached, most+ideal.Use(prompt, "")
					count[l.Name]++
					sent++
					a := fleet.Usage{Prompt: int64(len(prompt)), Completion: 1}
					if tokens := int64(cached); c.report {
						a.Cached = &tokens
					}
					inFlight = append(inFlight, request{l, a, prompts[1:]})
					if c.restarts && sent == requests/2 {
						servers[2].unhealthy.Store(true)
						awaitState(t, m.Backends()[2], fleet.Unreachable)
						servers[2].metrics.Store(cacheMetrics(2, 16*capacity))
						caches["b2"] = blockcache.New(capacity, simBlock)
						servers[2].unhealthy.Store(false)
						awaitState(t, m.Backends()[2], fleet.Ready)
					}
					continue
				}
				i := random.IntN(len(inFlight))
				r := inFlight[i]
				inFlight = slices.Delete(inFlight, i, i+1)
				r.lease.RecordUsage(r.answer)
				r.lease.Release()
				queue.Return(r.rest)
			}
			busiest := 0
			for _, n := range count {
				busiest = max(busiest, n)
			}
			got, over := float64(hits)/float64(most), float64(busiest*c.replicas)/float64(requests)
			t.Logf("%.3f of the cached tokens of one cache, the busiest replica has %.2f of the mean", got, over)
			if got < c.share || over > 1.3 {
				t.Errorf("%.3f of the cached tokens of one cache, want %.2f; the busiest replica has %.2f of the mean, want at most 1.3", got, c.share, over)
			}
		})
	}
}
