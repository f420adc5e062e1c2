package cluster

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"basegate/budget"
	"basegate/budget/quota"
)

var (
	schedules = flag.Int("schedules", 300, "schedules that TestSimulation runs")
	oneSeed   = flag.Uint64("seed", 0, "the only schedule that TestSimulation runs, with a trace")
)

// simulation runs gateways and their clients on a simDB, one event after the other, as a seed chooses.
type simulation struct {
	t         *testing.T
	db        *simDB
	rand      *rand.Rand
	processes []*simProcess // the latest of each name
	killed    []*simProcess
	clients   []*simClient
	requests  int  // that begin
	rate      int  // of faults, in thousandths of events
	draining  bool // no faults, and no new requests
	verbose   bool
	hash      io.Writer
	sum       func() uint64
}

const (
	clientReserves = "reserves"
	clientCounts   = "counts its prompt"
	clientRuns     = "runs"
	clientEnds     = "ends"
	clientOver     = "over"
)

// simClient is a request.
type simClient struct {
	id, key string
	process *simProcess
	line    bool
	slot    bool // it costs no tokens
	prompt  int64
	counted chan struct{} // closed when the prompt has been counted
	cancel  context.CancelFunc
	state   string
	r       budget.Reservation
	outcome budget.Outcome
	charged bool // Settle has returned nil
}

// simAccounts are the accounts with their keys.
var simAccounts = map[string]string{"a": "a", "b": "b", "a1": "a", "a2": "a", "a3": "a", "b1": "b"}

// simParents are the keys that others have made.
var simParents = map[string]string{"a3": "a1"}

var simOwners = []string{"a", "b", "a1", "a2", "a3", "b1"}

// simulate runs the schedule of a seed.
func simulate(t *testing.T, seed uint64, broken mutation, verbose bool) (s *simulation) {
	t.Helper()
	defer func(heads int) { defaultHeads = heads }(defaultHeads)
	defaultHeads = 1
	synctest.Test(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(seed, 0))
		h := fnv.New64a()
		s = &simulation{t: t, db: newSimDB(r), rand: r, verbose: verbose, hash: h, sum: h.Sum64}
		s.db.broken, s.db.trace = broken, s.trace
		s.run()
	})
	return s
}

func (s *simulation) trace(format string, args ...any) {
	fmt.Fprintf(s.hash, format, args...)
	if s.verbose {
		s.t.Logf("%12s "+format, append([]any{time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC))}, args...)...)
	}
}

func (s *simulation) chance(thousandths int) bool { return s.rand.IntN(1000) < thousandths }

func pick[T any](s *simulation, from []T) T { return from[s.rand.IntN(len(from))] }

func (s *simulation) run() {
	s.rate = pick(s, []int{5, 20, 60, 120})
	s.requests = 6 + s.rand.IntN(20)
	s.db.offset = time.Duration(s.rand.IntN(2))*30*24*time.Hour + time.Duration(s.rand.IntN(86_000))*time.Second
	for _, id := range simOwners {
		o := &simOwner{ownerRow: *s.newOwner(id)}
		o.set(func(n *budget.Numbers) { n.Day = s.db.today() })
		o.Version = s.db.nextVersion()
		s.db.owners[id] = o
	}
	for n := range 3 {
		s.start(fmt.Sprint("gateway", n))
	}
	for range 150 + s.rand.IntN(450) {
		if s.step(); s.db.problem != "" {
			break
		}
	}
	s.end()
}

// newOwner returns an owner with caps and slots.
func (s *simulation) newOwner(id string) *ownerRow {
	limit := func(most int64) quota.Cap {
		if s.chance(500) {
			return quota.Unbounded()
		}
		return quota.Limit(1 + s.rand.Int64N(most))
	}
	o := &ownerRow{ID: id, Account: simAccounts[id], Parent: simParents[id], Enabled: s.chance(970), Slots: 1 + s.rand.IntN(3)}
	for id, most := range [quota.Count]int64{300, 100, 200, 200, 1000, 800, 800} {
		o.Caps[id] = limit(most)
	}
	return o
}

