package batch

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidwall/gjson"
	"go.uber.org/zap"

	"basegate/batch/storage"
	"basegate/budget/admission"
	"basegate/database"
	"basegate/internal/databasetest"
	"basegate/internal/poll"
	"basegate/proxy"
)

// slowModels are any number of models, each with the place for one line, which takes some time. The prompt of a line begins
// with the name of its model.
type slowModels struct {
	takes  time.Duration
	refuse func(prompt string) bool // for the budget

	mu        sync.Mutex
	running   map[string]bool
	full      map[string]bool
	standings map[string]proxy.Standing
}

type slowPlace struct {
	models *slowModels
	model  string
}

func (p slowPlace) Release() {
	p.models.mu.Lock()
	defer p.models.mu.Unlock()
	delete(p.models.running, p.model)
}

func (m *slowModels) AcquirePlace(model string, _ int, _ bool) (proxy.Place, proxy.WaitReason) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.full[model] || m.running[model] {
		return nil, proxy.WaitsForCapacity
	}
	m.running[model] = true
	return slowPlace{m, model}, ""
}

func (m *slowModels) Standing(key string) proxy.Standing {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.standings[key]
}

func (m *slowModels) set(key string, st proxy.Standing) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.standings[key] = st
}

func (m *slowModels) setFull(model string, full bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.full[model] = full
}

func (*slowModels) Allocate(string) admission.Allocation { return admission.Allocation{} }

func (*slowModels) Checker(context.Context, string, string, bool) (proxy.LineCheck, error) {
	return func(_ string, body []byte) (proxy.CheckedLine, error) {
		model, _, _ := strings.Cut(gjson.GetBytes(body, "prompt").Str, " ")
		return proxy.CheckedLine{Model: model}, nil
	}, nil
}

func (m *slowModels) ServeLine(ctx context.Context, l proxy.Line) proxy.LineResult {
	if m.refuse != nil && m.refuse(gjson.GetBytes(l.Body, "prompt").Str) {
		return proxy.LineResult{State: proxy.LineWaits, Reason: proxy.WaitsForBudget, ResetsAt: time.Now().Add(24 * time.Hour), Release: func() {}}
	}
	select {
	case <-time.After(m.takes):
	case <-ctx.Done():
		return proxy.LineResult{State: proxy.LineCancelled, Release: func() {}}
	}
	return proxy.LineResult{RequestID: "r", Status: 200, Body: []byte(`{}`), Release: func() {}}
}

func newSlowModels(takes time.Duration) *slowModels {
	return &slowModels{takes: takes, running: map[string]bool{}, full: map[string]bool{}, standings: map[string]proxy.Standing{}}
}

// openSQLite opens a database and a storage in dir until the end of the test.
func openSQLite(t *testing.T, dir string) (*database.DB, storage.Store) {
	t.Helper()
	db, err := database.Open(t.Context(), databasetest.SQLite(t, filepath.Join(dir, "base.db")), zap.NewNop())
	must(t, err)
	t.Cleanup(func() { must(t, db.Close()) })
	store, err := storage.OpenDisk(filepath.Join(dir, "files"))
	must(t, err)
	t.Cleanup(func() { must(t, store.Close()) })
	return db, store
}

// pass lets time pass, and waits for what is due at the end of it.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// timedService runs a test with the only gateway of a database, by the clock of the test.
func timedService(t *testing.T, completer Completer, test func(*testing.T, *Service)) {
	t.Helper()
	databasetest.SkipPostgres(t, "its clock does not follow that of the test")
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		db, store := openSQLite(t, dir)
		s := New(db, store, completer, testSettings, zap.NewNop())
		must(t, s.Start(t.Context()))
		defer s.Close()
		pass(123 * time.Millisecond) // what the test begins happens between polls, as with real clocks, and not at the same instants
		test(t, s)
	})
}

