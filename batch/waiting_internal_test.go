package batch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"basegate/budget/admission"
	"basegate/database"
	apierr "basegate/errors"
	"basegate/internal/databasetest"
	"basegate/internal/poll"
	"basegate/proxy"
)

// createFor creates a batch of n lines of a key.
func (g *testGateway) createFor(t *testing.T, account, key string, n int) string {
	t.Helper()
	b, err := g.Create(t.Context(), account, key, "lines.jsonl", "24h", strings.NewReader(inputLines(n)))
	must(t, err)
	return b.ID
}

// awaitReason waits until a batch says that it waits for something.
func (g *testGateway) awaitReason(t *testing.T, id string, reason proxy.WaitReason) (d Batch) {
	t.Helper()
	poll.Until(t, "the batch waits for "+string(reason), func() bool {
		var err error
		d, err = g.BatchOf(t.Context(), "", id)
		must(t, err)
		return d.WaitsFor() != nil && d.WaitsFor().Reason == reason
	})
	return d
}

func TestWaitingBatchesAreRowsOnly(t *testing.T) {
	const waiting = 30
	g := startService(t)
	resets := time.Now().Add(time.Hour).Truncate(time.Second)
	g.set("spent", proxy.Standing{Reason: proxy.WaitsForBudget, ResetsAt: resets, Caps: 1})
	for range waiting {
		g.createFor(t, "b", "spent", 1)
	}
	poll.Until(t, "all batches wait, and none is in memory", func() bool {
		return g.cluster.number(t, `SELECT count(*) FROM batches WHERE waits_for = 'budget' AND parked_at > 0`) == waiting && g.jobCount() == 0
	})
	all, _, err := g.BatchesOf(t.Context(), "", "", waiting)
	must(t, err)
	for i := range all {
		if w := all[i].WaitsFor(); w == nil || w.Reason != proxy.WaitsForBudget || w.ResetsAt == nil || *w.ResetsAt != resets.Unix() {
			t.Errorf("the command line says that a batch waits for %+v, want the budget until %d", w, resets.Unix())
		}
	}
	g.await(t, g.create(t, 1), Completed) // of another account

	g.set("spent", proxy.Standing{Caps: 2}) // the cap was raised
	poll.Until(t, "all batches have run", func() bool {
		return g.cluster.number(t, `SELECT count(*) FROM batches WHERE status = 'completed'`) == waiting+1
	})
}

// The poller has read from a job what it waits for, and writes it when the job has parked its batch for something else.
func TestWhatAParkedBatchWaitsForIsNotOverwritten(t *testing.T) {
	g := startService(t)
	resets := time.Now().Add(time.Hour).Truncate(time.Second)
	g.set("k", proxy.Standing{Reason: proxy.WaitsForBudget, ResetsAt: resets, Caps: 1})
	id := g.create(t, 1)
	poll.Until(t, "the batch is parked", func() bool { return g.cluster.number(t, `SELECT count(*) FROM batches WHERE parked_at > 0`) == 1 })
	b := g.row(t, id)
	must(t, g.write(t.Context(), func(ctx context.Context, tx database.Tx) error {
		return setWait(ctx, tx, b.seq, waiting{Reason: proxy.WaitsForCapacity})
	}))
	if w := g.row(t, id).Wait; w != (waiting{proxy.WaitsForBudget, resets.Unix()}) {
		t.Errorf("the row says that the batch waits for %+v, want the budget until %d", w, resets.Unix())
	}
}

func TestFewBatchesOfAnAccountAreInMemory(t *testing.T) {
	g := startService(t)
	settings := testSettings
	settings.PerBackend = 0
	g.Reload(settings)
	for range 12 {
		g.create(t, 1)
	}
	poll.Until(t, "batches wait for a backend", func() bool {
		if n := g.jobCount(); n > maxActiveOwned {
			t.Fatalf("%d batches of one account are in memory, want at most %d", n, maxActiveOwned)
		}
		return g.cluster.number(t, `SELECT count(*) FROM batches WHERE waits_for = 'capacity'`) == maxActiveOwned
	})
	g.Reload(testSettings)
	poll.Until(t, "all batches have run", func() bool {
		return g.cluster.number(t, `SELECT count(*) FROM batches WHERE status = 'completed'`) == 12
	})
}

