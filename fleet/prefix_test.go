package fleet_test

import (
	"fmt"
	"net/url"
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

func TestLostReplicaMovesOnlyItsOwnShareAndGetsItBack(t *testing.T) {
	m, servers := startReplicas(t, 4)
	await := func(state fleet.State) {
		poll.Until(t, fmt.Sprint("the backend is ", state), func() bool {
			now, _ := m.Backends()[2].State()
			return now == state
		})
	}
	const prompts = 1000
	places := func() (all [prompts]string) {
		for i := range all {
			all[i] = place(t, m, text(i, 300))
		}
		return all
	}
	before := places()
	servers[2].unhealthy.Store(true)
	await(fleet.Unreachable)
	during := places()
	servers[2].unhealthy.Store(false)
	await(fleet.Ready)
	after := places()
	moved := map[string]int{}
	for i := range before {
		switch {
		case during[i] == "b2":
			t.Errorf("prompt %d went to the lost backend", i)
		case before[i] != "b2" && during[i] != before[i]:
			t.Errorf("prompt %d moved from %s to %s although its backend was there", i, before[i], during[i])
		case before[i] == "b2":
			moved[during[i]]++
		}
		if after[i] != before[i] {
			t.Errorf("prompt %d is at %s after the backend's return, and was at %s before", i, after[i], before[i])
		}
	}
	if len(moved) != 3 {
		t.Errorf("the lost backend's prompts moved to %v, want them at all three others", moved)
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
	none := fleet.Prefix{}
	for name, got := range map[string]fleet.Prefix{
		"a prompt shorter than a block": m.Prefix(nil, []byte("Once upon a time")),
		"one backend":                   single.Prefix(nil, long),
		"least_inflight":                getModel(t, startFleet(t, even), "m").Prefix(nil, long),
	} {
		if got != none {
			t.Errorf("%s: got a preference, want none", name)
		}
	}
	if first, again := m.Prefix(nil, long), m.Prefix(nil, long); first == none || again != first {
		t.Error("a long prompt has no prefix, or two")
	}
	for name, key := range map[string]fleet.Prefix{
		"one backend": single.KeyPrefix(nil, "k"), "least_inflight": getModel(t, startFleet(t, even), "m").KeyPrefix(nil, "k"),
	} {
		if key != none {
			t.Errorf("%s: a key has a preference", name)
		}
	}
	if first, again := m.KeyPrefix(nil, "k"), m.KeyPrefix(nil, "k"); first == none || again != first {
		t.Error("a key has no lasting preference")
	}
	if m.KeyPrefix([]byte(`"a"`), "k") == m.KeyPrefix([]byte(`"b"`), "k") || m.KeyPrefix(nil, string(long)) == m.Prefix(nil, long) {
		t.Error("a key is the same with other salts, or as a prompt")
	}
	if m.Prefix([]byte(`"a"`), long) == m.Prefix([]byte(`"b"`), long) {
		t.Error("prompts of two salts have one prefix")
	}
}

func TestPlaceOfALineMovesToItsPrefix(t *testing.T) {
	m, _ := startReplicas(t, 4)
	prompt := text("lines", 3000)
	prefix := m.Prefix(nil, []byte(prompt))
	want := place(t, m, prompt)
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

func BenchmarkPrefix(b *testing.B) {
	address := &url.URL{Scheme: "http", Host: "127.0.0.1:1"}
	backends := []config.Backend{{Name: "a", URL: address}, {Name: "b", URL: address}}
	for _, size := range []int{1 << 10, 100 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			f := fleet.New([]config.Model{{ID: "m", Balance: config.BalancePrefix, Backends: backends}}, settings, nil, nil, zap.NewNop())
			m, _ := f.Model("m")
			prompt := []byte(text("x", size))
			for b.Loop() {
				m.Prefix(nil, prompt)
			}
		})
	}
}
