package budget

import (
	"time"

	"basegate/quota"
)

// Demand is what a request may take in the worst case.
type Demand struct {
	PromptTokens int64 // of all its prompts
	Exact        bool  // whether PromptTokens is the count, and not a bound that the count does not pass
	Candidates   int64 // prompts × max(n, best_of); at least 1
	MaxTokens    int64 // of each candidate; at least 1

	// Hold is called, if not nil, where the request has to wait, and release when it no longer does. Its error is Reserve's.
	Hold func() (release func(), err error)
}

// normal keeps nonsense from giving budget away.
func (d Demand) normal() Demand {
	d.PromptTokens = min(max(d.PromptTokens, 0), unpayable)
	d.Candidates = max(d.Candidates, 1)
	d.MaxTokens = max(d.MaxTokens, 1)
	return d
}

// unpayable is more than any cap leaves, and small enough for thousands of it to be added up.
const unpayable = 1 << 50

// product is a × b, or unpayable.
func product(a, b int64) int64 {
	if a > unpayable/b {
		return unpayable
	}
	return a * b
}

// gauge is a cap and what counts against it.
type gauge struct {
	scope  Scope
	window Window
	meter  Meter
	limit  int64
	tally  *tally
}

func (g gauge) room() int64 { return g.limit - g.tally.used }

// fits is the most tokens that each candidate may have as far as this cap goes; 0 where not even one fits.
func (g gauge) fits(d Demand) int64 {
	room := g.room()
	switch g.meter {
	case Input:
		if room <= 0 || d.PromptTokens > room {
			return 0
		}
		return d.MaxTokens
	case Output:
		return max(room, 0) / d.Candidates
	case Total:
	}
	if room <= d.PromptTokens {
		return 0
	}
	return (room - d.PromptTokens) / d.Candidates
}

// holds tells whether what is reserved by others leaves room for so much more.
func (g gauge) holds(input, output int64) bool {
	need := input
	switch g.meter {
	case Total:
		need += output
	case Output:
		need = output
	case Input:
	}
	return need <= g.room()-g.tally.reserved
}

// exceeded is the refusal in this cap's name.
func (g gauge) exceeded(now moment) *Exceeded {
	return &Exceeded{
		Scope: g.scope, Window: g.window, Meter: g.meter,
		Limit: g.limit, Used: g.tally.used, Reserved: g.tally.reserved, ResetsAt: now.resets(g.window),
	}
}

// before tells which of two caps that refuse is named.
func (g gauge) before(other gauge) bool {
	if g.window != other.window {
		return g.window == Month
	}
	return g.room() < other.room()
}

// gauges are the caps of one payer that are set.
type gauges struct {
	list [8]gauge
	n    int
}

func (g *gauges) all() []gauge { return g.list[:g.n] }

func (g *gauges) add(scope Scope, c quota.Caps, p *period, day int) {
	g.one(c.MonthTotal, gauge{scope: scope, window: Month, meter: Total, tally: &p.total})
	g.one(c.DayTotal, gauge{scope: scope, window: Day, meter: Total, tally: &p.days[day]})
	g.one(c.MonthInput, gauge{scope: scope, window: Month, meter: Input, tally: &p.input})
	g.one(c.MonthOutput, gauge{scope: scope, window: Month, meter: Output, tally: &p.output})
}

func (g *gauges) one(c quota.Cap, one gauge) {
	if tokens, bounded := c.Tokens(); bounded {
		one.limit = max(tokens, 0)
		g.list[g.n] = one
		g.n++
	}
}

// seat is where a charge goes.
type seat struct {
	key, account *period
	now          moment
	at           time.Time
}

func (s seat) gauges(p *Payer) (g gauges) {
	if p.KeyCaps.Any() {
		g.add(Key, p.KeyCaps, s.key, s.now.day)
	}
	if p.AccountCaps.Any() {
		g.add(Account, p.AccountCaps, s.account, s.now.day)
	}
	return g
}

// verdict is the judgement of one demand at one moment.
type verdict struct {
	seat      seat
	maxTokens int64     // the most that fits what is used, up to what was asked for
	exceeded  *Exceeded // not even 1 fits
	byKey     bool      // reservations against the key's caps stand in the way
	byAccount bool      // those against the account's do
}

func (v *verdict) admitted() bool { return v.exceeded == nil && !v.byKey && !v.byAccount }

// judge decides on all caps at once. What is used alone refuses and clamps; what is reserved, and who came earlier and
// is still held up by it, makes wait.
func judge(w *waiter, s seat) verdict {
	v := verdict{seat: s, maxTokens: w.demand.MaxTokens}
	caps := s.gauges(&w.payer)
	var worst *gauge
	for i := range caps.all() {
		g := &caps.list[i]
		fits := g.fits(w.demand)
		if fits < 1 && (worst == nil || g.before(*worst)) {
			worst = g
		}
		v.maxTokens = min(v.maxTokens, fits)
	}
	if worst != nil {
		v.exceeded = worst.exceeded(s.now)
		return v
	}
	v.byKey = w.key.blocked && w.payer.KeyCaps.Any()
	v.byAccount = w.account.blocked && w.payer.AccountCaps.Any()
	output := product(w.demand.Candidates, v.maxTokens)
	for _, g := range caps.all() {
		if g.holds(w.demand.PromptTokens, output) {
			continue
		}
		if g.scope == Key {
			v.byKey = true
		} else {
			v.byAccount = true
		}
	}
	return v
}
