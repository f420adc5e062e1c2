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

var update = flag.Bool("update", false, "rewrite the golden files in testdata")

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
		t.Errorf("%s (-golden +got; -update rewrites it):\n%s", file, diff)
	}
}

const openFor = 30 * time.Second

// testBreaker is a breaker that records its changes of state.
type testBreaker struct {
	*breaker.Breaker
	t       *testing.T
	changes []string
}

func newTestBreaker(t *testing.T, failures, trials int) *testBreaker {
	t.Helper()
	b := &testBreaker{t: t}
	b.Breaker = breaker.New("gpu1", breaker.Settings{ConsecutiveFailures: failures, OpenFor: openFor, HalfOpenRequests: trials}, func(from, to breaker.State) {
		b.changes = append(b.changes, fmt.Sprintf("%s>%s", from, to))
	})
	return b
}

func (b *testBreaker) permit() *breaker.Permit {
	b.t.Helper()
	p, err := b.Allow(breaker.AnyKey)
	if err != nil {
		b.t.Fatalf("Allow: %v", err)
	}
	return p
}

func (b *testBreaker) wantRefused() {
	b.t.Helper()
	if _, err := b.Allow(breaker.AnyKey); !errors.Is(err, breaker.ErrOpen) {
		b.t.Fatalf("Allow: %v, want ErrOpen", err)
	}
}

// attempt makes one attempt that reports each of the classes in turn.
func (b *testBreaker) attempt(classes ...breaker.Class) {
	b.t.Helper()
	p := b.permit()
	for _, c := range classes {
		p.Report(c)
	}
	p.Close()
}

func (b *testBreaker) wantState(want breaker.State) {
	b.t.Helper()
	if got := b.State(); got != want {
		b.t.Fatalf("state is %s, want %s", got, want)
	}
}

// newOpenBreaker returns a breaker that has just opened.
func newOpenBreaker(t *testing.T, trials int) *testBreaker {
	t.Helper()
	b := newTestBreaker(t, 1, trials)
	b.attempt(breaker.ServerError)
	b.wantState(breaker.Open)
	return b
}

// afterOpen is the shortest time after which an open breaker is half-open: at exactly OpenFor it is still open.
const afterOpen = openFor + time.Nanosecond

func TestOpensAfterConsecutiveFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBreaker(t, 3, 1)
		b.wantState(breaker.Closed)
		for range 2 {
			b.attempt(breaker.ServerError)
			b.wantState(breaker.Closed)
		}
		b.attempt(breaker.TimedOut)
		b.wantState(breaker.Open)
		b.wantRefused()
	})
}

func TestSuccessResetsTheFailureCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBreaker(t, 3, 1)
		for range 5 {
			b.attempt(breaker.ServerError)
			b.attempt(breaker.Refused)
			b.attempt(breaker.Success)
		}
		b.wantState(breaker.Closed)
		if len(b.changes) != 0 {
			t.Errorf("got changes %v, want none", b.changes)
		}
	})
}

// uncounted holds the classes that are not the backend's fault.
var uncounted = []breaker.Class{breaker.ClientError, breaker.ContextLength, breaker.Busy, breaker.TooLarge, breaker.LocalFault, breaker.AdapterGone, breaker.ClientGone}

func TestOnlyBackendFailuresOpenTheBreaker(t *testing.T) {
	for _, c := range breaker.Classes() {
		t.Run(c.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newTestBreaker(t, 2, 1)
				for range 20 {
					if b.State() == breaker.Open {
						break
					}
					b.attempt(c)
				}
				want := breaker.Open
				if c == breaker.Success || slices.Contains(uncounted, c) {
					want = breaker.Closed
				}
				b.wantState(want)
			})
		})
	}
}

// An uncounted attempt between two failures is not a success either, so the failures stay consecutive.
func TestUncountedAttemptDoesNotResetTheFailureCount(t *testing.T) {
	for _, c := range uncounted {
		synctest.Test(t, func(t *testing.T) {
			b := newTestBreaker(t, 2, 1)
			b.attempt(breaker.ServerError)
			b.attempt(c)
			b.permit().Close()
			b.wantState(breaker.Closed)
			b.attempt(breaker.ServerError)
			b.wantState(breaker.Open)
		})
	}
}