func (s *simulation) start(name string) {
	p := &simProcess{db: s.db, name: name}
	p.ledger = newLedger(p, zap.NewNop(), Settings{
		Name: name, Version: "1", Lanes: 2, Beat: 211 * time.Millisecond, Dead: 1500 * time.Millisecond, AdmitTimeout: 2 * time.Second,
		CutOff: 5 * time.Second, NameTaken: func() {
			s.db.mu.Lock()
			defer s.db.mu.Unlock()
			p.taken = true
		},
	})
	if at := slices.IndexFunc(s.processes, func(other *simProcess) bool { return other.name == name }); at >= 0 {
		s.killed = append(s.killed, s.processes[at])
		s.processes[at] = p
	} else {
		s.processes = append(s.processes, p)
	}
	ctx, cancel := context.WithCancel(s.t.Context())
	p.kill = cancel
	s.trace("%s starts", name)
	go func() {
		err := p.ledger.Start(ctx)
		s.db.mu.Lock()
		defer s.db.mu.Unlock()
		p.started, p.dead = err == nil, p.dead || err != nil
		if p.dead && err == nil {
			p.ledger.stop()
		}
	}()
}

// die ends a process as kill -9 does. The lock is held.
func (s *simulation) die(p *simProcess) {
	s.trace("%s is killed", p.name)
	p.dead = true
	s.resume(p)
	for _, w := range s.db.wakes {
		if w.process == p {
			close(w.done)
		}
	}
	s.db.wakes = slices.DeleteFunc(s.db.wakes, func(w *simWake) bool { return w.process == p })
	p.kill()
	for _, c := range s.clients {
		if c.process == p {
			c.cancel()
		}
	}
	if p.started {
		p.ledger.closed.Store(true)
		p.ledger.stop()
		go func() {
			p.ledger.background.Wait()
			for _, l := range p.ledger.epoch.Load().lanes {
				l.fail(budget.ErrClosed)
			}
		}()
	}
}

func (*simulation) resume(p *simProcess) { p.stopped, p.cut = false, false }

// step makes one event happen.
func (s *simulation) step() {
	synctest.Wait()
	s.db.mu.Lock()
	pause := s.event()
	s.checkClients()
	s.db.mu.Unlock()
	s.sleep(pause)
}

// sleep lets a number of milliseconds pass. Each event has a time of its own, also within a millisecond, so that no timer of one fires
// together with that of another one: their order would be Go's choice.
func (*simulation) sleep(pause time.Duration) { time.Sleep(pause + 7*time.Nanosecond) }

// event chooses what happens. The lock is held.
func (s *simulation) event() (pause time.Duration) {
	s.serve()
	switch n := s.rand.IntN(1000); {
	case n < s.rate:
		s.fault()
	case n < 650:
		s.advance()
	case n < 830:
		s.client()
	default:
		pause = pick(s, []time.Duration{
			time.Millisecond, 2 * time.Millisecond, 13 * time.Millisecond, 61 * time.Millisecond, 173 * time.Millisecond,
		})
		if s.chance(60) {
			pause *= 9
		}
	}
	return pause
}

