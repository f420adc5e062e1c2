//go:build e2e

package e2e_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"basegate/internal/poll"
	"basegate/mockvllm"
)

const (
	faultClients = 32
	// The gateway's patience with a backend is shorter than nothing may pass for.
	faultSettings = `upstream: {connect_timeout: 2s, first_byte_timeout: 3s, idle_timeout: 2s}
breaker: {consecutive_failures: 5, open_for: 500ms}`
	// A stop does not wait for long, and a machine that stands still for seconds costs nobody a connection.
	faultServer = ", drain_timeout: 1s, read_header_timeout: 1m"
	// capGrowth is what the account's cap grows by with each start of the gateway, in tokens.
	capGrowth = 1000
)

// ordeal is a gateway between two faulty networks, with all that is asked of it meanwhile.
type ordeal struct {
	t      *testing.T
	seed   uint64
	place  *site
	front  *relay    // before the gateway
	back   [2]*relay // before the backends
	mocks  [2]*upstreamLife
	lives  []*gatewayLife
	orders []order
	long   []order // with answers of more than the buffers on the way hold
	free   string  // the key without a cap
	caps   []limit
	keys   atomic.Pointer[[]string] // that clients use at present

	asked    atomic.Int64 // requests
	mu       sync.Mutex
	outcomes []outcome
}

type upstreamLife struct {
	*process
	life *life
}

type gatewayLife struct {
	*gateway
	life *life
}

// limit is a cap, and whom it binds.
type limit struct {
	meter   meter
	most    int64
	secrets []string
}

// faultSpan is how long the ordeal lasts: what BASEGATE_FAULTS says, or some seconds.
func faultSpan(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("BASEGATE_FAULTS")
	if text == "" {
		return 15 * time.Second
	}
	d, err := time.ParseDuration(text)
	must(t, err)
	return d
}

// faultSeed decides what happens, though not what it meets: BASEGATE_FAULTS_SEED, or a random one.
func faultSeed(t *testing.T) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv("BASEGATE_FAULTS_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		must(t, err)
	}
	t.Logf("BASEGATE_FAULTS_SEED=%d", seed)
	return seed
}

func newOrdeal(t *testing.T) *ordeal {
	t.Helper()
	o := &ordeal{t: t, seed: faultSeed(t)}
	mock := startMock(t, mockvllm.Options{})
	o.orders = orders(t, 400, mock)
	text, choices := strings.Repeat("It was the best of times. ", 800), int64(8)
	for _, stream := range []bool{false, true} {
		o.long = append(o.long, order{
			body:   fmt.Sprintf(`{"model":"m","prompt":%q,"max_tokens":2,"n":%d,"echo":true,"stream":%t}`, text, choices, stream),
			stream: stream, n: choices, maxTokens: 2, prompt: int64(len(encode(t, mock, text, true))),
		})
	}
	o.front = newRelay(t, o.dice("luck of the clients"))
	for i := range o.back {
		o.back[i] = newRelay(t, o.dice(fmt.Sprint("luck of backend ", i)))
		o.reviveBackend(i)
	}
	o.place = newSite(t, settings{server: faultServer, rest: faultSettings}, o.back[0].url(), o.back[1].url())
	o.free = o.place.key("free")
	o.place.run("account", "create", "bob@example.org")
	bob := limit{meter: meters[0]}
	for _, name := range []string{"one", "two"} {
		bob.secrets = append(bob.secrets, strings.TrimSpace(o.place.run("key", "create", "--account", "bob@example.org", "--name", name)))
	}
	o.caps = []limit{bob}
	o.reviveGateway()
	return o
}

// dice are the seed's, for one purpose.
func (o *ordeal) dice(purpose string) *rand.Rand {
	which := uint64(0)
	for _, c := range []byte(purpose) {
		which = which*31 + uint64(c)
	}
	return rand.New(rand.NewPCG(o.seed, which))
}

func (o *ordeal) reviveBackend(i int) {
	o.t.Helper()
	p, url := mockProcess(o.t)
	o.mocks[i] = &upstreamLife{process: p, life: &life{address: strings.TrimPrefix(url, "http://")}}
	o.back[i].aim(o.mocks[i].life)
}

func (o *ordeal) killBackend(i int) {
	o.t.Helper()
	o.mocks[i].life.end(killed)
	o.back[i].aim(nil)
	o.mocks[i].signal(syscall.SIGKILL)
	<-o.mocks[i].ended
}

// reviveGateway starts the gateway on the database that the last one has left, with a new key of a small cap, and more
// for the account that has one.
func (o *ordeal) reviveGateway() {
	o.t.Helper()
	m := meters[len(o.lives)%len(meters)]
	capped := limit{meter: m, most: m.limit / 20}
	capped.secrets = []string{strings.TrimSpace(o.place.run("key", "create", "--account", o.place.email, "--name", fmt.Sprint("capped ", len(o.lives)), m.flag, fmt.Sprint(capped.most)))}
	o.caps[0].most += capGrowth
	o.place.run("account", "set", "bob@example.org", o.caps[0].meter.flag, fmt.Sprint(o.caps[0].most))
	o.caps = append(o.caps, capped)

	g := &gatewayLife{gateway: o.place.serveTo(o.free)}
	g.life = &life{address: strings.TrimPrefix(g.url, "http://")}
	o.lives = append(o.lives, g)
	o.keys.Store(&[]string{o.free, o.free, o.free, o.free, capped.secrets[0], o.caps[0].secrets[0], o.caps[0].secrets[1]})
	o.front.aim(g.life)
}

// gateway is the one that lives.
func (o *ordeal) gateway() *gatewayLife { return o.lives[len(o.lives)-1] }