func TestDeadEngineOpensAtOnce(t *testing.T) {
	for _, c := range []breaker.Class{breaker.EngineDead, breaker.OutOfMemoryDead} {
		synctest.Test(t, func(t *testing.T) {
			b := newTestBreaker(t, 1000, 1)
			b.attempt(c)
			b.wantState(breaker.Open)
		})
	}
}

// The counter that forces the breaker open must not affect the next failure.
func TestOrdinaryFailureAfterADeadEngineDoesNotOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBreaker(t, 3, 1)
		b.attempt(breaker.EngineDead)
		time.Sleep(afterOpen)
		b.attempt(breaker.Success)
		b.wantState(breaker.Closed)
		b.attempt(breaker.ServerError)
		b.wantState(breaker.Closed)
	})
}

func TestRetryInCountsDownToHalfOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBreaker(t, 1, 1)
		if got := b.RetryIn(); got != 0 {
			t.Errorf("closed: got %v, want 0", got)
		}
		time.Sleep(time.Hour)
		b.attempt(breaker.ServerError)
		at := time.Now()
		for _, passed := range []time.Duration{0, 10 * time.Second, openFor - 1, openFor} {
			time.Sleep(time.Until(at.Add(passed)))
			if got := b.RetryIn(); got != openFor-passed {
				t.Errorf("after %v: got %v, want %v", passed, got, openFor-passed)
			}
			b.wantRefused()
		}
		time.Sleep(time.Nanosecond)
		if got := b.RetryIn(); got != 0 {
			t.Errorf("half-open: got %v, want 0", got)
		}
		b.wantState(breaker.HalfOpen)
	})
}

func TestHalfOpenAllowsLimitedTrialsAndNeedsAllToSucceed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newOpenBreaker(t, 3)
		time.Sleep(afterOpen)
		trials := []*breaker.Permit{b.permit(), b.permit(), b.permit()}
		b.wantRefused()
		b.wantState(breaker.HalfOpen)
		for _, p := range trials {
			b.wantState(breaker.HalfOpen)
			p.Report(breaker.Success)
		}
		b.wantState(breaker.Closed)
		if diff := cmp.Diff([]string{"closed>open", "open>half-open", "half-open>closed"}, b.changes); diff != "" {
			t.Error(diff)
		}
	})
}

func TestFailedTrialReopensTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newOpenBreaker(t, 2)
		time.Sleep(afterOpen)
		b.attempt(breaker.Success)
		b.attempt(breaker.Reset)
		b.wantState(breaker.Open)
		if got := b.RetryIn(); got != openFor {
			t.Errorf("RetryIn: got %v, want %v", got, openFor)
		}
		if diff := cmp.Diff([]string{"closed>open", "open>half-open", "half-open>open"}, b.changes); diff != "" {
			t.Error(diff)
		}
	})
}

// gobreaker would wait forever for a trial that never reports.
func TestTrialClosedWithoutAReportFreesItsPermit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newOpenBreaker(t, 1)
		time.Sleep(afterOpen)
		for range 3 {
			p := b.permit()
			b.wantRefused()
			p.Close()
			p.Close()
			b.wantState(breaker.HalfOpen)
		}
		b.attempt(breaker.ClientGone) // uncounted, like no report
		b.wantState(breaker.HalfOpen)
		b.attempt(breaker.Success)
		b.wantState(breaker.Closed)
	})
}

func TestCloseAfterReportHasNoEffect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBreaker(t, 2, 1)
		p := b.permit()
		p.Report(breaker.ServerError)
		p.Close()
		p.Close()
		b.wantState(breaker.Closed)
		b.attempt(breaker.ServerError)
		b.wantState(breaker.Open)
	})
}

