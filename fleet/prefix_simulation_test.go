package fleet_test

import (
	"container/list"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"slices"
	"testing"

	"basegate/fleet"
)

const (
	simTokenBytes = 4
	simBlock      = 16 * simTokenBytes
	simReplicas   = 4
	simInFlight   = 16
)

// simulatedCache is a server's prefix cache: an LRU of blocks of 16 tokens.
type simulatedCache struct {
	capacity int // in blocks
	blocks   map[uint64]*list.Element
	newest   *list.List
}

func newSimulatedCache(capacity int) *simulatedCache {
	return &simulatedCache{capacity, map[uint64]*list.Element{}, list.New()}
}

var simulationSeed = maphash.MakeSeed()

func blocksOf(prompt []byte) (keys []uint64) {
	for end := simBlock; end <= len(prompt); end += simBlock {
		keys = append(keys, maphash.Bytes(simulationSeed, prompt[:end]))
	}
	return keys
}

// serve returns how many bytes of a prompt are cached, and caches it.
func (c *simulatedCache) serve(prompt []byte) (cached int) {
	keys := blocksOf(prompt)
	for _, key := range keys {
		if c.blocks[key] == nil {
			break
		}
		cached += simBlock
	}
	for _, key := range slices.Backward(keys) {
		if block := c.blocks[key]; block != nil {
			c.newest.MoveToFront(block)
			continue
		}
		c.blocks[key] = c.newest.PushFront(key)
		if c.newest.Len() > c.capacity {
			delete(c.blocks, c.newest.Remove(c.newest.Back()).(uint64))
		}
	}
	return cached
}

// simulatedPrompts returns conversations that grow by turns, and questions about long prompts.
func simulatedPrompts(random *rand.Rand) (all [][][]byte) {
	tokens := func(n int) []byte {
		text := make([]byte, n*simTokenBytes)
		for i := range text {
			text[i] = byte(random.Uint32())
		}
		return text
	}
	for range 100 {
		prompt := tokens(100 + random.IntN(300))
		var turns [][]byte
		for range 5 {
			turns = append(turns, prompt)
			prompt = slices.Concat(prompt, tokens(100+random.IntN(200)))
		}
		all = append(all, turns)
	}
	for range 25 {
		examples := tokens(3000)
		for range 20 {
			all = append(all, [][]byte{slices.Concat(examples, tokens(20+random.IntN(60)))})
		}
	}
	return all
}

// The caches of four replicas are worth nearly as much as one cache of their size, and none gets much over its share, also
// where the prompts fill the caches, and if a replica restarts on the way.
func TestRoutingIsNearlyWorthOneCacheOfAllReplicas(t *testing.T) {
	for _, c := range []struct {
		fill     int // of all caches by all prompts, in percent
		report   bool
		restarts bool
		share    float64 // of the cached tokens of one cache
	}{
		{fill: 40, report: true, share: 0.95},
		{fill: 73, report: true, share: 0.9},
		{fill: 120, report: true, share: 0.75},
		{fill: 120, report: false, share: 0.75},
		{fill: 73, report: true, restarts: true, share: 0.8},
	} {
		t.Run(fmt.Sprintf("%d %%, reported %t, restarts %t", c.fill, c.report, c.restarts), func(t *testing.T) {
			random := rand.New(rand.NewPCG(1, 2))
			waiting := simulatedPrompts(random)
			different := map[uint64]bool{}
			requests := 0
			for _, prompts := range waiting {
				for _, p := range prompts {
					requests++
					for _, key := range blocksOf(p) {
						different[key] = true
					}
				}
			}
			capacity := len(different) * 100 / c.fill / simReplicas
			m, servers := startSizedReplicas(t, simReplicas, 16*capacity)
			ideal := newSimulatedCache(simReplicas * capacity)
			caches, count := map[string]*simulatedCache{}, map[string]int{}
			for _, b := range m.Backends() {
				caches[b.Name] = newSimulatedCache(capacity)
			}
			type request struct {
				lease  *fleet.Lease
				answer fleet.Usage
				rest   [][]byte
			}
			var inFlight []request
			hits, most, sent := 0, 0, 0
			for len(waiting) > 0 || len(inFlight) > 0 {
				if len(waiting) > 0 && len(inFlight) < simInFlight {
					i := random.IntN(len(waiting))
					prompts := waiting[i]
					waiting = slices.Delete(waiting, i, i+1)
					prompt := prompts[0]
					l := lease(t, m, string(prompt))
					cached := caches[l.Name].serve(prompt)
					hits, most = hits+cached, most+ideal.serve(prompt)
					count[l.Name]++
					sent++
					a := fleet.Usage{Prompt: int64(len(prompt) / simTokenBytes), Completion: 1}
					if tokens := int64(cached / simTokenBytes); c.report {
						a.Cached = &tokens
					}
					inFlight = append(inFlight, request{l, a, prompts[1:]})
					if c.restarts && sent == requests/2 {
						servers[2].unhealthy.Store(true)
						awaitState(t, m.Backends()[2], fleet.Unreachable)
						servers[2].metrics.Store(cacheMetrics(2, 16*capacity))
						caches["b2"] = newSimulatedCache(capacity)
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
				if len(r.rest) > 0 {
					waiting = append(waiting, r.rest)
				}
			}
			busiest := 0
			for _, n := range count {
				busiest = max(busiest, n)
			}
			got, over := float64(hits)/float64(most), float64(busiest*simReplicas)/float64(requests)
			t.Logf("%.3f of the cached tokens of one cache, the busiest replica has %.2f of the mean", got, over)
			if got < c.share || over > 1.3 {
				t.Errorf("%.3f of the cached tokens of one cache, want %.2f; the busiest replica has %.2f of the mean, want at most 1.3", got, c.share, over)
			}
		})
	}
}
