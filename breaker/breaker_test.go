package breaker_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"basegate/breaker"
	apierr "basegate/errors"
)

var update = flag.Bool("update", false, "rewrite the files in testdata from what the code does")

func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-recorded +now; -update records):\n%s", file, diff)
	}
}

const openFor = 30 * time.Second

// rig is a breaker and the changes of state that it has told of.
type rig struct {
	*breaker.Breaker
	t       *testing.T
	changes []string
}

func newRig(t *testing.T, failures, probes int) *rig {
	t.Helper()
	r := &rig{t: t}
	r.Breaker = breaker.New("gpu1", breaker.Settings{ConsecutiveFailures: failures, OpenFor: openFor, HalfOpenRequests: probes}, func(from, to breaker.State) {
		r.changes = append(r.changes, fmt.Sprintf("%s>%s", from, to))
	})
	return r
}

func (r *rig) permit() *breaker.Permit {
	r.t.Helper()
	p, err := r.Allow()
	if err != nil {
		r.t.Fatalf("not allowed: %v", err)
	}
	return p
}

func (r *rig) refused() {
	r.t.Helper()
	if _, err := r.Allow(); !errors.Is(err, breaker.ErrOpen) {
		r.t.Fatalf("Allow: %v, want ErrOpen", err)
	}
}

// attempt is one attempt that came to each of the classes in turn.
func (r *rig) attempt(classes ...breaker.Class) {
	r.t.Helper()
	p := r.permit()
	for _, c := range classes {
		p.Report(c)
	}
	p.Close()
}

func (r *rig) is(want breaker.State) {
	r.t.Helper()
	if got := r.State(); got != want {
		r.t.Fatalf("state %s, want %s", got, want)
	}
}

// opened is a rig whose breaker has just opened.
func opened(t *testing.T, probes int) *rig {
	t.Helper()
	r := newRig(t, 1, probes)
	r.attempt(breaker.ServerError)
	r.is(breaker.Open)
	return r
}

// past is the moment after the breaker's time is up: at the very end it is still open.
const past = openFor + time.Nanosecond

func TestOpensAfterSoManyFailuresInARow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3, 1)
		r.is(breaker.Closed)
		for range 2 {
			r.attempt(breaker.ServerError)
			r.is(breaker.Closed)
		}
		r.attempt(breaker.TimedOut)
		r.is(breaker.Open)
		r.refused()
	})
}

func TestASuccessBeginsTheCountAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3, 1)
		for range 5 {
			r.attempt(breaker.ServerError)
			r.attempt(breaker.Refused)
			r.attempt(breaker.Success)
		}
		r.is(breaker.Closed)
		if len(r.changes) != 0 {
			t.Errorf("changes: %v", r.changes)
		}
	})
}

// uncounted are the classes that say nothing bad of the backend.
var uncounted = []breaker.Class{breaker.ClientError, breaker.ContextLength, breaker.Busy, breaker.ClientGone}

func TestWhatIsNotTheBackendsFaultNeverCounts(t *testing.T) {
	for _, c := range breaker.Classes() {
		t.Run(c.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, 2, 1)
				for range 20 {
					if r.State() == breaker.Open {
						break
					}
					r.attempt(c)
				}
				want := breaker.Open
				if c == breaker.Success || slices.Contains(uncounted, c) {
					want = breaker.Closed
				}
				r.is(want)
			})
		})
	}
}

// An uncounted outcome between two failures is no success either: the row of failures goes on.
func TestWhatDoesNotCountDoesNotResetTheCount(t *testing.T) {
	for _, c := range uncounted {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, 2, 1)
			r.attempt(breaker.ServerError)
			r.attempt(c)
			r.permit().Close()
			r.is(breaker.Closed)
			r.attempt(breaker.ServerError)
			r.is(breaker.Open)
		})
	}
}

func TestADeadEngineOpensAtOnce(t *testing.T) {
	for _, c := range []breaker.Class{breaker.EngineDead, breaker.OutOfMemoryDead} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, 1000, 1)
			r.attempt(c)
			r.is(breaker.Open)
		})
	}
}