// A stream that has begun is no success yet, so streams that break off halfway are failures in a row.
func TestStreamsThatBreakOffOpenTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBreaker(t, 6, 1)
		stream := func(end breaker.Class) {
			p := b.permit()
			p.Begin()
			p.Report(end)
			p.Close()
		}
		for range 5 {
			stream(breaker.Truncated)
		}
		stream(breaker.Success)
		for range 5 {
			stream(breaker.Truncated)
			b.wantState(breaker.Closed)
		}
		stream(breaker.Truncated)
		b.wantState(breaker.Open)
	})
}

// A trial ends at the first event of its stream, which may run for hours.
func TestStreamThatHasBegunEndsTheTrial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newOpenBreaker(t, 1)
		time.Sleep(afterOpen)
		trial := b.permit()
		b.wantRefused()
		trial.Begin()
		b.wantState(breaker.Closed)
		trial.Report(breaker.Truncated)
		b.wantState(breaker.Open)
	})
}

func TestRequestCountsOncePerBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBreaker(t, 3, 1)
		for range 2 {
			b.attempt(breaker.ServerError)
			for range 5 {
				p := b.permit()
				p.ReportRepeated(breaker.ServerError)
				p.Close()
			}
		}
		b.wantState(breaker.Closed)
		if n := len(b.Recent()); n != 12 {
			t.Errorf("got %d recent attempts, want all 12", n)
		}
		b.permit().ReportRepeated(breaker.EngineDead)
		b.wantState(breaker.Open) // a dead engine opens it whatever the count
	})
}

func TestResetClosesTheBreakerAndForgetsItsCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBreaker(t, 2, 1)
		before := b.permit()
		b.attempt(breaker.ServerError)
		b.Reset()
		b.attempt(breaker.ServerError)
		b.wantState(breaker.Closed)
		before.Report(breaker.ServerError) // of the time before
		b.wantState(breaker.Closed)
		b.attempt(breaker.ServerError)
		b.wantState(breaker.Open)
		b.Reset()
		b.wantState(breaker.Closed)
		if b.RetryIn() != 0 {
			t.Errorf("RetryIn is %v after Reset", b.RetryIn())
		}
		if diff := cmp.Diff([]string{"closed>open", "open>closed"}, b.changes); diff != "" {
			t.Error(diff)
		}
	})
}

func TestEveryReportOfAPermitCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBreaker(t, 2, 1)
		b.attempt(breaker.Success, breaker.Truncated)
		b.wantState(breaker.Closed)
		b.attempt(breaker.Success, breaker.Truncated)
		b.wantState(breaker.Closed) // the success at the first event separates the failures
		p, q := b.permit(), b.permit()
		p.Report(breaker.Success)
		q.Report(breaker.Success)
		p.Report(breaker.Truncated)
		q.Report(breaker.Truncated)
		b.wantState(breaker.Open)
	})
}

// gobreaker drops a report whose Allow was before the last change of state. A stream that began before the breaker
// opened and closed again must still count when it fails.
func TestReportAfterAChangeOfStateStillCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBreaker(t, 1, 1)
		stream := b.permit()
		stream.Report(breaker.Success)
		b.attempt(breaker.ServerError)
		time.Sleep(afterOpen)
		b.attempt(breaker.Success)
		b.wantState(breaker.Closed)
		time.Sleep(time.Hour)
		stream.Report(breaker.Truncated)
		b.wantState(breaker.Open)
		stream.Close()
	})
}

func TestDeadEngineInALateReportOpensAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBreaker(t, 5, 1)
		stream := b.permit()
		stream.Report(breaker.Success)
		time.Sleep(time.Hour)
		stream.Report(breaker.EngineDead)
		b.wantState(breaker.Open)
	})
}