// serve does what happens by itself.
func (s *simulation) serve() {
	db := s.db
	for _, p := range s.processes {
		if p.taken && !p.dead { // a late call of the process before it has begun an epoch
			s.die(p)
		}
	}
	s.thin()
	slices.SortStableFunc(db.arrived, func(a, b *simCall) int { return cmp.Compare(a.name, b.name) })
	db.arrived = slices.DeleteFunc(db.arrived, func(c *simCall) bool {
		if p := c.session.process; p.stopped && !p.dead {
			return false
		}
		if !c.unheard {
			s.send(c)
		}
		return true
	})
	slices.SortStableFunc(db.sessions, func(a, b *simSession) int { return cmp.Compare(a.name, b.name) })
	slices.SortStableFunc(db.wakes, func(a, b *simWake) int { return cmp.Compare(a.name, b.name) })
	for _, c := range db.calls {
		limit := 2 * time.Second
		if c.session.pooled {
			limit = 30 * time.Second
		}
		switch {
		case c.finished:
		case !c.waits.IsZero() && time.Since(c.waits) > c.limit:
			s.trace("%s waits for too long", c.name)
			db.finish(c, refusal(lockNotAvailable))
		case !c.begun.IsZero() && time.Since(c.begun) > limit:
			s.trace("%s is executed for too long", c.name)
			db.finish(c, refusal(queryCanceled))
		}
	}
	for _, session := range slices.Clone(db.sessions) {
		limit := 5 * time.Second
		if session.lane {
			limit = 2 * time.Second
		}
		idle := session.tx != nil && session.call == nil && time.Since(session.tx.idle) > limit
		if idle || session.left && session.call == nil && (s.draining || s.chance(200)) {
			db.end(session)
		}
	}
}

// thin leaves each ended epoch one request at most that waits for the next one. The order in which several go on then is Go's choice.
func (s *simulation) thin() {
	for _, p := range s.processes {
		e := p.ledger.epoch.Load()
		if e == nil || p.dead || errors.Is(e.ended(), budget.ErrClosed) {
			continue
		}
		waits := 0
		for _, c := range s.clients {
			if c.process != p || c.state != clientReserves {
				continue
			}
			if waits++; waits > 1 {
				c.cancel()
			}
		}
	}
}

// send makes a call arrive at the database.
func (s *simulation) send(c *simCall) {
	db := s.db
	if !c.session.begun {
		c.session.begun = true
		db.sessions = append(db.sessions, c.session)
	}
	db.calls = append(db.calls, c)
	c.session.call = c
	if c.session.ended {
		db.finish(c, errConnection)
	}
}

// advance executes some of a call, or delivers a reply or a notification, if there is one.
func (s *simulation) advance() bool {
	db := s.db
	var notes []*simSession
	for _, session := range db.sessions {
		if len(session.inbox) > 0 && session.awaits {
			notes = append(notes, session)
		}
	}
	calls := slices.DeleteFunc(slices.Clone(db.calls), func(c *simCall) bool {
		return !c.finished && (!c.waits.IsZero() && c.released == db.released || c.arrives.After(time.Now()))
	})
	var wakes []*simWake
	for _, w := range db.wakes {
		if !w.process.stopped {
			wakes = append(wakes, w)
		}
	}
	n := len(calls) + len(notes) + len(wakes)
	if n == 0 {
		return false
	}
	switch at := s.rand.IntN(n); {
	case at < len(calls):
		s.execute(calls[at])
	case at < len(calls)+len(notes):
		session := notes[at-len(calls)]
		s.trace("a notification for %d: %q", session.listens, session.inbox[0])
		session.notes <- session.inbox[0]
		session.inbox = session.inbox[1:]
	default:
		w := wakes[at-len(calls)-len(notes)]
		s.trace("%s goes on", w.name)
		close(w.done)
		db.wakes = slices.DeleteFunc(db.wakes, func(other *simWake) bool { return other == w })
	}
	return true
}

func (s *simulation) execute(c *simCall) {
	db := s.db
	if !c.finished && c.fate == undecided {
		c.fate = delivered
		if !s.draining && c.session.process != nil && s.chance(2*s.rate) && s.mishap(c) {
			return
		}
	}
	if c.partial && c.executed() && !c.finished { // the rest does not come
		db.end(c.session)
	}
	if !c.finished {
		db.advance(c, s.draining || s.chance(600))
		s.trace("%s: %d of %d statements, waits %t, ended %t: %v", c.name, len(c.rows), len(c.statements), !c.waits.IsZero(), c.finished, c.err)
		if c.partial && c.executed() && !c.finished {
			c.arrives = s.later()
		}
		if !c.finished || !s.draining && s.chance(200) {
			return
		}
	}
	db.calls = slices.DeleteFunc(db.calls, func(other *simCall) bool { return other == c })
	if c.unheard {
		db.end(c.session)
		return
	}
	if p := c.session.process; p != nil && p.cut {
		c.fate = replyLost
	}
	close(c.done)
}