// createLines creates a batch of the account "a" with a line for each prompt.
func (s *Service) createLines(t *testing.T, key, window string, prompts ...string) string {
	t.Helper()
	var file strings.Builder
	for i, prompt := range prompts {
		fmt.Fprintf(&file, `{"custom_id":"%d","method":"POST","url":"/v1/completions","body":{"prompt":%q}}`+"\n", i, prompt)
	}
	b, err := s.Create(t.Context(), "a", key, "lines.jsonl", window, strings.NewReader(file.String()))
	must(t, err)
	return b.ID
}

// fillShare creates as many batches of an account as may be in memory, all of which make progress, and returns them.
func (s *Service) fillShare(t *testing.T, lines int) (ids []string) {
	t.Helper()
	for i := range maxActiveOwned {
		prompts := make([]string, lines)
		for line := range prompts {
			prompts[line] = fmt.Sprintf("m%d", i)
		}
		ids = append(ids, s.createLines(t, "k", "24h", prompts...))
	}
	pass(5 * time.Second)
	return ids
}

func (s *Service) wantStatus(t *testing.T, what, id string, want Status) (d Batch) {
	t.Helper()
	d, err := s.BatchOf(t.Context(), "", id)
	must(t, err)
	if d.Status != want {
		t.Errorf("%s: the batch is %s with %+v, want %s", what, d.Status, d.toObject().Counts, want)
	}
	return d
}

func TestBatchWithTheEarliestDeadlineGetsThePlaceOfAnother(t *testing.T) {
	for _, c := range []struct {
		name  string
		spent bool // the batch is parked before it may run
	}{{"that has just been created", false}, {"that has waited for its budget", true}} {
		t.Run(c.name, func(t *testing.T) {
			models := newSlowModels(time.Second)
			timedService(t, models, func(t *testing.T, s *Service) {
				running := s.fillShare(t, 300)
				if c.spent {
					models.set("k2", proxy.Standing{Reason: proxy.WaitsForBudget})
				}
				urgent := []string{s.createLines(t, "k2", "1h", "u1", "u1"), s.createLines(t, "k2", "1h", "u2", "u2")}
				pass(20 * time.Second)
				models.set("k2", proxy.Standing{Caps: 1})
				pass(20 * time.Second)
				for _, id := range urgent {
					s.wantStatus(t, "while others run", id, Completed)
				}
				pass(6 * time.Minute)
				for _, id := range running {
					if d := s.wantStatus(t, "after all", id, Completed); d.Completed != 300 {
						t.Errorf("the counts are %+v", d.toObject().Counts)
					}
				}
			})
		})
	}
}

// A batch that only has to end needs none of the places of its account.
func TestBatchesEndWhileOthersOfTheirAccountRun(t *testing.T) {
	models := newSlowModels(time.Minute)
	timedService(t, models, func(t *testing.T, s *Service) {
		s.fillShare(t, 120)
		models.set("spent", proxy.Standing{Reason: proxy.WaitsForBudget})
		expires, revoked := s.createLines(t, "spent", "1h", "u"), s.createLines(t, "spent2", "48h", "u")
		waits := s.createLines(t, "k2", "48h", "u") // for its turn
		models.set("spent2", proxy.Standing{Reason: proxy.WaitsForBudget})
		pass(time.Minute)
		for _, key := range []string{"spent2", "k2"} {
			models.set(key, proxy.Standing{Reason: proxy.WaitsForKey, Revoked: true})
		}
		pass(10 * time.Second)
		s.wantStatus(t, "a parked batch of a revoked key", revoked, StatusCancelled)
		s.wantStatus(t, "a batch of a revoked key that waits for its turn", waits, StatusCancelled)
		s.wantStatus(t, "before its deadline", expires, InProgress)
		pass(time.Hour)
		s.wantStatus(t, "after its deadline", expires, Expired)
	})
}

