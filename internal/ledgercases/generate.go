package ledgercases

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// family is a kind of case.
type family struct {
	name        string
	accounts    int
	keys        int // of each account
	caps, slots bool
	steps       int
}

var families = []family{
	{name: "caps", accounts: 1, keys: 3, caps: true, steps: 80},
	{name: "caps of two accounts", accounts: 2, keys: 2, caps: true, steps: 80},
	{name: "slots", accounts: 1, keys: 2, slots: true, steps: 40},
	{name: "caps and slots", accounts: 1, keys: 3, caps: true, slots: true, steps: 80},
	{name: "caps and slots of two accounts", accounts: 2, keys: 2, caps: true, slots: true, steps: 80},
}

// generator makes the operations of one case. It chooses them by the state that the engine's replies have led to.
type generator struct {
	family
	rng      *rand.Rand
	c        *Case
	rules    *rules
	left     int // steps
	requests int
	disabled string // a key
}

func newGenerator(f *family, seed uint64) *generator {
	g := &generator{family: *f, rng: rand.New(rand.NewPCG(seed, seed)), left: f.steps}
	g.c = &Case{Start: time.Date(2027, 11, 27, 8, 0, 0, 0, time.UTC)}
	for a := range g.accounts {
		account := Account{ID: fmt.Sprint("acc", a), Caps: g.limits(90), Slots: g.accountSlots()}
		g.c.Accounts = append(g.c.Accounts, account)
		for k := range g.keys {
			key := Key{ID: fmt.Sprintf("key%d_%d", a, k), Account: account.ID, Caps: g.limits(60)}
			if g.slots {
				key.Slots = 1 + g.rng.IntN(3)
			}
			g.c.Keys = append(g.c.Keys, key)
		}
	}
	return g
}

// accountSlots returns the slots of an account, which are unbounded in one case of two.
func (g *generator) accountSlots() int {
	if !g.slots || g.rng.IntN(2) == 0 {
		return 0
	}
	return 1 + g.rng.IntN(4)
}

// limits returns caps of which two in three are bounded.
func (g *generator) limits(most int64) (c Caps) {
	if !g.caps {
		return c
	}
	limit := func(most int64) *int64 {
		if g.rng.IntN(3) == 0 {
			return nil
		}
		tokens := g.rng.Int64N(most)
		switch g.rng.IntN(40) {
		case 0, 1, 2: // a small cap
		case 3:
			tokens = 0
		default:
			tokens += most / 2
		}
		return &tokens
	}
	return Caps{MonthTotal: limit(4 * most), DayTotal: limit(most), MonthInput: limit(3 * most), MonthOutput: limit(3 * most)}
}

// next returns an operation, and false after the last one.
func (g *generator) next() (Step, bool) {
	if g.left == 0 {
		return Step{}, false
	}
	g.left--
	s := g.choose()
	if q := g.rules.find(s.Request); q != nil {
		s.Key = q.key.id
	} else if s.Key == "" {
		s.Key = pick(g.rng, g.c.Keys).ID
	}
	return s, true
}

// choose returns an operation. The Key may be missing.
func (g *generator) choose() Step {
	if s, ok := g.recount(); ok {
		return s
	}
	waits, runs, done := g.rules.ids(waiting), g.rules.ids(running), g.rules.ids(ended)
	n := g.rng.IntN(100)
	switch {
	case n < 40 || len(runs) == 0 && n < 80:
		return g.admit()
	case n < 64 && len(runs) > 0:
		return g.end(Settle, pick(g.rng, runs))
	case n < 69 && len(runs) > 0:
		return g.end(Checkpoint, pick(g.rng, runs))
	case n < 74 && len(runs) > 0:
		return Step{Op: Interrupt, Request: pick(g.rng, runs)}
	case n < 76 && len(done) > 0:
		return g.end(Settle, pick(g.rng, done))
	case n < 86 && len(waits) > 0:
		return Step{Op: Cancel, Request: pick(g.rng, waits)}
	case n < 91 && g.left < g.steps-10:
		to := g.rules.now.Add(time.Duration(6+g.rng.IntN(30)) * time.Hour)
		return Step{Op: Clock, Time: &to}
	case n < 99:
		return g.setCaps(waits)
	default:
		return g.admit()
	}
}

// recount admits the latest request again if its prompt was to be counted.
func (g *generator) recount() (s Step, ok bool) {
	if len(g.rules.requests) == 0 {
		return s, false
	}
	q := &g.rules.requests[len(g.rules.requests)-1]
	if q.state != gone || q.demand.Exact {
		return s, false
	}
	d := *q.demand
	d.PromptTokens, d.Exact = d.PromptTokens/2, true
	return Step{Op: Admit, Request: q.id, Demand: &d}, true
}

func pick[T any](rng *rand.Rand, of []T) T { return of[rng.IntN(len(of))] }

func (g *generator) admit() Step {
	g.requests++
	d := &Demand{
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
		d.Candidates = int64(len(d.Prompts))
		d.PromptTokens = d.PromptAt(d.MaxTokens)
	}
	return Step{Op: Admit, Request: fmt.Sprintf("req_%03d", g.requests), Key: pick(g.rng, g.c.Keys).ID, Demand: d}
}

func (g *generator) end(op Op, request string) Step {
	return Step{Op: op, Request: request, Prompt: g.rng.Int64N(8), Completion: g.rng.Int64N(10)}
}

// setCaps changes one owner. At most one key is disabled at a time.
func (g *generator) setCaps(waits []string) Step {
	if n := g.rng.IntN(2 * (len(g.c.Accounts) + len(g.c.Keys))); n < len(g.c.Accounts) {
		caps := g.limits(90)
		return Step{Op: SetCaps, Owner: g.c.Accounts[n].ID, Caps: &caps, Slots: g.accountSlots()}
	}
	caps := g.limits(60)
	s := Step{Op: SetCaps, Owner: pick(g.rng, g.c.Keys).ID, Caps: &caps}
	if len(waits) > 0 {
		s.Owner = g.rules.find(pick(g.rng, waits)).key.id
	}
	if g.slots {
		s.Slots = 1 + g.rng.IntN(4)
	}
	switch {
	case g.disabled != "":
		s.Owner, g.disabled = g.disabled, ""
	case g.rng.IntN(4) == 0:
		s.Disabled, g.disabled = true, s.Owner
	}
	return s
}