// mishap chooses what happens to a call, and reports whether that is all for now.
func (s *simulation) mishap(c *simCall) bool {
	db := s.db
	switch s.rand.IntN(5) {
	case 0:
		s.trace("%s does not arrive", c.name)
		db.end(c.session)
		return true
	case 1:
		s.disown(c)
		if s.chance(500) {
			n := 1 + s.rand.IntN(len(c.statements))
			s.trace("%d of %d statements of %s arrive", n, len(c.statements), c.name)
			c.statements, c.partial = c.statements[:n], true
			return true
		}
		s.trace("%s arrives late", c.name)
		c.arrives = s.later()
		return true
	case 2, 3:
		s.trace("the reply to %s is lost", c.name)
		c.fate = replyLost
	case 4:
		if len(c.statements) > 1 || !c.session.lane || c.session.tx != nil {
			return false
		}
		s.trace("%s is doubled", c.name)
		session := c.session.process.open().simSession
		session.name, session.left = c.name+" again", true
		s.send(&simCall{name: session.name, session: session, statements: c.statements, unheard: true, fate: delivered, arrives: s.later()})
	}
	return false
}

// later returns when something arrives that is late.
func (s *simulation) later() time.Time {
	return time.Now().Add(pick(s, []time.Duration{0, 30 * time.Millisecond, 300 * time.Millisecond, 3 * time.Second, 9 * time.Second}))
}

// disown tells the client that the connection is lost, while the call is on its way.
func (s *simulation) disown(c *simCall) {
	if !c.unheard {
		c.fate, c.unheard, c.session.left = replyLost, true, true
		s.db.wakes = append(s.db.wakes, &simWake{c.session.process, c.name + " has lost its connection", c.done})
	}
}

// fault makes something fail, or changes something that gateways do not expect.
func (s *simulation) fault() {
	db := s.db
	p := pick(s, s.processes)
	switch n := s.rand.IntN(16); {
	case n < 3 && len(db.sessions) > 0:
		session := pick(s, db.sessions)
		s.trace("a connection ends")
		db.end(session)
	case n < 5 && !p.stopped && !p.dead:
		s.trace("%s stops", p.name)
		p.stopped = true
	case n < 7:
		if p.stopped || p.cut {
			s.trace("%s goes on", p.name)
		}
		s.resume(p)
	case n < 8 && !p.dead && !p.cut:
		s.trace("%s is cut off", p.name)
		p.cut = true
		for _, c := range slices.Clone(db.calls) {
			if c.session.process == p {
				s.disown(c)
			}
		}
	case n < 9 && !p.dead:
		s.die(p)
	case n < 11 && p.dead:
		s.start(p.name)
	case n < 12 && !p.dead && p.started && !p.closing && !p.stopped:
		s.trace("%s is closed", p.name)
		s.close(p)
	case n < 13:
		now := db.now()
		db.offset += now.Truncate(24*time.Hour).Add(24*time.Hour).Sub(now) - 31*time.Millisecond
		s.trace("midnight comes")
	case n < 14:
		s.trace("the database restarts")
		for _, session := range slices.Clone(db.sessions) {
			db.end(session)
		}
	default:
		s.change(pick(s, simOwners))
	}
}

// change has somebody change the caps of an owner.
func (s *simulation) change(id string) {
	o := &simOwner{ownerRow: *s.newOwner(id)}
	name := "caps of " + id
	session := &simSession{name: name, over: make(chan struct{}), left: true}
	s.send(&simCall{name: name, session: session, statements: []simStatement{{"owners", []any{o}}}, unheard: true, fate: delivered})
}

func (s *simulation) close(p *simProcess) {
	p.closing, p.cut = true, false
	go func() {
		p.ledger.Close()
		s.db.mu.Lock()
		defer s.db.mu.Unlock()
		p.dead = true
	}()
}