// Its lines are read and written to the error file for a while, in which none of them is sent.
func TestBatchThatIsCancelledBeforeItsTurnRunsNoLine(t *testing.T) {
	const lines = 400
	models := newSlowModels(3 * time.Second)
	var sent atomic.Int64
	models.refuse = func(prompt string) bool {
		if prompt == "late" {
			sent.Add(1)
		}
		return false
	}
	timedService(t, models, func(t *testing.T, s *Service) {
		s.fillShare(t, 500)
		id := s.createLines(t, "k", "48h", slices.Repeat([]string{"late"}, lines)...)
		pass(5 * time.Second)
		s.wantStatus(t, "before its turn", id, InProgress)
		_, err := s.CancelOf(t.Context(), "", id)
		must(t, err)
		pass(10 * time.Second)
		d := s.wantStatus(t, "after its cancellation", id, StatusCancelled)
		if n := sent.Load(); n != 0 || d.Failed != lines {
			t.Errorf("%d lines were sent, and the counts are %+v, want none and %d failures", n, d.toObject().Counts, lines)
		}
	})
}

// A place that a batch gives up is for the one that was parked first, whichever deadlines and keys they have.
func TestBatchThatGivesUpItsPlaceDoesNotGetItBack(t *testing.T) {
	for _, key := range []string{"k", "k2"} {
		t.Run(key, func(t *testing.T) {
			models := newSlowModels(time.Second)
			models.setFull("full", true)
			models.setFull("free", true)
			timedService(t, models, func(t *testing.T, s *Service) {
				for range maxActiveOwned {
					s.createLines(t, "k", "12h", "full")
				}
				pass(5 * time.Second)
				last := s.createLines(t, key, "24h", "free")
				pass(time.Minute) // it has had a turn
				models.setFull("free", false)
				pass(time.Minute)
				s.wantStatus(t, "with a model that has room", last, Completed)
			})
		})
	}
}

func TestParkedBatchWithTheEarliestDeadlineRunsWhenItsModelHasRoom(t *testing.T) {
	for name, shares := range map[string]int{"others run": 1, "others run, and others are due": 2} {
		t.Run(name, func(t *testing.T) {
			models := newSlowModels(3 * time.Second)
			models.setFull("full", true)
			timedService(t, models, func(t *testing.T, s *Service) {
				urgent := s.createLines(t, "k", "1h", "full")
				pass(5 * time.Second)
				for range shares {
					s.fillShare(t, 100)
				}
				pass(time.Minute)
				models.setFull("full", false)
				pass(2 * time.Minute)
				s.wantStatus(t, "when its model has room", urgent, Completed)
			})
		})
	}
}

// However many batches with early deadlines wait for a model without room, those that run lose half of one place to them.
func TestParkedBatchesTakeOnePlaceInTurns(t *testing.T) {
	const parked, seconds = 15, 600
	models := newSlowModels(time.Second)
	models.setFull("full", true)
	models.setFull("other", true)
	timedService(t, models, func(t *testing.T, s *Service) {
		running := s.fillShare(t, 2*seconds)
		for range parked {
			s.createLines(t, "k", "12h", "full")
		}
		last := s.createLines(t, "k", "12h", "other")
		pass(5 * time.Minute) // until all are parked
		completed := func() (n [maxActiveOwned]int64) {
			for i, id := range running {
				n[i] = s.wantStatus(t, "for a model with room", id, InProgress).Completed
			}
			return n
		}
		before := completed()
		models.setFull("other", false)
		for range seconds {
			pass(time.Second)
			var due int
			must(t, s.db.Read().QueryRowContext(t.Context(), `SELECT count(*) FROM batches WHERE status = 'in_progress' AND parked_at = 0`).Scan(&due))
			if n := s.jobCount(); n > maxActiveOwned || due > maxActiveOwned+2 { // that gave up their places: to the last, until its result is recorded, and to one without room
				t.Fatalf("%d batches are in memory and %d are due, want at most %d and two more", n, due, maxActiveOwned)
			}
		}
		for i, n := range completed() {
			want := int64(seconds * 9 / 10)
			if i == maxActiveOwned-1 { // the one with the latest deadline
				want = seconds * 4 / 10
			}
			if n -= before[i]; n < want {
				t.Errorf("batch %d has run %d lines of the %d for which its model had room, want %d", i, n, seconds, want)
			}
		}
		s.wantStatus(t, "behind all that were parked before it", last, Completed)
	})
}