func TestBatchSaysThatItWaitsForItsKeyOrAccount(t *testing.T) {
	const lines = 20
	g := startService(t)
	g.set("k", proxy.Standing{Reason: proxy.WaitsForKey})
	id := g.create(t, lines)
	if d := g.awaitReason(t, id, proxy.WaitsForKey); d.Status != Validating {
		t.Errorf("the batch of a paused key is %s", d.Status)
	}
	g.set("k", proxy.Standing{Reason: proxy.WaitsForAccount})
	g.awaitReason(t, id, proxy.WaitsForAccount)
	g.setCold(true)
	g.set("k", proxy.Standing{})
	poll.Until(t, "the batch is validated", func() bool { d, err := g.BatchOf(t.Context(), "", id); must(t, err); return d.Status == InProgress })
	g.set("k", proxy.Standing{Reason: proxy.WaitsForKey})
	g.awaitReason(t, id, proxy.WaitsForKey)
	poll.Until(t, "the batch is not in memory", func() bool { return g.jobCount() == 0 })
	serve := g.hold(1)
	defer serve()
	g.setCold(false)
	g.set("k", proxy.Standing{})
	poll.Until(t, "a line has ended and others run", func() bool {
		b := g.row(t, id)
		return b.Completed == 1 && b.Wait.Reason == "" && g.serving.Load() > 0
	})
	g.set("k", proxy.Standing{Reason: proxy.WaitsForKey})
	serve()
	if d := g.awaitReason(t, id, proxy.WaitsForKey); d.Status != InProgress || d.Completed == lines {
		t.Errorf("the batch of a key that was paused while lines ran is %s with %d results", d.Status, d.Completed)
	}
	g.set("k", proxy.Standing{})
	g.checkResults(t, g.await(t, id, Completed), lines)
}

// A key that was paused may be without a budget when it is resumed.
func TestParkedBatchIsValidatedWithoutABudget(t *testing.T) {
	g := startService(t)
	resets := time.Now().Add(time.Hour).Truncate(time.Second)
	g.set("k", proxy.Standing{Reason: proxy.WaitsForBudget, ResetsAt: resets, Caps: 1})
	g.awaitReason(t, g.create(t, 1), proxy.WaitsForBudget)
	g.set("k", proxy.Standing{Reason: proxy.WaitsForKey, Caps: 1})
	id := g.create(t, 1)
	poll.Until(t, "both are parked", func() bool { return g.cluster.number(t, `SELECT count(*) FROM batches WHERE parked_at > 0`) == 2 })
	g.set("k", proxy.Standing{Reason: proxy.WaitsForBudget, ResetsAt: resets, Caps: 1})
	poll.Until(t, "the second is validated", func() bool { return g.row(t, id).Status == InProgress })
}

func TestRevokedKeyEndsItsBatches(t *testing.T) {
	g := startService(t)
	settings := testSettings
	settings.PerBackend = 2
	g.Reload(settings)
	defer g.hold(5)()
	g.set("spent", proxy.Standing{Reason: proxy.WaitsForBudget})
	running, waiting := g.createFor(t, "a", "k", 20), g.createFor(t, "b", "spent", 3)
	g.awaitReason(t, waiting, proxy.WaitsForBudget)
	poll.Until(t, "the first results are recorded", func() bool { return g.cluster.number(t, `SELECT max(completed) FROM batches`) == 5 })
	for _, key := range []string{"k", "spent"} {
		g.set(key, proxy.Standing{Reason: proxy.WaitsForKey, Revoked: true})
	}
	for id, unstarted := range map[string]int{running: 13, waiting: 3} {
		d := g.await(t, id, StatusCancelled)
		if d.Total != d.Completed+d.Failed || d.ErrorFile == "" {
			t.Fatalf("the counts are %+v", d.toObject().Counts)
		}
		text := g.text(t, d.ErrorFile)
		if n := strings.Count(text, `"error":{"code":"batch_cancelled","message":"the key was revoked"}`); n != unstarted {
			t.Errorf("%d lines say that the key was revoked, want %d:\n%s", n, unstarted, text)
		}
	}
	validating := g.createFor(t, "a", "k", 1)
	if d := g.await(t, validating, Failed); d.Errors[0].Message != "the key was revoked" {
		t.Errorf("the errors of a batch that was not validated are %+v", d.Errors)
	}
}