// The flag that opens it must not stay behind for the next failure.
func TestAfterADeadEngineOneOtherFailureDoesNotOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3, 1)
		r.attempt(breaker.EngineDead)
		time.Sleep(past)
		r.attempt(breaker.Success)
		r.is(breaker.Closed)
		r.attempt(breaker.ServerError)
		r.is(breaker.Closed)
	})
}

func TestRetryInCountsDownToTheProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, 1)
		if got := r.RetryIn(); got != 0 {
			t.Errorf("closed: %v", got)
		}
		time.Sleep(time.Hour)
		r.attempt(breaker.ServerError)
		at := time.Now()
		for _, passed := range []time.Duration{0, 10 * time.Second, openFor - 1, openFor} {
			time.Sleep(time.Until(at.Add(passed)))
			if got := r.RetryIn(); got != openFor-passed {
				t.Errorf("after %v: %v", passed, got)
			}
			r.refused()
		}
		time.Sleep(time.Nanosecond)
		if got := r.RetryIn(); got != 0 {
			t.Errorf("half-open: %v", got)
		}
		r.is(breaker.HalfOpen)
	})
}

func TestHalfOpenAdmitsSoManyProbesAndNeedsThemAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := opened(t, 3)
		time.Sleep(past)
		probes := []*breaker.Permit{r.permit(), r.permit(), r.permit()}
		r.refused()
		r.is(breaker.HalfOpen)
		for _, p := range probes {
			r.is(breaker.HalfOpen)
			p.Report(breaker.Success)
		}
		r.is(breaker.Closed)
		if diff := cmp.Diff([]string{"closed>open", "open>half-open", "half-open>closed"}, r.changes); diff != "" {
			t.Error(diff)
		}
	})
}

func TestAFailedProbeOpensItForAnotherTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := opened(t, 2)
		time.Sleep(past)
		r.attempt(breaker.Success)
		r.attempt(breaker.Reset)
		r.is(breaker.Open)
		if got := r.RetryIn(); got != openFor {
			t.Errorf("RetryIn %v", got)
		}
		if diff := cmp.Diff([]string{"closed>open", "open>half-open", "half-open>open"}, r.changes); diff != "" {
			t.Error(diff)
		}
	})
}

// gobreaker would wait for ever for a probe that never reports.
func TestAProbeClosedWithoutAReportFreesItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := opened(t, 1)
		time.Sleep(past)
		for range 3 {
			p := r.permit()
			r.refused()
			p.Close()
			p.Close()
			r.is(breaker.HalfOpen)
		}
		r.attempt(breaker.ClientGone) // uncounted: as if it had not reported
		r.is(breaker.HalfOpen)
		r.attempt(breaker.Success)
		r.is(breaker.Closed)
	})
}

func TestCloseAfterAReportChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, 1)
		p := r.permit()
		p.Report(breaker.ServerError)
		p.Close()
		p.Close()
		r.is(breaker.Closed)
		r.attempt(breaker.ServerError)
		r.is(breaker.Open)
	})
}

func TestEveryReportOfOnePermitIsAnOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, 1)
		r.attempt(breaker.Success, breaker.Truncated)
		r.is(breaker.Closed)
		r.attempt(breaker.Success, breaker.Truncated)
		r.is(breaker.Closed) // the success at the first event stands between them
		p, q := r.permit(), r.permit()
		p.Report(breaker.Success)
		q.Report(breaker.Success)
		p.Report(breaker.Truncated)
		q.Report(breaker.Truncated)
		r.is(breaker.Open)
	})
}

// gobreaker drops an outcome whose Allow was before the last change of state. A stream that began before the breaker
// opened and closed again must still count when it dies.
func TestAStreamThatOutlivesTheBreakersStateStillCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, 1)
		stream := r.permit()
		stream.Report(breaker.Success)
		r.attempt(breaker.ServerError)
		time.Sleep(past)
		r.attempt(breaker.Success)
		r.is(breaker.Closed)
		time.Sleep(time.Hour)
		stream.Report(breaker.Truncated)
		r.is(breaker.Open)
		stream.Close()
	})
}

func TestALateDeadEngineOpensAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 5, 1)
		stream := r.permit()
		stream.Report(breaker.Success)
		time.Sleep(time.Hour)
		stream.Report(breaker.EngineDead)
		r.is(breaker.Open)
	})
}

// While it is open, or all probes are out, there is nothing to add to what is known.
func TestALateReportToAnOpenBreakerChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, 1)
		stream, other := r.permit(), r.permit()
		stream.Report(breaker.Success)
		r.attempt(breaker.ServerError)
		stream.Report(breaker.Success)
		stream.Report(breaker.EngineDead)
		other.Report(breaker.Success) // its first report, from before it opened
		r.is(breaker.Open)
		time.Sleep(past)
		probe := r.permit()
		stream.Report(breaker.Truncated)
		r.is(breaker.HalfOpen)
		probe.Report(breaker.Success)
		r.is(breaker.Closed)
	})
}

func TestManyAtOnceLeaveItInOneState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3, 2)
		var all sync.WaitGroup
		for i := range 200 {
			all.Go(func() {
				time.Sleep(time.Duration(i) * time.Second)
				p, err := r.Allow()
				if err != nil {
					return
				}
				defer p.Close()
				time.Sleep(time.Duration(i%7) * time.Second)
				p.Report(breaker.Classes()[i%len(breaker.Classes())])
				r.RetryIn()
			})
		}
		all.Wait()
		time.Sleep(past)
		r.attempt(breaker.Success)
		r.attempt(breaker.Success)
		r.is(breaker.Closed)
		before := "closed"
		for _, c := range r.changes {
			from, to, _ := strings.Cut(c, ">")
			if from != before {
				t.Fatalf("%v", r.changes)
			}
			before = to
		}
	})
}

func TestTableOfClassesIsAsRecorded(t *testing.T) {
	var got strings.Builder
	got.WriteString("class code counts opens retry\n")
	for _, c := range breaker.Classes() {
		var counts, opens bool
		synctest.Test(t, func(t *testing.T) {
			one, many := newRig(t, 1, 1), newRig(t, 1000, 1)
			one.attempt(c)
			many.attempt(c)
			counts, opens = one.State() == breaker.Open, many.State() == breaker.Open
		})
		retry := map[breaker.Retry]string{breaker.RetryNever: "never", breaker.RetryElsewhere: "elsewhere", breaker.RetryAnywhere: "anywhere"}[c.Retry()]
		code := c.Code()
		if code == "" {
			code = "-"
		}
		fmt.Fprintf(&got, "%s %s counts=%t opens=%t %s\n", c, code, counts, opens, retry)
	}
	golden(t, "testdata/classes.golden", got.String())
}

// What a class becomes for the client, with and without words of vLLM's.
func TestEveryFailureBecomesItsCode(t *testing.T) {
	cause := errors.New("dial tcp 10.0.0.1:8001: connection refused")
	for _, c := range breaker.Classes() {
		if c == breaker.Success || c == breaker.ClientGone {
			continue // nobody is told
		}
		for _, message := range []string{"", "what vLLM said"} {
			e := apierr.From(breaker.Verdict{Class: c, Status: 500, Message: message, Cause: cause}.Err("llama-8b", 2))
			if e.Code != c.Code() {
				t.Errorf("%s: code %s", c, e.Code)
			}
			if len(e.Message) < 20 && message == "" || strings.Contains(e.Message, "10.0.0.1") || strings.Contains(e.Message, "%!") {
				t.Errorf("%s: message %q", c, e.Message)
			}
			if unreachable := e.Code == apierr.UpstreamUnreachable; strings.Contains(e.Message, message) == unreachable && message != "" {
				t.Errorf("%s: message %q", c, e.Message)
			} else if unreachable && !strings.Contains(e.Message, "llama-8b") {
				t.Errorf("%s: %v, message %q", c, e, e.Message)
			}
			if c != breaker.ClientError && (!errors.Is(e, cause) || !strings.Contains(e.Error(), c.String())) {
				t.Errorf("%s: the log would only hold %v", c, e)
			}
			if strings.Contains(e.Error(), "what vLLM said") {
				t.Errorf("%s: the log would hold vLLM's words: %v", c, e)
			}
		}
	}
}