func TestBatchWaitsForItsBudgetAsARowAlsoWhenOneOfItsModelsIsDone(t *testing.T) {
	models := newSlowModels(time.Second)
	models.refuse = func(model string) bool { return model == "large" }
	timedService(t, models, func(t *testing.T, s *Service) {
		id := s.createLines(t, "k", "24h", "small", "large", "small", "large")
		pass(5 * time.Second)
		models.setFull("small", true) // which it needs no more
		pass(15 * time.Second)
		d := s.wantStatus(t, "with lines over the budget", id, InProgress)
		if w := d.WaitsFor(); w == nil || w.Reason != proxy.WaitsForBudget || d.Completed != 2 || s.jobCount() != 0 {
			t.Errorf("it waits for %+v with %+v and %d jobs, want the budget, two results and none", w, d.toObject().Counts, s.jobCount())
		}
	})
}

// Lines without a kept response are tried once, and not again before the budget has changed.
func TestKeptResponsesAnswerLinesOfABatchWithoutABudget(t *testing.T) {
	models := newSlowModels(0)
	models.set("k", proxy.Standing{Reason: proxy.WaitsForBudget, ResetsAt: time.Now().Add(time.Hour), Caps: 1})
	var refused atomic.Int64
	models.refuse = func(prompt string) bool {
		if prompt == "m kept" || models.Standing("k").Reason == "" {
			return false
		}
		refused.Add(1)
		return true
	}
	timedService(t, models, func(t *testing.T, s *Service) {
		plain := s.createLines(t, "k", "24h", "m kept", "m new", "m kept")
		b := s.row(t, plain)
		b, err := s.create(t.Context(), "a", Batch{InputFile: b.InputFile, Endpoint: b.Endpoint, Window: b.Window, replay: true},
			namedOrigin("k", "test", "once", []byte("digest")))
		must(t, err)
		pass(20 * time.Second)
		if d := s.wantStatus(t, "without replay", plain, InProgress); d.Completed != 0 {
			t.Errorf("%d lines have run without replay and without a budget", d.Completed)
		}
		d := s.wantStatus(t, "with a line that no kept response answers", b.ID, InProgress)
		if w := d.WaitsFor(); w == nil || w.Reason != proxy.WaitsForBudget || d.Completed != 2 || s.jobCount() != 0 {
			t.Errorf("it waits for %+v with %+v and %d jobs, want the budget, two results and none", w, d.toObject().Counts, s.jobCount())
		}
		before := refused.Load()
		pass(10 * time.Minute)
		if after := refused.Load(); before == 0 || after != before {
			t.Errorf("the line was tried %d times, and %d times ten minutes later", before, after)
		}
		models.set("k", proxy.Standing{Caps: 2})
		pass(5 * time.Second)
		s.wantStatus(t, "when the cap was raised", b.ID, Completed)
	})
}