// text returns the content of a file.
func (g *testGateway) text(t *testing.T, id string) string {
	t.Helper()
	response, err := g.call(t, "GET", "/v1/files/"+id+"/content", "")
	if err != nil { // of another account than "a"
		content, err := g.Content(t.Context(), id)
		must(t, err)
		defer content.Close()
		var text strings.Builder
		buffer := make([]byte, 1<<16)
		for err == nil {
			var n int
			n, err = content.Read(buffer)
			text.Write(buffer[:n])
		}
		return text.String()
	}
	return response.Body.String()
}

func TestUnfinishedBatchesOfAnAccountAreLimited(t *testing.T) {
	const limit = 5
	g := startService(t)
	settings := testSettings
	settings.MaxUnfinished = limit
	g.Reload(settings)
	serve := g.hold(0)
	defer serve()
	body := batchBody(g.upload(t, 1).ID)
	var created atomic.Int64
	var creating sync.WaitGroup
	for range 3 * limit {
		creating.Go(func() {
			_, err := g.call(t, "POST", "/v1/batches", body)
			if err == nil {
				created.Add(1)
				return
			}
			wantCode(t, "one batch too many", err, apierr.TooManyBatches)
			if e := apierr.From(err); e.Status() != 429 || len(e.Extras) != 1 || e.Extras[0].Name != "limit" || e.Extras[0].Value != limit {
				t.Errorf("the error is %d with %v", e.Status(), e.Extras)
			}
		})
	}
	creating.Wait()
	if n := created.Load(); n != limit {
		t.Errorf("%d batches were created, want %d", n, limit)
	}
	g.createFor(t, "another", "k2", 1)
	serve()
	poll.Until(t, "the batches have ended", func() bool {
		return g.cluster.number(t, `SELECT count(*) FROM batches WHERE status = 'completed'`) == limit+1
	})
	if _, err := g.call(t, "POST", "/v1/batches", body); err != nil {
		t.Errorf("a batch after the end of the others: %v", err)
	}
}

func TestFilesOfAnAccountAreLimited(t *testing.T) {
	g := startService(t)
	settings := testSettings
	settings.MaxAccountFiles = 2
	g.Reload(settings)
	first, second := g.upload(t, 1), g.upload(t, 1)
	body, kind := formOf(t, inputLines(1))
	_, err := g.call(t, "POST", "/v1/files", body, "Content-Type", kind)
	wantCode(t, "one file too many", err, apierr.StorageQuotaExceeded)
	want := []apierr.Extra{{Name: "limit_bytes", Value: settings.MaxAccountBytes}, {Name: "used_bytes", Value: first.Bytes + second.Bytes}, {Name: "limit", Value: 2}}
	if got := apierr.From(err).Extras; !slices.Equal(got, want) {
		t.Errorf("the error has %v, want %v", got, want)
	}
	must(t, g.DeleteOf(t.Context(), "a", first.ID))
	g.upload(t, 1)
}

func TestResultsAreKeptFromTheEndOfTheirBatch(t *testing.T) {
	g := startService(t)
	serve := g.hold(2)
	defer serve()
	settings := testSettings
	settings.PerBackend = 1
	g.Reload(settings)
	id := g.create(t, 5)
	poll.Until(t, "the first results are recorded", func() bool { return g.cluster.number(t, `SELECT completed FROM batches`) == 2 })
	d, err := g.BatchOf(t.Context(), "", id)
	must(t, err)
	var f fileObject
	if g.get(t, &f, "GET", "/v1/files/"+d.OutputFile, ""); f.ExpiresAt != nil {
		t.Errorf("results of a batch that runs expire at %d", *f.ExpiresAt)
	}
	_, err = g.cluster.write(t, `UPDATE files SET expires_at = 1 WHERE purpose = 'batch_output'`) // the batch has run longer
	must(t, err)
	serve()
	d = g.await(t, id, Completed)
	must(t, g.sweepOnce(t.Context(), map[string]time.Time{}))
	g.get(t, &f, "GET", "/v1/files/"+d.OutputFile, "")
	if f.ExpiresAt == nil || *f.ExpiresAt < d.CompletedAt+3600-1 || *f.ExpiresAt > d.CompletedAt+3600+60 {
		t.Errorf("the results expire at %v, want an hour after %d", f.ExpiresAt, d.CompletedAt)
	}
	g.checkResults(t, d, 5)
}