// client makes a client do something.
func (s *simulation) client() {
	var able []*simClient
	for _, c := range s.clients {
		if c.process.dead {
			c.state = clientOver
		}
		if c.state != clientOver && !c.process.stopped {
			able = append(able, c)
		}
	}
	if p := pick(s, s.processes); len(s.clients) < s.requests && s.chance(400) || len(able) == 0 {
		if len(s.clients) < s.requests && p.started && !p.dead && !p.stopped {
			s.request(p)
		}
		return
	}
	switch c := pick(s, able); c.state {
	case clientReserves, clientEnds:
		if s.chance(80) {
			s.trace("%s leaves", c.id)
			c.cancel()
		}
	case clientCounts:
		if s.chance(80) {
			s.trace("%s leaves", c.id)
			c.cancel()
			return
		}
		s.count(c)
	case clientRuns:
		prompt, completion := c.r.Reserved()
		switch {
		case s.chance(500):
			c.r.SetPromptTokens(prompt)
			c.r.SetProgress(s.rand.Int64N(completion + 1))
		case s.chance(150):
			s.trace("%s is released", c.id)
			c.r.Release()
			c.state = clientOver
		default:
			s.settle(c)
		}
	}
}

func (s *simulation) request(p *simProcess) {
	ctx, cancel := context.WithCancel(s.t.Context())
	c := &simClient{
		id: fmt.Sprint("request", len(s.clients)), key: pick(s, []string{"a1", "a1", "a2", "a3", "a3", "b1"}), process: p, cancel: cancel,
		state: clientReserves, line: s.chance(200),
	}
	s.clients = append(s.clients, c)
	c.slot = !c.line && s.chance(100)
	payer := budget.Payer{Key: c.key, Account: simAccounts[c.key]}
	r := budget.Request{ID: c.id, Model: "m", Endpoint: "/v1/completions", Workload: "interactive", Time: time.Now()}
	c.prompt = 1 + s.rand.Int64N(10)
	d := budget.Demand{
		PromptTokens: c.prompt, Exact: true, Candidates: 1 + s.rand.Int64N(2), MaxTokens: 1 + s.rand.Int64N(20), MinTokens: s.rand.Int64N(3),
	}
	if s.chance(300) {
		d.PromptTokens, d.Exact = 3*c.prompt, false
	}
	reserve := p.ledger.Reserve
	switch {
	case c.slot:
		d = budget.Demand{SlotOnly: true}
	case c.line:
		r.Batch, reserve = "batch", p.ledger.TryReserve
	}
	s.trace("%s of %s begins at %s, line %t: %+v", c.id, c.key, p.name, c.line, d)
	go func() {
		got, err := reserve(ctx, payer, r, d, simRequester{c})
		s.db.mu.Lock()
		defer s.db.mu.Unlock()
		if c.state = clientRuns; err != nil || c.process.dead {
			c.state = clientOver
		}
		c.r = got
	}()
}

type simRequester struct{ c *simClient }

func (r simRequester) CountPrompt(ctx context.Context) (int64, []int64, error) {
	db, counted := r.c.process.db, make(chan struct{})
	db.mu.Lock()
	r.c.state, r.c.counted = clientCounts, counted
	db.mu.Unlock()
	select {
	case <-counted:
		return r.c.prompt, nil, nil
	case <-ctx.Done():
		return 0, nil, context.Cause(ctx)
	}
}

func (simRequester) Wait(func() (int, bool)) (func(), error) { return func() {}, nil }

// count lets a request go on whose prompt is counted.
func (s *simulation) count(c *simClient) {
	s.trace("%s has counted", c.id)
	c.state = clientReserves
	close(c.counted)
}