// A late report adds nothing while the breaker is open or all trials are in progress.
func TestLateReportToAnOpenBreakerHasNoEffect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBreaker(t, 1, 1)
		stream, other := b.permit(), b.permit()
		stream.Report(breaker.Success)
		b.attempt(breaker.ServerError)
		stream.Report(breaker.Success)
		stream.Report(breaker.EngineDead)
		other.Report(breaker.Success) // its first report; the permit is from before the breaker opened
		b.wantState(breaker.Open)
		time.Sleep(afterOpen)
		trial := b.permit()
		stream.Report(breaker.Truncated)
		b.wantState(breaker.HalfOpen)
		trial.Report(breaker.Success)
		b.wantState(breaker.Closed)
	})
}

func TestConcurrentAttemptsLeaveOneConsistentState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBreaker(t, 3, 2)
		var all sync.WaitGroup
		for i := range 200 {
			all.Go(func() {
				time.Sleep(time.Duration(i) * time.Second)
				p, err := b.Allow(breaker.AnyKey)
				if err != nil {
					return
				}
				defer p.Close()
				time.Sleep(time.Duration(i%7) * time.Second)
				p.Report(breaker.Classes()[i%len(breaker.Classes())])
				b.RetryIn()
			})
		}
		all.Wait()
		time.Sleep(afterOpen)
		b.attempt(breaker.Success)
		b.attempt(breaker.Success)
		b.wantState(breaker.Closed)
		before := "closed"
		for _, c := range b.changes {
			from, to, _ := strings.Cut(c, ">")
			if from != before {
				t.Fatalf("a change does not start in the state of the one before: %v", b.changes)
			}
			before = to
		}
	})
}

// failAs makes attempts of a key until the breaker is open.
func (b *testBreaker) failAs(key string) {
	b.t.Helper()
	for range 5 {
		p, err := b.Allow(key)
		if err != nil {
			b.t.Fatal(err)
		}
		p.Report(breaker.RequestFailed)
		p.Close()
	}
	b.wantState(breaker.Open)
}

func TestFailuresOfOneKeyDoNotOpenTheBreakerToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBreaker(t, 5, 2)
		b.failAs("a")
		if _, err := b.Allow("a"); !errors.Is(err, breaker.ErrOpen) || !b.OpenTo("a") || b.OpenTo("b") {
			t.Fatalf("got %v for the key that has failed, which it is open to (%t), as to another (%t)", err, b.OpenTo("a"), b.OpenTo("b"))
		}
		if b.OpenTo(breaker.AnyKey) {
			t.Fatal("it is open to all keys")
		}
		trial, err := b.Allow("b")
		if err != nil {
			t.Fatal(err)
		}
		second, err := b.Allow("c")
		if err != nil {
			t.Fatalf("got %v for a second key", err)
		}
		second.Close()
		trial.Begin() // a stream
		b.wantState(breaker.Closed)
		trial.Report(breaker.Success)
		b.attempt(breaker.Success)
	})
}

func TestTrialOfAnotherKeyThatFailsOpensTheBreakerToAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBreaker(t, 5, 2)
		b.failAs("a")
		for _, ends := range []func(*breaker.Permit){
			func(p *breaker.Permit) { p.Close() }, // the client has left, which says nothing
			func(p *breaker.Permit) { p.Report(breaker.Busy) },
			func(p *breaker.Permit) { p.Report(breaker.RequestFailed) },
		} {
			trial, err := b.Allow("b")
			if err != nil {
				t.Fatal(err)
			}
			ends(trial)
			trial.Close()
			b.wantState(breaker.Open)
		}
		if _, err := b.Allow("c"); !errors.Is(err, breaker.ErrOpen) || !b.OpenTo("c") {
			t.Fatalf("got %v after two keys have failed", err)
		}
	})
}