// checkedGateway starts a gateway whose checks of lines are the test's.
func checkedGateway(t *testing.T, check func(ctx context.Context, account string, body []byte) error) *testGateway {
	t.Helper()
	g := startService(t)
	settings := testSettings
	settings.MaxFileBytes, settings.MaxAccountBytes, settings.MaxBodyBytes = 100<<20, 100<<20, 1<<20
	g.Reload(settings)
	g.testCompleter.mu.Lock()
	g.check = check
	g.testCompleter.mu.Unlock()
	return g
}

// largeLines returns n lines of 64 KiB.
func largeLines(n int) string {
	var file strings.Builder
	for i := range n {
		fmt.Fprintf(&file, `{"custom_id":"%d","method":"POST","url":"/v1/completions","body":{"prompt":"%s"}}`+"\n", i, strings.Repeat("x", 64<<10))
	}
	return file.String()
}

func TestValidationsTakeTurnsBetweenAccounts(t *testing.T) {
	const lines = 100
	var g *testGateway
	other := make(chan struct{}) // closed when the other account's line is checked
	var checked atomic.Int64
	var before atomic.Bool
	g = checkedGateway(t, func(_ context.Context, account string, _ []byte) error {
		if account != "a" {
			close(other)
			return nil
		}
		switch checked.Add(1) {
		case 1:
			g.createFor(t, "b", "k2", 1)
			poll.Until(t, "the other validation waits for its turn", func() bool { return g.validations.Stats().Waiting > 0 })
		case lines:
			select {
			case <-other:
				before.Store(true)
			default:
			}
		}
		return nil
	})
	b, err := g.Create(t.Context(), "a", "k", "lines.jsonl", "24h", strings.NewReader(largeLines(lines)))
	must(t, err)
	g.await(t, b.ID, Completed)
	if !before.Load() {
		t.Error("the file of one line was validated after the large one of another account")
	}
}

func TestCancelledValidationStops(t *testing.T) {
	began := make(chan struct{})
	g := checkedGateway(t, func(ctx context.Context, _ string, body []byte) error {
		if strings.Contains(string(body), "line 10\"") {
			close(began)
			<-ctx.Done()
		}
		return nil
	})
	id := g.create(t, 30)
	<-began
	g.get(t, new(any), "POST", "/v1/batches/"+id+"/cancel", "")
	d := g.await(t, id, StatusCancelled)
	if d.Total != 0 || d.Failed != 0 || d.ErrorFile != "" {
		t.Errorf("a batch that was cancelled while it was validated has the counts %+v", d.toObject().Counts)
	}
	if n := g.cluster.number(t, `SELECT count(*) FROM batch_lines`); n != 0 {
		t.Errorf("%d lines are left", n)
	}
}

// frugalCompleter has a model that does not run, and a budget that suffices for no line.
type frugalCompleter struct {
	mu       sync.Mutex
	standing proxy.Standing
	fits     bool
	boots    int
}

var errNeverSent = errors.New("a line has a place though its model does not run")

func (c *frugalCompleter) AcquirePlace(_ string, _ int, start bool) (proxy.Place, proxy.WaitReason) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if start {
		c.boots++
	}
	return nil, proxy.WaitsForModel
}

func (c *frugalCompleter) Standing(string) proxy.Standing {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.standing
}

func (*frugalCompleter) Allocate(string) admission.Allocation { return admission.Allocation{} }

func (*frugalCompleter) Checker(context.Context, string, string, bool) (proxy.LineCheck, error) {
	return func(string, []byte) (proxy.CheckedLine, error) { return proxy.CheckedLine{Model: "m"}, nil }, nil
}

func (c *frugalCompleter) ServeLine(_ context.Context, l proxy.Line) proxy.LineResult {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case l.Place != nil:
		panic(errNeverSent)
	case c.fits:
		return proxy.LineResult{State: proxy.LineWaits, Reason: proxy.WaitsForModel, Release: func() {}}
	}
	return proxy.LineResult{State: proxy.LineWaits, Reason: proxy.WaitsForBudget, ResetsAt: time.Now().Add(24 * time.Hour), Release: func() {}}
}

