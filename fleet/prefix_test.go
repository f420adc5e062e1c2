package fleet_test

import (
	"fmt"
	"net/url"
	"reflect"
	"strings"
	"testing"

	"go.uber.org/zap"

	"basegate/breaker"
	"basegate/fleet"
	"basegate/gateway/config"
	"basegate/internal/poll"
)

// startReplicas starts a fleet of one model whose requests are routed by prefix.
func startReplicas(t *testing.T, n int) (*fleet.Model, []*fakeServer) {
	t.Helper()
	var servers []*fakeServer
	var urls []string
	for range n {
		s := newServer(t, 100)
		servers, urls = append(servers, s), append(urls, s.URL)
	}
	c := modelConfig(t, "m", urls...)
	c.Balance = config.BalancePrefix
	return getModel(t, startFleet(t, c), "m"), servers
}

// text returns a text of its own for each name.
func text(name any, length int) string {
	return strings.Repeat(fmt.Sprintf("%v of many. ", name), length/8)[:length]
}

// lease leases the backend for a prompt.
func lease(t *testing.T, m *fleet.Model, prompt string) *fleet.Lease {
	t.Helper()
	l, err := m.Acquire(nil, fleet.Caller{}, m.Prefix(nil, []byte(prompt)))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// place returns the backend of a prompt when nothing is in flight.
func place(t *testing.T, m *fleet.Model, prompt string) string {
	t.Helper()
	l := lease(t, m, prompt)
	defer l.Release()
	return l.Name
}

func TestGrowingConversationStaysAtItsBackend(t *testing.T) {
	m, _ := startReplicas(t, 4)
	for i := range 50 {
		prompt := text(i, 100)
		first := place(t, m, prompt)
		for turn := range 20 {
			prompt += text(fmt.Sprint(i, turn), 30*(turn+1))
			if got := place(t, m, prompt); got != first {
				t.Fatalf("conversation %d moved from %s to %s at turn %d, of %d bytes", i, first, got, turn, len(prompt))
			}
		}
	}
}

func TestPromptsWithACommonBeginningGoToOneBackendAndOthersSpread(t *testing.T) {
	m, _ := startReplicas(t, 4)
	share := map[string]int{}
	for i := range 100 {
		examples := text(i, 5000+37*i)
		first := place(t, m, examples+"What is 1?")
		share[first]++
		for q := range 20 {
			if got := place(t, m, examples+text(q, 200)); got != first {
				t.Fatalf("question %d of prompt %d went to %s, the others to %s", q, i, got, first)
			}
		}
	}
	for _, b := range m.Backends() {
		if share[b.Name] < 10 {
			t.Errorf("of 100 prompts %v went to the backends, want at least 10 to each", share)
		}
	}
}

func TestShortCommonBeginningDoesNotBind(t *testing.T) {
	m, _ := startReplicas(t, 4)
	seen := map[string]bool{}
	for i := range 100 {
		seen[place(t, m, text("a common instruction", 500)+text(i, 4000))] = true
	}
	if len(seen) != 4 {
		t.Errorf("prompts that share an eighth of their bytes went to %v, want all four backends", seen)
	}
}

// startSizedReplicas starts replicas whose prefix caches have room for so many tokens, in processes that report when they started.
func startSizedReplicas(t *testing.T, n, tokens int) (*fleet.Model, []*fakeServer) {
	t.Helper()
	var servers []*fakeServer
	var urls []string
	for range n {
		s := newServer(t, 100)
		s.metrics.Store(cacheMetrics(1, tokens))
		servers, urls = append(servers, s), append(urls, s.URL)
	}
	c := modelConfig(t, "m", urls...)
	c.Balance = config.BalancePrefix
	return getModel(t, startFleet(t, c), "m"), servers
}

// cacheMetrics returns the metrics of a server.
func cacheMetrics(started, tokens int) string {
	return fmt.Sprintf(`process_start_time_seconds %d
vllm:cache_config_info{_block_size_resolved="True",block_size="16",enable_prefix_caching="True",engine="0",hash_block_size="None",num_gpu_blocks="%d"} 1.0
`, started, tokens/16)
}

// awaitState waits until a replica has a state.
func awaitState(t *testing.T, b *fleet.Backend, want fleet.State) {
	t.Helper()
	poll.Until(t, fmt.Sprint("the backend is ", want), func() bool {
		now, _ := b.State()
		return now == want
	})
}

// The cache of a server that was lost is empty if it comes back as another process, and as it was otherwise.
func TestLostReplicaMovesOnlyItsOwnShare(t *testing.T) {
	for name, restarts := range map[string]bool{"it restarts": true, "it was only unreachable": false} {
		t.Run(name, func(t *testing.T) {
			m, servers := startSizedReplicas(t, 4, 1<<20)
			lost := m.Backends()[2]
			const prompts = 1000
			places := func(from, to int) (all [prompts]string) {
				for i := from; i < to; i++ {
					all[i] = place(t, m, text(i, 300))
				}
				return all
			}
			before := places(0, prompts)
			servers[2].unhealthy.Store(true)
			awaitState(t, lost, fleet.Unreachable)
			during := places(0, prompts/2)
			if restarts {
				servers[2].metrics.Store(cacheMetrics(2, 1<<20))
			}
			servers[2].unhealthy.Store(false)
			awaitState(t, lost, fleet.Ready)
			moved, back, own := map[string]int{}, 0, 0
			for i := range prompts / 2 {
				switch {
				case during[i] == lost.Name:
					t.Errorf("prompt %d went to the lost backend", i)
				case before[i] != lost.Name && during[i] != before[i]:
					t.Errorf("prompt %d moved from %s to %s although its backend was there", i, before[i], during[i])
				case before[i] == lost.Name:
					moved[during[i]]++
				}
			}
			if len(moved) != 3 {
				t.Errorf("the lost backend's prompts moved to %v, want them at all three others", moved)
			}
			after := places(0, prompts)
			for i := range prompts {
				switch {
				case before[i] != lost.Name && after[i] != before[i]:
					t.Errorf("prompt %d moved from %s to %s when a backend came back", i, before[i], after[i])
				case restarts && i < prompts/2 && after[i] == lost.Name:
					t.Errorf("prompt %d, which %s has cached, went to the empty backend", i, during[i])
				case before[i] == lost.Name && i >= prompts/2:
					if own++; after[i] == lost.Name {
						back++
					}
				}
			}
			if !restarts && back != own || own < prompts/10 {
				t.Errorf("%d of %d prompts that the lost backend had cached went there", back, own)
			}
			share := 0
			for i := range prompts {
				if place(t, m, text(prompts+i, 300)) == lost.Name {
					share++
				}
			}
			if share < prompts/8 {
				t.Errorf("%d of %d new prompts went to the backend that came back, want a fourth or more", share, prompts)
			}
		})
	}
}

// What a cache has evicted by its size has no pull, and new prompts go where what was used the longest ago is evicted.
func TestEvictedPrefixHasNoPull(t *testing.T) {
	m, _ := startSizedReplicas(t, 2, 1600) // 16 prompts each, of 100 tokens
	answer := func(i int) string {
		l := lease(t, m, text(i, 400))
		defer l.Release()
		l.RecordUsage(fleet.Usage{Prompt: 100})
		return l.Name
	}
	at := map[string][]int{}
	for i := range 28 {
		b := answer(i)
		at[b] = append(at[b], i)
	}
	for b, prompts := range at {
		if len(prompts) != 14 {
			t.Fatalf("%s has %d of 28 prompts", b, len(prompts))
		}
		for _, i := range prompts {
			if got := answer(i); got != b {
				t.Errorf("prompt %d is cached at %s and went to %s", i, b, got)
			}
		}
	}
	number := 1000
	hold := func() *fleet.Lease { // a backend has a request in flight
		number++
		answer(number)
		return lease(t, m, text(number, 400))
	}
	busy := hold()
	for _, i := range at[busy.Name][5:] {
		if got := answer(i); got != busy.Name {
			t.Errorf("prompt %d is cached at %s, which has a request in flight, and went to %s", i, busy.Name, got)
		}
	}
	busy.Release()
	for range 100 {
		number++
		answer(number)
	}
	busy = hold()
	defer busy.Release()
	for _, i := range at[busy.Name] {
		if got := answer(i); got == busy.Name {
			t.Errorf("prompt %d went to %s, which has evicted it and has a request in flight", i, got)
		}
	}
}

func TestBackendOverTheMeanLoadIsPassedOver(t *testing.T) {
	m, _ := startReplicas(t, 4)
	prompt := text("the same", 3000)
	for n := int64(1); n <= 100; n++ {
		defer lease(t, m, prompt).Release()
		most := max((125*n+399)/400, n/4+3) // 1.25 of the mean, or three more than it
		for _, b := range m.Backends() {
			if b.InFlight() > most {
				t.Fatalf("%s has %d of %d requests in flight, want at most %d", b.Name, b.InFlight(), n, most)
			}
		}
	}
}

func TestOpenBreakerComesBeforeThePrefix(t *testing.T) {
	m, _ := startReplicas(t, 2)
	prompt := text("the same", 300)
	first := place(t, m, prompt)
	for range settings.Breaker.ConsecutiveFailures {
		l := lease(t, m, prompt)
		l.Report(breaker.ServerError, false)
		l.Release()
	}
	for range 10 {
		l := lease(t, m, prompt)
		defer l.Release()
		if l.Name == first {
			t.Fatalf("got %s, whose breaker is open", first)
		}
	}
}

func TestPrefixIsKnownOnlyWhereItMatters(t *testing.T) {
	m, _ := startReplicas(t, 2)
	single, _ := startReplicas(t, 1)
	first, second := newServer(t, 100), newServer(t, 100)
	even := modelConfig(t, "m", first.URL, second.URL)
	even.Balance = config.BalanceLeastInFlight
	long := []byte(text("x", 1000))
	for name, got := range map[string]fleet.Prefix{
		"a prompt shorter than a block": m.Prefix(nil, []byte("Once upon a time")),
		"one backend":                   single.Prefix(nil, long),
		"least_inflight":                getModel(t, startFleet(t, even), "m").Prefix(nil, long),
	} {
		if got.Known() {
			t.Errorf("%s: got a preference, want none", name)
		}
	}
	if first, again := m.Prefix(nil, long), m.Prefix(nil, long); !first.Known() || !reflect.DeepEqual(again, first) {
		t.Error("a long prompt has no prefix, or two")
	}
	for name, key := range map[string]fleet.Prefix{
		"one backend": single.KeyPrefix(nil, "k", 1), "least_inflight": getModel(t, startFleet(t, even), "m").KeyPrefix(nil, "k", 1),
	} {
		if key.Known() {
			t.Errorf("%s: a key has a preference", name)
		}
	}
	if first, again := m.KeyPrefix(nil, "k", 9), m.KeyPrefix(nil, "k", 9); !first.Known() || !reflect.DeepEqual(again, first) {
		t.Error("a key has no lasting preference")
	}
	block := long[:64]
	if reflect.DeepEqual(m.KeyPrefix([]byte(`"a"`), "k", 9), m.KeyPrefix([]byte(`"b"`), "k", 9)) ||
		reflect.DeepEqual(m.KeyPrefix(nil, string(block), len(block)), m.Prefix(nil, block)) {
		t.Error("a key is the same with other salts, or as a prompt")
	}
	if reflect.DeepEqual(m.Prefix([]byte(`"a"`), long), m.Prefix([]byte(`"b"`), long)) {
		t.Error("prompts of two salts have one prefix")
	}
}

func TestPlaceOfALineMovesToItsPrefix(t *testing.T) {
	m, _ := startReplicas(t, 4)
	prompt := text("lines", 3000)
	prefix := m.Prefix(nil, []byte(prompt))
	want := place(t, m, prompt)
	if p, err := m.AcquirePlace(fleet.Caller{}, 100); err == nil { // has the queues read, which may be done already
		p.Release()
	}
	for _, b := range m.Backends() {
		poll.Until(t, "the queue has been read", b.QueueRead)
	}
	take := func() *fleet.Place {
		p, err := m.AcquirePlace(fleet.Caller{}, 100)
		if err != nil {
			t.Fatal(err)
		}
		p.Prefer(prefix, fleet.Caller{})
		return p
	}
	for range 10 {
		p := take()
		if p.Backend.Name != want {
			t.Errorf("a line runs at %s, live requests with its prefix at %s", p.Backend.Name, want)
		}
		p.Release()
	}
	for n := int64(1); n <= 40; n++ {
		p := take()
		defer p.Release()
		sum := int64(0)
		for _, b := range m.Backends() {
			sum += b.BatchLines()
			if most := max((125*n+399)/400, n/4+3); b.BatchLines() > most {
				t.Fatalf("%s has %d of %d lines, want at most %d", b.Name, b.BatchLines(), n, most)
			}
		}
		if sum != n {
			t.Fatalf("%d places are taken for %d lines", sum, n)
		}
	}
	p := take()
	defer p.Release()
	last := m.Backends()[3]
	p.Prefer(fleet.Prefix{}, fleet.Caller{Filter: func(b *fleet.Backend) bool { return b == last }})
	if p.Backend != last {
		t.Errorf("the place is at %s, which does not suit the line", p.Backend.Name)
	}
}

// BenchmarkPrefix measures the choice of a backend, of four, for prompts of so many bytes that one of them has cached.
func BenchmarkPrefix(b *testing.B) {
	var backends []config.Backend
	for i := range 4 {
		backends = append(backends, config.Backend{Name: fmt.Sprint(i), URL: &url.URL{Scheme: "http", Host: "127.0.0.1:1"}})
	}
	for _, size := range []int{1 << 10, 10 << 10, 100 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			f := fleet.New([]config.Model{{ID: "m", Balance: config.BalancePrefix, Backends: backends}}, settings, nil, nil, zap.NewNop())
			m, _ := f.Model("m")
			prompt := []byte(text("x", size))
			b.ReportAllocs()
			for b.Loop() {
				l, err := m.Acquire(nil, fleet.Caller{}, m.Prefix(nil, prompt))
				if err != nil {
					b.Fatal(err)
				}
				l.Release()
			}
		})
	}
}