// Of two keys, the requests of one fail, and one of the other began before they did.
func TestLateSuccessOfAnotherKeyLeavesTheBreakerOpenToOneKeyOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBreaker(t, 5, 1)
		late, err := b.Allow("b")
		if err != nil {
			t.Fatal(err)
		}
		b.failAs("a")
		late.Report(breaker.Success)
		if b.OpenTo("b") || !b.OpenTo("a") {
			t.Errorf("open to the key that has failed: %t; to the other: %t", b.OpenTo("a"), b.OpenTo("b"))
		}
		time.Sleep(openFor + time.Second) // half-open
		trial, err := b.Allow("a")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Allow("a"); !errors.Is(err, breaker.ErrOpen) {
			t.Errorf("a second trial of the key that has failed: got %v", err)
		}
		other, err := b.Allow("b")
		if err != nil {
			t.Fatalf("another key beside the trial: %v", err)
		}
		other.Report(breaker.Success)
		b.wantState(breaker.Closed)
		trial.Close()
		b.failAs("b")
		if b.OpenTo("c") || !b.OpenTo("b") {
			t.Errorf("after the breaker has closed: open to the key that has failed: %t; to another: %t", b.OpenTo("b"), b.OpenTo("c"))
		}
	})
}

func TestProvenFailureOfOneKeyOpensTheBreakerToAll(t *testing.T) {
	b := newTestBreaker(t, 5, 2)
	p, err := b.Allow("a")
	if err != nil {
		t.Fatal(err)
	}
	p.Report(breaker.EngineDead)
	if _, err := b.Allow("b"); !errors.Is(err, breaker.ErrOpen) {
		t.Fatalf("got %v, want %v", err, breaker.ErrOpen)
	}
}

func TestClassTableMatchesTheGoldenFile(t *testing.T) {
	var got strings.Builder
	got.WriteString("class code counts opens retry: proof\n")
	for _, c := range breaker.Classes() {
		var counts, opens bool
		synctest.Test(t, func(t *testing.T) {
			one, many := newTestBreaker(t, 1, 1), newTestBreaker(t, 1000, 1)
			one.attempt(c)
			many.attempt(c)
			counts, opens = one.State() == breaker.Open, many.State() == breaker.Open
		})
		retry := map[breaker.Retry]string{breaker.RetryNever: "never", breaker.RetryElsewhereOnce: "once elsewhere", breaker.RetryElsewhere: "elsewhere", breaker.RetryAnywhere: "anywhere"}[c.Retry()]
		code := c.Code()
		if code == "" {
			code = "-"
		}
		fmt.Fprintf(&got, "%s %s counts=%t opens=%t %s: %s\n", c, code, counts, opens, retry, c.Proof())
	}
	golden(t, "testdata/classes.golden", got.String())
}

// The client sees the class's code, and vLLM's message if it is about the request; the log sees the class and the
// cause, but never vLLM's message.
func TestEveryFailureMapsToItsErrorCode(t *testing.T) {
	cause := errors.New("dial tcp 10.0.0.1:8001: connection refused")
	for _, c := range breaker.Classes() {
		if c == breaker.Success || c == breaker.ClientGone {
			continue // no error response
		}
		for _, message := range []string{"", "what vLLM said"} {
			e := apierr.From(breaker.Outcome{Class: c, Status: 500, Message: message, Cause: cause}.Err("llama-8b", 2))
			if e.Code != c.Code() {
				t.Errorf("%s: got code %s, want %s", c, e.Code, c.Code())
			}
			if len(e.Message) < 20 && message == "" || strings.Contains(e.Message, "10.0.0.1") || strings.Contains(e.Message, "%!") {
				t.Errorf("%s: got message %q", c, e.Message)
			}
			aboutRequest := c == breaker.ClientError || c == breaker.ContextLength
			if strings.Contains(e.Message, message) != aboutRequest && message != "" {
				t.Errorf("%s: got message %q", c, e.Message)
			} else if e.Code == apierr.UpstreamUnreachable && !strings.Contains(e.Message, "llama-8b") {
				t.Errorf("%s: got message %q, want the model's id in it", c, e.Message)
			}
			if c != breaker.ClientError && (!errors.Is(e, cause) || !strings.Contains(e.Error(), c.String())) {
				t.Errorf("%s: the log would hold %v, without the cause or the class", c, e)
			}
			if strings.Contains(e.Error(), "what vLLM said") {
				t.Errorf("%s: the log would hold vLLM's message: %v", c, e)
			}
		}
	}
}