// A cap is raised after a line was refused that fits now, while the others of a long batch are still tried.
func TestBatchIsParkedOnlyIfTheSameCapsRefuseAllItsLines(t *testing.T) {
	for lines := 5 * budgetTries; lines <= 7*budgetTries; lines += budgetTries / 4 {
		t.Run(fmt.Sprint(lines), func(t *testing.T) {
			models := newSlowModels(0)
			models.set("k", proxy.Standing{Caps: 1})
			var tried atomic.Int64
			models.refuse = func(prompt string) bool {
				switch tried.Add(1) {
				case budgetTries:
					models.set("k", proxy.Standing{Caps: 2})
				case 1:
					return true
				}
				return prompt != "m 000" || models.Standing("k").Caps != 2
			}
			timedService(t, models, func(t *testing.T, s *Service) {
				prompts := make([]string, lines)
				for i := range prompts {
					prompts[i] = fmt.Sprintf("m %03d", i)
				}
				id := s.createLines(t, "k", "24h", prompts...)
				pass(time.Minute)
				d := s.wantStatus(t, "with lines over the budget", id, InProgress)
				if d.Completed != 1 || s.jobCount() != 0 {
					t.Errorf("the counts are %+v with %d jobs, want the line that fits and none", d.toObject().Counts, s.jobCount())
				}
			})
		})
	}
}

// failingModels have places for lines, and breakers that are open to each key alone.
type failingModels struct {
	*slowModels
	tried atomic.Int64
}

func (m *failingModels) ServeLine(context.Context, proxy.Line) proxy.LineResult {
	m.tried.Add(1)
	return proxy.LineResult{State: proxy.LineWaits, Reason: proxy.WaitsForModel, Release: func() {}}
}

func TestLinesThatWaitForABreakerAreNotTriedAtEachPlace(t *testing.T) {
	models := &failingModels{slowModels: newSlowModels(0)}
	timedService(t, models, func(t *testing.T, s *Service) {
		id := s.createLines(t, "k", "24h", "m")
		const intervals = 5
		pass(intervals * modelDelay)
		d := s.wantStatus(t, "with an open breaker", id, InProgress)
		if w, n := d.WaitsFor(), models.tried.Load(); w == nil || w.Reason != proxy.WaitsForModel || n < 2 || n > intervals {
			t.Errorf("it waits for %+v, and the line was tried %d times, want the model and 2 to %d", w, n, intervals)
		}
	})
}

// askedModels calls a function when it is first asked for a key.
type askedModels struct {
	*slowModels
	key   string
	once  sync.Once
	asked func()
}

func (m *askedModels) Standing(key string) proxy.Standing {
	if key == m.key {
		m.once.Do(m.asked)
	}
	return m.slowModels.Standing(key)
}

// newPoller returns the poller of a gateway that only does what the test makes it do.
func newPoller(t *testing.T, completer Completer) *poller {
	t.Helper()
	databasetest.SkipPostgres(t, "the gateway has no cluster")
	db, store := openSQLite(t, t.TempDir())
	s := New(db, store, completer, testSettings, zap.NewNop())
	s.ctx, s.stop = context.WithCancelCause(t.Context())
	t.Cleanup(s.Close)
	return &poller{Service: s}
}

// createValid creates a batch that is validated, and has no job yet.
func (p *poller) createValid(t *testing.T, account, key string, lines int) Batch {
	t.Helper()
	b, err := p.Create(t.Context(), account, key, "lines.jsonl", "24h", strings.NewReader(inputLines(lines)))
	must(t, err)
	must(t, p.once(t.Context()))
	b = p.row(t, b.ID)
	poll.Until(t, "the batch is validated", func() bool { return !slices.Contains(p.busy(), b.seq) })
	return p.row(t, b.ID)
}

func (s *Service) row(t *testing.T, id string) Batch {
	t.Helper()
	b, err := findBatch(t.Context(), s.db.Read(), "", id)
	must(t, err)
	return b
}

// newRecorder returns the recorder of a job of a batch, which does not run.
func (s *Service) newRecorder(t *testing.T, b *Batch) *recorder {
	t.Helper()
	input, err := partsOf(t.Context(), s.db.Read(), objectsOfFile, b.InputFile)
	must(t, err)
	return &recorder{job: s.newJob(b, holder{}, input), batch: *b}
}

