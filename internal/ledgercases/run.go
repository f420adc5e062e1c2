package ledgercases

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// fixedSeeds is how many seeds of each family every run has.
const fixedSeeds = 10

// Variables of the environment: how many seeds more to try, which are new in each run and shared out to the families,
// and the one seed to try, with every family.
const (
	freshSeeds = "BASEGATE_LEDGER_SEEDS"
	oneSeed    = "BASEGATE_LEDGER_SEED"
)

// Suite runs cases on an engine.
type Suite struct {
	Order Order
	// Run creates an engine in the state that a case begins with, and calls use.
	Run func(t *testing.T, c *Case, use func(Engine))
}

// Test runs the cases of the fixed seeds and of as many fresh ones as the environment says. A case that fails is reduced to the
// operations that it needs to fail.
func (s *Suite) Test(t *testing.T) {
	counts := counts{}
	for i := range families {
		for _, seed := range seeds(t, i) {
			name := fmt.Sprintf("%s/%d", families[i].name, seed)
			t.Run(name, func(t *testing.T) { s.test(t, &families[i], seed, counts) })
		}
	}
	if !t.Failed() && os.Getenv(oneSeed) == "" {
		counts.check(t)
	}
	t.Log(counts)
}

// seeds returns the seeds of a family.
func seeds(t *testing.T, family int) (all []uint64) {
	t.Helper()
	if text := os.Getenv(oneSeed); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", oneSeed, err)
		}
		return []uint64{seed}
	}
	for seed := range uint64(fixedSeeds) {
		all = append(all, seed)
	}
	if text := os.Getenv(freshSeeds); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatalf("%s: %v", freshSeeds, err)
		}
		for i := range n {
			if i%len(families) == family {
				all = append(all, uint64(rand.Uint32()))
			}
		}
	}
	return all
}

func (s *Suite) test(t *testing.T, f *family, seed uint64, counts counts) {
	t.Helper()
	played, failed := s.play(t, f, seed, counts)
	if failed == nil {
		return
	}
	c, err := s.reduce(t, played, failed)
	t.Fatalf("%v\n%s=%d repeats the case; %d of its %d steps are enough:\n%s", err, oneSeed, seed, len(c.Steps), len(played.Steps), c)
}

func (s *Suite) play(t *testing.T, f *family, seed uint64, counts counts) (c *Case, failed error) {
	t.Helper()
	g := newGenerator(f, seed)
	s.Run(t, g.c, func(e Engine) {
		g.rules = newRules(g.c, s.Order)
		failed = play(g.c, e, g.rules, g.next, counts)
	})
	return g.c, failed
}

// Violation runs the cases of the fixed seeds until a reply is not allowed, and returns why. It is nil if all are allowed.
func (s *Suite) Violation(t *testing.T) error {
	t.Helper()
	for seed := range uint64(fixedSeeds) {
		for i := range families {
			if _, failed := s.play(t, &families[i], seed, counts{}); failed != nil {
				return failed
			}
		}
	}
	return nil
}

// play applies operations to an engine until next has no more, and adds them to the case. It stops at the first reply that the
// rules do not allow, and returns why.
func play(c *Case, e Engine, r *rules, next func() (Step, bool), counts counts) error {
	for {
		s, ok := next()
		if !ok {
			break
		}
		c.Steps = append(c.Steps, s)
		reply := e.Apply(s)
		counts.add(&s, &reply)
		if err := r.check(&s, reply); err != nil {
			return fmt.Errorf("step %d: %s: %w", len(c.Steps), s, err)
		}
	}
	counts["requests that passed one without a slot"] += r.passedWithoutSlot
	counts["waits for one that need not block it"] += r.mayBlock
	counts["waits of requests that used tokens refuse"] += r.refusedLater
	if diff := cmp.Diff(r.rows(), e.Rows()); diff != "" {
		return fmt.Errorf("rows (-want +got):\n%s", diff)
	}
	return nil
}

// maxReplays limits the runs that reduce a case.
const maxReplays = 150

// reduce leaves out steps of a case that fails as long as it still fails. It returns the rest, and how that fails.
func (s *Suite) reduce(t *testing.T, c *Case, err error) (*Case, error) {
	t.Helper()
	replays := 0
	for size := len(c.Steps) / 2; size > 0; size /= 2 {
		for at := 0; at < len(c.Steps) && replays < maxReplays; {
			replays++
			shorter := *c
			shorter.Steps = slices.Delete(slices.Clone(c.Steps), at, min(at+size, len(c.Steps)))
			if got, failed := s.replay(t, &shorter); failed != nil {
				c, err = got, failed
			} else {
				at += size
			}
		}
	}
	return c, err
}

// replay runs the steps of a case that are possible, and returns those up to the failure.
func (s *Suite) replay(t *testing.T, c *Case) (played *Case, failed error) {
	t.Helper()
	played = &Case{Start: c.Start, Accounts: c.Accounts, Keys: c.Keys}
	t.Run("reduced", func(t *testing.T) { // its engine is closed at the end
		s.Run(t, played, func(e Engine) {
			r, at := newRules(played, s.Order), 0
			failed = play(played, e, r, func() (Step, bool) {
				for ; at < len(c.Steps); at++ {
					if step := c.Steps[at]; r.possible(&step) {
						at++
						return step, true
					}
				}
				return Step{}, false
			}, counts{})
		})
	})
	return played, failed
}

// counts are how often each operation and decision occurred.
type counts map[string]int

func (c counts) add(s *Step, r *Reply) {
	c[string(s.Op)]++
	if d := r.Decision; d != nil {
		c["at once: "+string(d.Kind)]++
	}
	for _, d := range r.Decided {
		c["after a wait: "+string(d.Kind)]++
	}
}

// check fails the test if an operation or decision is rare.
func (c counts) check(t *testing.T) {
	t.Helper()
	const often = 10
	for _, what := range []string{
		string(Admit), string(Settle), string(Checkpoint), string(Interrupt), string(Cancel), string(Clock), string(SetCaps),
		"at once: granted", "at once: refused", "at once: count", "at once: wait", "at once: disabled",
		"after a wait: granted", "after a wait: refused", "after a wait: disabled",
	} {
		if c[what] < often {
			t.Errorf("%s: %d times, want at least %d", what, c[what], often)
		}
	}
}