// settle ends a request that runs.
func (s *simulation) settle(c *simClient) {
	if c.slot {
		s.trace("%s is dropped", c.id)
		c.r.Drop()
		c.state = clientOver
		return
	}
	prompt, completion := c.r.Reserved()
	c.outcome = budget.Outcome{Prompt: s.rand.Int64N(prompt + 1), Completion: s.rand.Int64N(completion + 1), Status: 200}
	if s.chance(300) {
		c.outcome.Fallback = &budget.Outcome{Prompt: prompt, Status: 503}
	}
	ctx, cancel := context.WithCancel(context.WithValue(s.t.Context(), simGoroutine{}, c.id))
	c.cancel, c.state = cancel, clientEnds
	prepared := c.line && s.chance(700)
	s.trace("%s is settled, prepared %t", c.id, prepared)
	go func() {
		err := c.write(ctx, prepared)
		s.db.mu.Lock()
		defer s.db.mu.Unlock()
		c.state, c.charged = clientOver, err == nil && !c.process.dead
	}()
}

func (c *simClient) write(ctx context.Context, prepared bool) error {
	if !prepared {
		return c.r.Settle(ctx, c.outcome)
	}
	p := c.r.Prepare(c.outcome).(*deferredSettlement)
	tx, err := c.process.Pool().Begin(ctx)
	if err == nil {
		query := func(ctx context.Context, text string, args []any, into ...any) error {
			return tx.QueryRow(ctx, text, args...).Scan(into...)
		}
		if err = p.reservation.lane.epoch.write(ctx, query, []*deferredSettlement{p}); err == nil {
			err = tx.Commit(ctx)
		} else {
			_ = tx.Rollback(ctx)
		}
	}
	if err != nil {
		p.Abandon()
		return err
	}
	p.Commit()
	return nil
}

// end lets everything end without faults.
func (s *simulation) end() {
	s.draining = true
	s.db.mu.Lock()
	s.trace("no more faults")
	for _, p := range s.processes {
		s.resume(p)
	}
	s.db.mu.Unlock()
	s.drain(40*time.Second, func() bool {
		if s.db.problem != "" {
			return true
		}
		if !slices.ContainsFunc(s.processes, func(p *simProcess) bool { return !p.dead && !p.closing }) {
			s.start(s.processes[0].name) // it may have failed to start
		}
		return s.idle()
	})
	synctest.Wait()
	s.db.mu.Lock()
	s.checkEnd()
	s.db.mu.Unlock()
	s.drain(time.Minute, func() bool {
		for _, p := range s.processes {
			if p.started && !p.closing && !p.dead {
				s.close(p)
			}
		}
		return !slices.ContainsFunc(s.processes, func(p *simProcess) bool { return !p.dead })
	})
	s.db.mu.Lock()
	s.checkEnd()
	for _, c := range s.clients {
		c.cancel()
	}
	for _, p := range slices.Concat(s.processes, s.killed) {
		p.kill()
	}
	s.db.mu.Unlock()
	time.Sleep(2 * closeTimeout) // Close of one that was killed may have to wait for nothing
	synctest.Wait()
}

// idle reports whether nothing is left in the database or on its way to it, and nobody waits for anything.
func (s *simulation) idle() bool {
	return len(s.db.inflight)+len(s.db.waiters)+len(s.db.decided)+len(s.db.calls)+len(s.db.arrived) == 0 &&
		!slices.ContainsFunc(s.clients, func(c *simClient) bool { return c.state != clientOver })
}

// maxSteps bounds the end of a schedule, which takes some hundred steps.
const maxSteps = 20_000

// drain makes everything happen in turn, until done reports that all is over.
func (s *simulation) drain(limit time.Duration, done func() bool) {
	steps := 0
	for began := time.Now(); time.Since(began) < limit && steps < maxSteps; steps++ {
		synctest.Wait()
		s.db.mu.Lock()
		s.serve()
		over := false
		active := s.advance() || s.endClient()
		if !active || s.db.problem != "" {
			over = done()
		}
		s.checkClients()
		s.db.mu.Unlock()
		if over {
			return
		}
		pause := time.Duration(0)
		if !active || steps%100 == 99 { // some calls might be sent again for ever
			pause = 29 * time.Millisecond
		}
		s.sleep(pause)
	}
}