func TestJobThatParksWhileItsRowIsReadDoesNotStartAgain(t *testing.T) {
	models := &askedModels{slowModels: newSlowModels(time.Second)}
	p := newPoller(t, models)
	b := p.createValid(t, "b", "k", 1)
	must(t, p.once(t.Context()))
	models.asked = func() {
		p.mu.Lock()
		p.jobs[b.seq].parkForTurn()
		p.mu.Unlock()
		poll.Until(t, "the job has ended", func() bool { return !slices.Contains(p.busy(), b.seq) })
	}
	p.createValid(t, "a", "first", 1)
	models.key = "first"
	must(t, p.once(t.Context()))
	if slices.Contains(p.busy(), b.seq) {
		t.Error("a batch that was parked during a poll was started by it")
	}
}

// unreadableStore is a storage that cannot be read while it fails.
type unreadableStore struct {
	storage.Store
	fails *atomic.Bool
}

func (s unreadableStore) Open(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	if s.fails.Load() {
		return nil, errAway
	}
	return s.Store.Open(ctx, name, offset, length)
}

// Its last line uses up the budget, and then its results cannot be made final for a while.
func TestBatchWithoutLinesLeftWaitsForNoBudget(t *testing.T) {
	databasetest.SkipPostgres(t, "its clock does not follow that of the test")
	const lines = 3
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		db, store := openSQLite(t, dir)
		models, fails := newSlowModels(time.Second), &atomic.Bool{}
		var sent atomic.Int64
		models.refuse = func(string) bool {
			if sent.Add(1) == lines {
				models.set("k", proxy.Standing{Reason: proxy.WaitsForBudget, ResetsAt: time.Now().Add(23 * time.Hour)})
				fails.Store(true)
			}
			return false
		}
		s := New(db, unreadableStore{store, fails}, models, testSettings, zap.NewNop())
		must(t, s.Start(t.Context()))
		defer s.Close()
		id := s.createLines(t, "k", "24h", slices.Repeat([]string{"m"}, lines)...)
		pass(20 * time.Second)
		s.wantStatus(t, "while its results cannot be made final", id, Finalizing)
		fails.Store(false)
		pass(10 * time.Second)
		s.wantStatus(t, "when its storage is back", id, Completed)
	})
}

func TestOnlyJobsWithLinesLeftAreParked(t *testing.T) {
	p := newPoller(t, newSlowModels(time.Second))
	b := p.createValid(t, "a", "k", 1)
	for name, park := range map[string]func(*job){
		"for its budget":          func(j *job) { j.parkWaiting(time.Now().Add(time.Minute)) },
		"for an earlier deadline": (*job).yield,
		"for the turn of another": (*job).parkForTurn,
	} {
		for _, left := range []int64{0, 1} {
			r := p.newRecorder(t, &b)
			r.left.Store(left)
			r.waiting, r.blocked = waiting{Reason: proxy.WaitsForBudget}, true
			if park(r.job); (r.ctx.Err() != nil) != (left > 0) {
				t.Errorf("%s with %d lines left: it is parked: %t", name, left, r.ctx.Err() != nil)
			}
		}
	}
}

// A batch that has got another status since its job was to be parked does not become a row.
func TestBatchThatIsCancelledWhileItIsParkedEnds(t *testing.T) {
	p := newPoller(t, newSlowModels(time.Second))
	b := p.createValid(t, "a", "k", 1)
	r := p.newRecorder(t, &b)
	r.waiting = waiting{Reason: proxy.WaitsForBudget}
	r.parkForTurn()
	_, err := p.CancelOf(t.Context(), "", b.ID)
	must(t, err)
	must(t, r.record(t.Context()))
	if b := p.row(t, b.ID); b.Status != StatusCancelled || b.Failed != 1 {
		t.Errorf("the batch is %s with %d failures", b.Status, b.Failed)
	}
}

