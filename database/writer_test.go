package database_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"go.uber.org/zap"

	"basegate/database"
)

// block keeps the writer busy until the function it returns is called, so that what is submitted meanwhile makes one
// batch.
func block(t *testing.T, db *database.DB) (release func()) {
	t.Helper()
	entered, leave := make(chan struct{}), make(chan struct{})
	blocked := db.Submit(func(database.Tx) error {
		close(entered)
		<-leave
		return nil
	})
	<-entered
	return func() {
		close(leave)
		must(t, blocked.Wait(t.Context()))
	}
}

var errOwn = errors.New("the function's own")

func TestAFailureInABatchSpoilsNothing(t *testing.T) {
	db := openNotes(t, database.Settings{})
	release := block(t, db)
	failing := map[string]*database.Pending{}
	var good []*database.Pending
	var none map[string]func() error // so that its functions are nil
	half := func(id int, then func() error) func(database.Tx) error {
		return func(tx database.Tx) error {
			if err := note(id)(tx); err != nil {
				return err
			}
			return then()
		}
	}
	good = append(good, db.Submit(note(1)))
	failing["own error"] = db.Submit(half(100, func() error { return errOwn }))
	good = append(good, db.Submit(note(2)))
	failing["unique"] = db.Submit(func(tx database.Tx) error { return errors.Join(note(101)(tx), note(1)(tx)) })
	failing["panic"] = db.Submit(half(102, func() error { panic("a secret") }))
	failing["nil function"] = db.Submit(half(103, func() error { return none["x"]() }))
	good = append(good, db.SubmitOne(executeOne("INSERT INTO notes (text, id) VALUES ($2, $1)", 3, "note")))
	failing["of one statement"] = db.SubmitOne(executeOne("INSERT INTO notes (text, id) VALUES ('note', 104), ('note', 1)"))
	failing["panic before one statement"] = db.SubmitOne(func(database.Execer) error { panic("a secret") })
	failing["no parameter"] = db.SubmitOne(executeOne("INSERT INTO notes (text, id) VALUES ('note', $1)", struct{}{}))
	failing["syntax"] = db.Submit(execute("INSERT INTO nothing"))
	good = append(good, db.Submit(note(4)))
	release()
	for _, p := range good {
		must(t, p.Wait(t.Context()))
	}
	for name, p := range failing {
		if err := p.Wait(t.Context()); err == nil || errors.Is(err, database.ErrUnavailable) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if err := failing["own error"].Wait(t.Context()); !errors.Is(err, errOwn) {
		t.Errorf("its own error became %v", err)
	}
	if err := failing["unique"].Wait(t.Context()); !database.IsUnique(err) {
		t.Errorf("not recognised as a repeated key: %v", err)
	}
	if err := failing["panic"].Wait(t.Context()); strings.Contains(err.Error(), "secret") {
		t.Errorf("a panic's value is shown: %v", err)
	}
	var known runtime.Error
	if err := failing["nil function"].Wait(t.Context()); !errors.As(err, &known) {
		t.Errorf("the runtime's panic is hidden: %v", err)
	}
	if n := count(t, db, "id < 100"); n != 4 {
		t.Errorf("%d of 4 good writes are there", n)
	}
	if n := count(t, db, "id >= 100"); n != 0 {
		t.Errorf("%d failed writes left something", n)
	}
}

// Alone in a transaction there is no savepoint to go back to.
func TestAFailureAloneIsUndone(t *testing.T) {
	db := openNotes(t, database.Settings{})
	for name, write := range map[string]func(context.Context, func(database.Tx) error) error{"write": db.WriteExclusive, "batch": db.WriteGrouped} {
		err := write(t.Context(), func(tx database.Tx) error { return errors.Join(note(1)(tx), errOwn) })
		if !errors.Is(err, errOwn) {
			t.Errorf("%s: got %v", name, err)
		}
		err = write(t.Context(), func(tx database.Tx) error { _ = note(2)(tx); panic("a secret") })
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if n := count(t, db, "true"); n != 0 {
		t.Errorf("%d failed writes left something", n)
	}
}

// A function that ends the transaction itself must not make the others believe that they are on disk.
func TestAFunctionThatEndsTheTransactionFailsTheBatch(t *testing.T) {
	db := openNotes(t, database.Settings{})
	release := block(t, db)
	before, rogue, after := db.Submit(note(1)), db.Submit(func(tx database.Tx) error {
		_, err := tx.ExecContext(t.Context(), "ROLLBACK")
		return err
	}), db.Submit(note(2))
	release()
	for name, p := range map[string]*database.Pending{"before": before, "rogue": rogue, "after": after} {
		if err := p.Wait(t.Context()); !errors.Is(err, database.ErrUnavailable) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	must(t, db.WriteGrouped(t.Context(), note(3)))
	if n := count(t, db, "true"); n != 1 {
		t.Errorf("%d notes, want 1", n)
	}
}

func TestWritesAreAppliedInOrder(t *testing.T) {
	db := openNotes(t, database.Settings{})
	release := block(t, db)
	var order []int // only the writer appends
	var all []*database.Pending
	written := make(chan error, 1)
	for i := range 1200 {
		all = append(all, db.Submit(func(tx database.Tx) error { order = append(order, i); return note(i)(tx) }))
	}
	go func() {
		written <- db.WriteExclusive(t.Context(), func(database.Tx) error { order = append(order, 1200); return nil })
	}()
	release()
	for _, p := range all {
		must(t, p.Wait(t.Context()))
	}
	must(t, <-written)
	for i, got := range order {
		if got != i {
			t.Fatalf("number %d was applied as number %d", got, i)
		}
	}
}

func TestACommitIsVisibleWhenBatchReturns(t *testing.T) {
	db := openNotes(t, database.Settings{})
	var all sync.WaitGroup
	for worker := range 8 {
		all.Go(func() {
			for i := range 20 {
				id := worker*100 + i
				if err := db.WriteGrouped(t.Context(), note(id)); err != nil {
					t.Error(err)
				}
				if count(t, db, fmt.Sprintf("id = %d", id)) != 1 {
					t.Errorf("%d is not there", id)
				}
			}
		})
	}
	all.Wait()
}

// An INSERT that is interrupted takes the whole transaction with it, so a context that ends must not interrupt one.
func TestAnEndedContextDoesNotHarmTheOthers(t *testing.T) {
	db := openNotes(t, database.Settings{})
	release := block(t, db)
	ctx, cancel := context.WithCancelCause(t.Context())
	inserting := make(chan struct{})
	slow := db.Submit(func(tx database.Tx) error {
		close(inserting)
		_, err := tx.ExecContext(ctx, `
			INSERT INTO notes (id, text)
			WITH RECURSIVE n (i) AS (SELECT 1000 UNION ALL SELECT i + 1 FROM n WHERE i < 300000)
			SELECT i, 'x' FROM n`)
		return err
	})
	other := db.Submit(note(1))
	release()
	<-inserting
	cancel(errOwn)
	if err := slow.Wait(ctx); err != nil && !errors.Is(err, errOwn) {
		t.Errorf("waiting with an ended context: %v", err)
	}
	must(t, other.Wait(t.Context()))
	<-slow.Done()
	if n := count(t, db, "id = 1"); n != 1 {
		t.Error("the other write is lost")
	}
}

func TestCloseCommitsWhatWasSubmitted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "base.db")
	db, err := database.Open(t.Context(), database.Settings{Path: path}, zap.NewNop())
	must(t, err)
	makeNotes(t, db)
	accepted := make([]int, 8)
	var all sync.WaitGroup
	started := make(chan struct{}, len(accepted))
	for worker := range accepted {
		all.Go(func() {
			for i := 0; ; i++ {
				err := db.WriteGrouped(t.Context(), note(worker*1_000_000+i))
				if errors.Is(err, database.ErrClosed) {
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
				if accepted[worker]++; i == 3 {
					started <- struct{}{}
				}
			}
		})
	}
	for range accepted {
		<-started
	}
	must(t, db.Close())
	must(t, db.Close())
	all.Wait()
	if err := db.WriteExclusive(t.Context(), note(1)); !errors.Is(err, database.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	want := 0
	for _, n := range accepted {
		want += n
	}
	if got := count(t, open(t, path), "true"); got != want {
		t.Errorf("%d notes on disk, %d were confirmed", got, want)
	}
}