// endClient ends a request that runs, if there is one.
func (s *simulation) endClient() bool {
	for _, c := range s.clients {
		switch {
		case c.process.dead:
			c.state = clientOver
		case c.state == clientRuns:
			s.settle(c)
			return true
		case c.state == clientCounts:
			s.count(c)
			return true
		}
	}
	return false
}

// Three gateways on a database whose replies are lost, doubled and late keep the caps and slots, and settle each request once.
func TestSimulation(t *testing.T) {
	if *oneSeed > 0 {
		if s := simulate(t, *oneSeed, sound, true); s.db.problem != "" {
			t.Error(s.db.problem)
		}
		return
	}
	seen := map[string]int{}
	for seed := uint64(1); seed <= uint64(*schedules); seed++ {
		s := simulate(t, seed, sound, false)
		if s.db.problem != "" {
			t.Errorf("%s\ngo test ./budget/cluster -run '^TestSimulation$' -v -seed %d", s.db.problem, seed)
		}
		for what, n := range s.db.seen {
			seen[what] += n
		}
	}
	t.Log(seen)
	for _, what := range []string{
		"granted", "granted after a wait", "waits", "decided for others", "settled", "interrupted", "reaped", statusConflict, statusDone, statusFenced, "lost",
		lockNotAvailable, "connection lost",
	} {
		if seen[what] < *schedules/100 {
			t.Errorf("the schedules have led to %q %d times only", what, seen[what])
		}
	}
}

// raceEnabled reports whether the race detector is on. With it Go starts goroutines in a random order, and a seed is not one schedule.
var raceEnabled bool

// A seed is one schedule.
func TestSimulationRepeatsASeed(t *testing.T) {
	if raceEnabled {
		t.Skip("make schedules runs it without the race detector")
	}
	for seed := uint64(1); seed <= 50; seed++ {
		if first, again := simulate(t, seed, sound, false), simulate(t, seed, sound, false); first.sum() != again.sum() {
			t.Errorf("two runs of seed %d differ", seed)
		}
	}
}

// mutantSchedules bounds the search for a schedule that finds a mutant.
const mutantSchedules = 3000

// Schedules find a database that does not obey a rule.
func TestSimulationFindsMutants(t *testing.T) {
	if raceEnabled {
		t.Skip("make schedules runs it without the race detector")
	}
	for name, broken := range map[string]mutation{
		"rows are written whatever their versions":       ignoresVersions,
		"an ended epoch is not refused":                  ignoresFence,
		"a repeated sequence is executed":                repeatsSequence,
		"an old sequence is executed":                    takesOldSequence,
		"a repeated sequence does not return the reply":  forgetsReply,
		"a request is settled twice":                     settlesTwice,
		"the last to wait comes first":                   ordersByTicketBackwards,
		"accounts are not locked":                        locksNothing,
		"rows are read before their lock is held":        readsBeforeLock,
		"the end of an epoch does not raise it":          keepsEpochOfReaped,
		"what an epoch has left is forgotten":            forgetsWhatIsLeft,
		"a change of caps evaluates nobody":              forgetsRegrant,
		"decisions are forgotten":                        forgetsDecisions,
		"a transaction does not hold the gateway's lock": holdsNoGatewayLock,
		"each attempt has a sequence of its own":         sharesNoSequence,
	} {
		t.Run(name, func(t *testing.T) {
			for seed := uint64(1); seed <= mutantSchedules; seed++ {
				s := simulate(t, seed, broken, false)
				if s.db.problem == "" {
					continue
				}
				t.Logf("seed %d: %s", seed, s.db.problem)
				if again := simulate(t, seed, broken, false); again.db.problem != s.db.problem || again.sum() != s.sum() {
					t.Errorf("the seed is another schedule the second time: %q", again.db.problem)
				}
				return
			}
			t.Error("no schedule finds it")
		})
	}
}