// A poll that finds that a batch is cancelled may find too that it is to make room: also while its recorder ends it.
func TestCancelledJobIsNotParked(t *testing.T) {
	p := newPoller(t, newSlowModels(time.Second))
	for name, park := range map[string]func(*job){"for an earlier deadline": (*job).yield, "for the turn of another": (*job).parkForTurn} {
		for _, meanwhile := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, meanwhile %t", name, meanwhile), func(t *testing.T) {
				b := p.createValid(t, "a", "k", 1)
				r := p.newRecorder(t, &b)
				r.cancel(errCancelled)
				var parking sync.WaitGroup
				parking.Go(func() { park(r.job) })
				if !meanwhile {
					parking.Wait()
				}
				must(t, r.record(t.Context()))
				parking.Wait()
				if b := p.row(t, b.ID); b.Status != StatusCancelled || b.parkedAt != 0 {
					t.Errorf("the batch is %s, parked at %d", b.Status, b.parkedAt)
				}
			})
		}
	}
}

// However many batches of a key its budget has refused, others of the key are found.
func TestParkedBatchIsFoundBehindManyThatAreNotDue(t *testing.T) {
	g := startService(t)
	resets := time.Now().Add(time.Hour).Truncate(time.Second)
	g.set("k", proxy.Standing{Reason: proxy.WaitsForBudget, ResetsAt: resets, Caps: 1})
	id := g.create(t, 1)
	poll.Until(t, "the batch is parked", func() bool { return g.cluster.number(t, `SELECT count(*) FROM batches WHERE parked_at > 0`) == 1 })
	b, err := findBatch(t.Context(), g.db.Read(), "", id)
	must(t, err)
	must(t, g.write(t.Context(), func(ctx context.Context, tx database.Tx) error {
		for i := range maxParkedRead {
			refused := b
			refused.ID, refused.ExpiresAt = fmt.Sprintf("batch_%d", i), b.ExpiresAt-60
			if err := insertBatch(ctx, tx, &refused); err != nil {
				return err
			}
		}
		_, err := tx.ExecContext(ctx, `UPDATE batches SET parked_at = 1, waits_for = 'budget', resets_at = $1, parked_caps = 2 WHERE seq <> $2`,
			resets.Unix(), b.seq)
		return err
	}))
	g.set("k", proxy.Standing{Caps: 2})
	g.await(t, id, Completed)
}

// Also versions before have parked such rows.
func TestParkedBatchThatOnlyHasToEndIsDueWithoutABudget(t *testing.T) {
	for status, want := range map[Status]Status{Finalizing: Completed, Cancelling: StatusCancelled} {
		t.Run(string(status), func(t *testing.T) {
			g := startService(t)
			g.set("k", proxy.Standing{Reason: proxy.WaitsForBudget, ResetsAt: time.Now().Add(time.Hour).Truncate(time.Second), Caps: 1})
			id := g.create(t, 1)
			poll.Until(t, "the batch is parked", func() bool { return g.cluster.number(t, `SELECT count(*) FROM batches WHERE parked_at > 0`) == 1 })
			_, err := g.cluster.write(t, `DELETE FROM batch_lines`)
			must(t, err)
			_, err = g.cluster.write(t, `UPDATE batches SET completed = total, status = '`+string(status)+`'`)
			must(t, err)
			g.await(t, id, want)
		})
	}
}

// Each write of results is a part of their file, so lines that end one after another are written together.
func TestResultsOfFewLinesAreWrittenOnceASecond(t *testing.T) {
	timedService(t, newSlowModels(100*time.Millisecond), func(t *testing.T, s *Service) {
		id := s.createLines(t, "k", "24h", slices.Repeat([]string{"m"}, 50)...)
		time.Sleep(15 * time.Second)
		d := s.wantStatus(t, "with a line at a time", id, Completed)
		parts, err := partsOf(t.Context(), s.db.Read(), objectsOfFile, d.OutputFile)
		if must(t, err); len(parts) > 15 || d.Completed != 50 {
			t.Errorf("the results are %d parts of %+v, want one for each second", len(parts), d.toObject().Counts)
		}
	})
}