func (o *ordeal) killGateway() {
	o.t.Helper()
	g := o.gateway()
	g.life.end(killed)
	o.front.aim(nil)
	g.signal(syscall.SIGKILL)
	<-g.ended
}

// stopGateway has the gateway drain, which is not for ever, and looks that it has left nothing open.
func (o *ordeal) stopGateway() {
	o.t.Helper()
	g := o.gateway()
	g.life.end(stopped)
	g.signal(syscall.SIGTERM)
	if code := g.code(); code != 0 {
		o.t.Errorf("exit code %d", code)
	}
	o.front.aim(nil)
	rows, err := o.place.onDisk(o.t.Context())
	must(o.t, err)
	for _, row := range rows {
		if row.State == "in_flight" {
			o.t.Errorf("a stop has left %+v", row)
		}
	}
}

// strike ends one process after the other, until ctx does, and counts: the gateway is killed first, then a backend, and
// then it is as the dice say.
func (o *ordeal) strike(ctx context.Context, dice *rand.Rand) (count map[string]int) {
	o.t.Helper()
	count = map[string]int{}
	for i := 0; pause(ctx, time.Second+upTo(dice, 3*time.Second)); i++ {
		which, down := dice.IntN(6), upTo(dice, time.Second)
		if i < 2 {
			which = 3 - 3*i
		}
		switch which {
		case 0, 1:
			count["backend killed"]++
			o.killBackend(which)
			pause(ctx, down)
			o.reviveBackend(which)
			continue
		case 2:
			count["gateway stopped"]++
			o.stopGateway()
		default:
			count["gateway killed"]++
			o.killGateway()
		}
		pause(ctx, down/4)
		o.reviveGateway()
	}
	return count
}

// ask has one client after the other ask until ctx ends.
func (o *ordeal) ask(ctx context.Context, dice *rand.Rand, via *http.Client) {
	for rest := time.Duration(0); pause(ctx, upTo(dice, rest)); {
		keys := *o.keys.Load()
		some, secret := o.orders[dice.IntN(len(o.orders))], keys[dice.IntN(len(keys))]
		if dice.IntN(60) == 0 {
			some, secret = o.long[dice.IntN(len(o.long))], o.free
		}
		some.via = via
		stay := forever
		if dice.IntN(10) == 0 {
			stay = upTo(dice, 2*time.Second)
		}
		got := o.outcomeOf(some, secret, stay)
		o.note(got)
		if rest = 60 * time.Millisecond; got.kind == cutOff {
			rest = time.Second
		}
	}
}

// load has all clients ask, half of them over connections that they keep, until it is over.
func (o *ordeal) load() (over func()) {
	ctx, silence := context.WithCancel(o.t.Context())
	var clients sync.WaitGroup
	for i := range faultClients {
		dice := o.dice(fmt.Sprint("client ", i))
		clients.Go(func() {
			if i%2 == 0 {
				o.ask(ctx, dice, nil)
				return
			}
			via := &http.Client{Transport: &http.Transport{}}
			defer via.CloseIdleConnections()
			o.ask(ctx, dice, via)
		})
	}
	return func() {
		silence()
		clients.Wait()
	}
}

// storms has all the networks fail until ctx ends; over waits for that.
func (o *ordeal) storms(ctx context.Context) (over func()) {
	relays := append(o.back[:], o.front)
	counts := make([]map[string]int, len(relays))
	var storms sync.WaitGroup
	for i, r := range relays {
		storms.Go(func() { counts[i] = r.storm(ctx, o.dice(fmt.Sprint("storm ", i))) })
	}
	return func() {
		o.t.Helper()
		storms.Wait()
		all, sum := map[string]int{}, 0
		for _, count := range counts {
			for name, n := range count {
				all[name] += n
				sum += n
			}
		}
		o.t.Logf("%d faults of the networks: %v", sum, all)
	}
}

// suffer has the networks fail and the processes die while clients ask, and returns when all is well again.
func (o *ordeal) suffer(span time.Duration) {
	o.t.Helper()
	ctx, calm := context.WithTimeout(o.t.Context(), span)
	defer o.load()()
	defer o.storms(ctx)()
	defer calm()
	// The last gateway lives through the last quarter, so that there is something that it could leak.
	enough, cancel := context.WithTimeout(ctx, span*3/4)
	defer cancel()
	o.t.Logf("ends of processes: %v", o.strike(enough, o.dice("deaths")))
	<-ctx.Done()
}

// Networks on both sides of the gateway fail in every way they know, and processes are killed, under load. No client is
// left in doubt, whoever saw an answer whole finds it on the ledger once and at its price, no cap is passed, nothing
// leaks, and the log explains each failure.
func TestFaultsOnBothSidesLeaveNobodyInDoubt(t *testing.T) {
	o := newOrdeal(t)
	o.suffer(faultSpan(t))
	g := o.gateway()
	poll.Until(t, "it answers as ever", func() bool {
		some := o.orders[0]
		some.leaves = false
		got := o.outcomeOf(some, g.secret, forever)
		o.note(got)
		return got.kind == wholeAnswer || got.kind == wholeStream
	})
	g.rest()
	t.Logf("%.0f goroutines and %.0f files in the end", g.metric("go_goroutines"), g.metric("process_open_fds"))
	if lost := g.metric("basegate_ledger_lost_rows_total"); lost != 0 {
		t.Errorf("%.0f rows are lost", lost)
	}
	g.signal(syscall.SIGTERM)
	if code := g.code(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	rows, err := o.place.onDisk(t.Context())
	must(t, err)
	o.judge(rows)
}