// A batch that cannot run starts no model, however long it waits; one that can does.
func TestBatchThatCannotRunStartsNoModel(t *testing.T) {
	databasetest.SkipPostgres(t, "its clock does not follow that of the test")
	for _, c := range []struct {
		name     string
		standing proxy.Standing
		reason   proxy.WaitReason
	}{
		{"lines over the rest of the budget", proxy.Standing{}, proxy.WaitsForBudget},
		{"spent budget", proxy.Standing{Reason: proxy.WaitsForBudget}, proxy.WaitsForBudget},
		{"paused key", proxy.Standing{Reason: proxy.WaitsForKey}, proxy.WaitsForKey},
		{"disabled account", proxy.Standing{Reason: proxy.WaitsForAccount}, proxy.WaitsForAccount},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				db, store := openSQLite(t, dir)
				settings := testSettings
				settings.StartModels = true
				completer := &frugalCompleter{}
				s := New(db, store, completer, settings, zap.NewNop())
				must(t, s.Start(t.Context()))
				defer s.Close()
				b, err := s.Create(t.Context(), "a", "k", "lines.jsonl", "24h", strings.NewReader(inputLines(5)))
				must(t, err)
				completer.mu.Lock()
				completer.standing = c.standing
				completer.mu.Unlock()
				pass(10 * time.Minute)
				completer.mu.Lock()
				if completer.boots != 0 {
					t.Errorf("the model was started %d times", completer.boots)
				}
				completer.standing, completer.fits = proxy.Standing{Caps: 1}, true
				completer.mu.Unlock()
				d, err := s.BatchOf(t.Context(), "", b.ID)
				must(t, err)
				if d.WaitsFor() == nil || d.WaitsFor().Reason != c.reason || s.jobCount() != 0 {
					t.Errorf("the batch waits for %+v with %d jobs, want %s and none", d.WaitsFor(), s.jobCount(), c.reason)
				}
				pass(10 * time.Second)
				completer.mu.Lock()
				if completer.boots == 0 {
					t.Error("the model was not started for a line that fits")
				}
				completer.mu.Unlock()
				d, err = s.BatchOf(t.Context(), "", b.ID)
				must(t, err)
				if d.WaitsFor() == nil || d.WaitsFor().Reason != proxy.WaitsForModel {
					t.Errorf("the batch waits for %+v, want the model", d.WaitsFor())
				}
			})
		})
	}
}

// twoModels has one model without room, and one with.
type twoModels struct {
	frugalCompleter
	free bool // the first has room too
}

func (m *twoModels) AcquirePlace(model string, _ int, _ bool) (proxy.Place, proxy.WaitReason) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if model == "full" && !m.free {
		return nil, proxy.WaitsForCapacity
	}
	return freePlace{}, ""
}

func (*twoModels) Checker(context.Context, string, string, bool) (proxy.LineCheck, error) {
	return func(_ string, body []byte) (proxy.CheckedLine, error) {
		if strings.Contains(string(body), "full") {
			return proxy.CheckedLine{Model: "full"}, nil
		}
		return proxy.CheckedLine{Model: "free"}, nil
	}, nil
}

func (*twoModels) ServeLine(context.Context, proxy.Line) proxy.LineResult {
	return proxy.LineResult{RequestID: "r", Status: 200, Body: []byte(`{}`), Release: func() {}}
}

// Batches that wait for one model do not keep those for another model out of memory for ever.
func TestBatchesThatWaitForABackendTakeTurns(t *testing.T) {
	databasetest.SkipPostgres(t, "its clock does not follow that of the test")
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		db, store := openSQLite(t, dir)
		models := &twoModels{}
		s := New(db, store, models, testSettings, zap.NewNop())
		must(t, s.Start(t.Context()))
		defer s.Close()
		create := func(prompt, window string) string {
			line := fmt.Sprintf(`{"custom_id":"1","method":"POST","url":"/v1/completions","body":{"prompt":%q}}`, prompt)
			b, err := s.Create(t.Context(), "a", "k", "lines.jsonl", window, strings.NewReader(line))
			must(t, err)
			return b.ID
		}
		for range 2 * maxActiveOwned {
			create("full", "12h")
		}
		pass(5 * time.Second)
		last := create("free", "24h")
		pass(time.Minute)
		d, err := s.BatchOf(t.Context(), "", last)
		must(t, err)
		if d.Status != Completed {
			t.Errorf("the batch for the model with room is %s", d.Status)
		}
		models.mu.Lock()
		models.free = true // also batches have room that are parked
		models.mu.Unlock()
		pass(time.Minute)
		if n, err := countUnfinished(t.Context(), db.Read(), "a"); err != nil || n != 0 {
			t.Errorf("%d batches have not ended though both models have room, %v", n, err)
		}
	})
}
