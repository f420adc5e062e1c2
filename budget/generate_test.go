package budget_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"basegate/budget/quota"
	"basegate/internal/ledgertest"
)

// family is a kind of case.
type family struct {
	name        string
	accounts    int
	keys        int // of each account
	children    int // of them: keys that the first one has made
	caps, slots bool
	steps       int
	back        bool // the clock is also set back
}

var families = []family{
	{name: "caps", accounts: 1, keys: 3, caps: true, steps: 80},
	{name: "caps of two accounts", accounts: 2, keys: 2, caps: true, steps: 80},
	{name: "caps of children", accounts: 1, keys: 4, children: 2, caps: true, steps: 80},
	{name: "slots", accounts: 1, keys: 2, slots: true, steps: 40},
	{name: "caps and slots", accounts: 1, keys: 3, caps: true, slots: true, steps: 80},
	{name: "caps and slots of two accounts", accounts: 2, keys: 2, caps: true, slots: true, steps: 80},
	{name: "caps and slots of children", accounts: 1, keys: 4, children: 2, caps: true, slots: true, steps: 80},
}

// generator makes the operations of one case. It chooses them by the state to which the replies of the reference have led.
type generator struct {
	family
	rng      *rand.Rand
	c        *ledgertest.Case
	r        *reference
	left     int // steps
	requests int
	disabled string // a key
}

// generate returns the case of a seed. It fails the test if a reply of the reference overdraws a cap.
func generate(t *testing.T, f *family, seed uint64) *ledgertest.Case {
	t.Helper()
	g := &generator{family: *f, rng: rand.New(rand.NewPCG(seed, seed)), left: f.steps}
	g.c = &ledgertest.Case{Name: fmt.Sprintf("%s/%d", f.name, seed), Start: time.Date(2027, 11, 27, 8, 0, 0, 0, time.UTC)}
	for a := range g.accounts {
		account := ledgertest.Owner{ID: fmt.Sprint("acc", a), Caps: g.limits(90), Slots: g.accountSlots()}
		g.c.Accounts = append(g.c.Accounts, account)
		for k := range g.keys {
			key := ledgertest.Owner{ID: fmt.Sprintf("key%d_%d", a, k), Account: account.ID}
			if k > 0 && k <= g.children {
				key.Parent = fmt.Sprintf("key%d_0", a)
			}
			g.c.Keys = append(g.c.Keys, g.key(key))
		}
	}
	g.r = newReference(g.c)
	for ; g.left > 0; g.left-- {
		s := g.choose()
		if q := g.r.find(s.Request); q != nil {
			s.Key = q.key.ID
		} else if s.Key == "" {
			s.Key = pick(g.rng, g.c.Keys).ID
		}
		s.Reply = g.r.Apply(&s)
		g.c.Steps = append(g.c.Steps, s)
		if d := s.Reply.Decision; d != nil && d.Kind == ledgertest.Granted {
			must(t, g.r.overdrawn(s.Request))
		}
		for id, d := range s.Reply.Decided {
			if d.Kind == ledgertest.Granted {
				must(t, g.r.overdrawn(id))
			}
		}
	}
	g.c.Rows = g.r.Rows()
	return g.c
}

// key returns a key with caps and slots.
func (g *generator) key(k ledgertest.Owner) ledgertest.Owner {
	k.Caps = g.limits(60)
	if g.slots {
		k.Slots = 1 + g.rng.IntN(3)
	}
	return k
}

// accountSlots returns the slots of an account, which are unbounded in one case of two.
func (g *generator) accountSlots() int {
	if !g.slots || g.rng.IntN(2) == 0 {
		return 0
	}
	return 1 + g.rng.IntN(4)
}

// limits returns caps of which two in three are bounded, those for life in one case of three.
func (g *generator) limits(most int64) (c quota.Caps) {
	if !g.caps {
		return c
	}
	limit := func(most int64) quota.Cap {
		if g.rng.IntN(3) == 0 {
			return quota.Unbounded()
		}
		tokens := g.rng.Int64N(most)
		switch g.rng.IntN(40) {
		case 0, 1, 2: // a small cap
		case 3:
			tokens = 0
		default:
			tokens += most / 2
		}
		return quota.Limit(tokens)
	}
	c = quota.Caps{quota.MonthTotal: limit(4 * most), quota.DayTotal: limit(most), quota.MonthInput: limit(most), quota.MonthOutput: limit(2 * most)}
	if g.rng.IntN(3) == 0 {
		c[quota.LifeTotal], c[quota.LifeInput], c[quota.LifeOutput] = limit(3*most), limit(2*most), limit(2*most)
	}
	return c
}

