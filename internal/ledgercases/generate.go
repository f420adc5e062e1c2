package ledgercases

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// family is a kind of case.
type family struct {
	name         string
	accounts     int
	keys         int // of each account
	caps, slots  bool
	inexact      bool // some demands are bounds that must be counted
	steps, count int
}

// With both caps and slots, each account has one key: engines may order requests of several keys by their arrival or by when
// they got their slots. With slots, no key is disabled: engines may refuse a request that waits for a slot at once or later.
// Two more answers may differ, so other seeds may not hold for every engine. If slots are taken away, a request that waits for
// tokens keeps its slot on SQLite, and waits for a slot too on PostgreSQL, where the number of slots always holds. If used tokens
// come to refuse a request that waits behind a blocked one, SQLite refuses it at once, and PostgreSQL when its turn comes, unless
// a change of caps is the reason: it does not evaluate every waiter whenever a request ends.
var families = []family{
	{name: "caps", accounts: 2, keys: 2, caps: true, inexact: true, steps: 60, count: 18},
	{name: "slots", accounts: 1, keys: 2, slots: true, steps: 40, count: 4},
	{name: "caps and slots", accounts: 2, keys: 1, caps: true, slots: true, steps: 60, count: 8},
}

// Generate returns the cases, which depend on nothing but the replies of the engines.
func Generate(engine func(c *Case) Engine) []Case {
	var all []Case
	for i, f := range families {
		for seed := range f.count {
			g := &generator{family: f, rng: rand.New(rand.NewPCG(uint64(i), uint64(seed)))} //nolint:gosec // a seeded sequence
			all = append(all, g.generate(fmt.Sprint(f.name, " ", seed), engine))
		}
	}
	return all
}

// generator makes one case. It follows which requests run and wait by the engine's replies.
type generator struct {
	family
	rng      *rand.Rand
	c        Case
	now      time.Time
	requests int
	keyOf    map[string]string
	running  []string
	waiting  []string
	uncount  *Step // an Admit that was answered with Count
	ended    []string
	disabled string // a key
}

func (g *generator) generate(name string, engine func(*Case) Engine) Case {
	g.now = time.Date(2027, 11, 27, 8, 0, 0, 0, time.UTC)
	g.c = Case{Name: name, Start: g.now}
	g.keyOf = map[string]string{}
	for a := range g.accounts {
		account := Account{ID: fmt.Sprint("acc", a), Caps: g.limits(90)}
		g.c.Accounts = append(g.c.Accounts, account)
		for k := range g.keys {
			key := Key{ID: fmt.Sprintf("key%d_%d", a, k), Account: account.ID, Caps: g.limits(60)}
			if g.slots {
				key.Slots = 1 + g.rng.IntN(3)
			}
			g.c.Keys = append(g.c.Keys, key)
		}
	}
	e := engine(&g.c)
	for range g.steps {
		s := g.next()
		if s.Key == "" {
			s.Key = g.keyOf[s.Request]
		}
		if s.Key == "" {
			s.Key = pick(g.rng, g.c.Keys).ID
		}
		s.Reply = e.Apply(s)
		g.follow(&s)
		g.c.Steps = append(g.c.Steps, s)
	}
	g.c.Rows = e.Rows()
	return g.c
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

// next returns an operation.
func (g *generator) next() Step {
	if g.uncount != nil {
		s := *g.uncount
		g.uncount = nil
		d := *s.Demand
		d.PromptTokens, d.Exact = d.PromptTokens/2, true
		s.Demand = &d
		return s
	}
	n := g.rng.IntN(100)
	switch {
	case n < 40 || len(g.running) == 0:
		return g.admit()
	case n < 68:
		return g.end(Settle, pick(g.rng, g.running))
	case n < 74:
		return g.end(Checkpoint, pick(g.rng, g.running))
	case n < 79:
		return Step{Op: Interrupt, Request: pick(g.rng, g.running)}
	case n < 82 && len(g.ended) > 0:
		return g.end(Settle, pick(g.rng, g.ended))
	case n < 86 && len(g.waiting) > 0:
		return Step{Op: Cancel, Request: pick(g.rng, g.waiting)}
	case n < 91 && len(g.c.Steps) > 10:
		g.now = g.now.Add(time.Duration(6+g.rng.IntN(30)) * time.Hour)
		to := g.now
		return Step{Op: Clock, Time: &to}
	case n < 99:
		return g.setCaps()
	default:
		return g.admit()
	}
}

func pick[T any](rng *rand.Rand, of []T) T { return of[rng.IntN(len(of))] }

func (g *generator) admit() Step {
	g.requests++
	d := &Demand{
		PromptTokens: max(g.rng.Int64N(16)-2, 0), Exact: !g.inexact || g.rng.IntN(5) > 0, Candidates: 1 + g.rng.Int64N(2),
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

// setCaps changes one owner. At most one key is disabled at a time, and not if there are slots.
func (g *generator) setCaps() Step {
	if n := g.rng.IntN(2 * (len(g.c.Accounts) + len(g.c.Keys))); n < len(g.c.Accounts) {
		caps := g.limits(90)
		return Step{Op: SetCaps, Owner: g.c.Accounts[n].ID, Caps: &caps}
	}
	caps := g.limits(60)
	s := Step{Op: SetCaps, Owner: pick(g.rng, g.c.Keys).ID, Caps: &caps}
	if len(g.waiting) > 0 {
		s.Owner = g.keyOf[pick(g.rng, g.waiting)]
	}
	switch {
	case g.slots:
		s.Slots = 1 + g.rng.IntN(4)
	case g.disabled != "":
		s.Owner, g.disabled = g.disabled, ""
	case g.rng.IntN(2) == 0:
		s.Disabled, g.disabled = true, s.Owner
	}
	return s
}

// follow moves requests between the generator's lists.
func (g *generator) follow(s *Step) {
	switch s.Op {
	case Admit:
		g.keyOf[s.Request] = s.Key
		switch s.Reply.Decision.Kind {
		case Granted:
			g.running = append(g.running, s.Request)
		case Wait:
			g.waiting = append(g.waiting, s.Request)
		case Count:
			again := *s
			again.Reply = Reply{}
			g.uncount = &again
		case Refused, Disabled:
		}
	case Settle, Interrupt:
		if at := slices.Index(g.running, s.Request); at >= 0 {
			g.running = slices.Delete(g.running, at, at+1)
			g.ended = append(g.ended, s.Request)
		}
	case Cancel:
		g.waiting = slices.DeleteFunc(g.waiting, func(r string) bool { return r == s.Request })
	case Checkpoint, Clock, SetCaps:
	}
	for _, r := range slices.Clone(g.waiting) {
		if d, ok := s.Reply.Decided[r]; ok {
			g.waiting = slices.DeleteFunc(g.waiting, func(w string) bool { return w == r })
			if d.Kind == Granted {
				g.running = append(g.running, r)
			}
		}
	}
}