// choose returns an operation. The Key may be missing.
func (g *generator) choose() ledgertest.Step {
	if s, ok := g.recount(); ok {
		return s
	}
	waits, runs, done := g.r.in(refWaiting, nil), g.r.in(refRunning, nil), g.r.in(refEnded, nil)
	n := g.rng.IntN(100)
	switch {
	case n < 40 || len(runs) == 0 && n < 80:
		return g.admit()
	case n < 64 && len(runs) > 0:
		return g.end(ledgertest.Settle, pick(g.rng, runs))
	case n < 69 && len(runs) > 0:
		return g.end(ledgertest.Checkpoint, pick(g.rng, runs))
	case n < 74 && len(runs) > 0:
		return ledgertest.Step{Op: ledgertest.Interrupt, Request: pick(g.rng, runs).id}
	case n < 76 && len(done) > 0:
		return g.end(ledgertest.Settle, pick(g.rng, done))
	case n < 86 && len(waits) > 0:
		return ledgertest.Step{Op: ledgertest.Cancel, Request: pick(g.rng, waits).id}
	case n < 91 && g.left < g.steps-10:
		to := g.r.now.Add(time.Duration(6+g.rng.IntN(30)) * time.Hour)
		if g.back && g.rng.IntN(2) == 0 {
			to = g.r.now.Add(-time.Duration(g.rng.IntN(50)) * time.Hour)
		}
		return ledgertest.Step{Op: ledgertest.Clock, Time: &to}
	case n < 99:
		return g.change(waits)
	default:
		return g.admit()
	}
}

// recount admits the latest request again if its prompt was to be counted.
func (g *generator) recount() (s ledgertest.Step, ok bool) {
	if len(g.c.Steps) == 0 {
		return s, false
	}
	s = g.c.Steps[len(g.c.Steps)-1]
	if d := s.Reply.Decision; d == nil || d.Kind != ledgertest.Count {
		return s, false
	}
	d := *s.Demand
	d.PromptTokens, d.Exact = d.PromptTokens/2, true
	return ledgertest.Step{Op: ledgertest.Admit, Request: s.Request, Line: s.Line, Demand: &d}, true
}

func pick[T any](rng *rand.Rand, of []T) T { return of[rng.IntN(len(of))] }

func (g *generator) admit() ledgertest.Step {
	g.requests++
	d := &ledgertest.Demand{
		PromptTokens: max(g.rng.Int64N(16)-2, 0), Exact: !g.caps || g.rng.IntN(5) > 0, Candidates: 1 + g.rng.Int64N(2),
		MaxTokens: 1 + g.rng.Int64N(16),
	}
	if g.rng.IntN(5) == 0 {
		d.MinTokens = g.rng.Int64N(10)
	}
	if d.Exact && g.rng.IntN(6) == 0 {
		d.Context = 20
		for range 1 + g.rng.IntN(2) {
			d.Prompts = append(d.Prompts, 1+g.rng.Int64N(25))
		}
		d.Candidates, d.PromptTokens = int64(len(d.Prompts)), 0
		for _, n := range d.Prompts {
			d.PromptTokens += min(n, d.Context-d.MaxTokens)
		}
	}
	return ledgertest.Step{
		Op: ledgertest.Admit, Request: fmt.Sprintf("req_%03d", g.requests), Key: pick(g.rng, g.c.Keys).ID, Line: g.rng.IntN(5) == 0,
		Demand: d,
	}
}

func (g *generator) end(op ledgertest.Op, q *refRequest) ledgertest.Step {
	return ledgertest.Step{Op: op, Request: q.id, Prompt: g.rng.Int64N(8), Completion: g.rng.Int64N(10)}
}

// change changes one owner, often the key of a request that waits. At most one key is disabled at a time.
func (g *generator) change(waits []*refRequest) ledgertest.Step {
	s := ledgertest.Step{Op: ledgertest.Change}
	if n := g.rng.IntN(2 * (len(g.c.Accounts) + len(g.c.Keys))); n < len(g.c.Accounts) {
		s.Owner = &ledgertest.Owner{ID: g.c.Accounts[n].ID, Caps: g.limits(90), Slots: g.accountSlots()}
		return s
	}
	id, disable := pick(g.rng, g.c.Keys).ID, false
	if len(waits) > 0 {
		id = pick(g.rng, waits).key.ID
	}
	switch {
	case g.disabled != "":
		id, g.disabled = g.disabled, ""
	case g.rng.IntN(4) == 0:
		disable, g.disabled = true, id
	}
	k := g.key(ledgertest.Owner{ID: id, Account: g.r.owners[id].Account, Parent: g.r.owners[id].Parent})
	k.Disabled = disable
	s.Owner = &k
	return s
}
