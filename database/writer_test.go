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

// block keeps the leader busy until release is called, so that the writes submitted meanwhile form one batch.
func block(t *testing.T, db *database.DB) (release func()) {
	t.Helper()
	started, unblock := make(chan struct{}), make(chan struct{})
	blocked := db.Submit(func(database.Tx) error {
		close(started)
		<-unblock
		return nil
	})
	<-started
	return func() {
		close(unblock)
		must(t, blocked.Wait(t.Context()))
	}
}

var errTest = errors.New("a test's error")

func TestAFailedWriteInABatchDoesNotAffectTheOthers(t *testing.T) {
	db := openNotes(t, database.Settings{})
	release := block(t, db)
	failing := map[string]*database.Pending{}
	var good []*database.Pending
	var noFunctions map[string]func() error // its values are nil functions
	insertThen := func(id int, then func() error) func(database.Tx) error {
		return func(tx database.Tx) error {
			if err := note(id)(tx); err != nil {
				return err
			}
			return then()
		}
	}
	good = append(good, db.Submit(note(1)))
	failing["own error"] = db.Submit(insertThen(100, func() error { return errTest }))
	good = append(good, db.Submit(note(2)))
	failing["unique"] = db.Submit(func(tx database.Tx) error { return errors.Join(note(101)(tx), note(1)(tx)) })
	failing["panic"] = db.Submit(insertThen(102, func() error { panic("a secret") }))
	failing["nil function"] = db.Submit(insertThen(103, func() error { return noFunctions["x"]() }))
	good = append(good, db.SubmitStatement(executeStatement("INSERT INTO notes (text, id) VALUES ($2, $1)", 3, "note")))
	failing["statement"] = db.SubmitStatement(executeStatement("INSERT INTO notes (text, id) VALUES ('note', 104), ('note', 1)"))
	failing["panic before the statement"] = db.SubmitStatement(func(database.Execer) error { panic("a secret") })
	failing["unsupported parameter"] = db.SubmitStatement(executeStatement("INSERT INTO notes (text, id) VALUES ('note', $1)", struct{}{}))
	failing["syntax"] = db.Submit(execute("INSERT INTO nothing"))
	good = append(good, db.Submit(note(4)))
	release()
	for _, p := range good {
		must(t, p.Wait(t.Context()))
	}
	for name, p := range failing {
		if err := p.Wait(t.Context()); err == nil || errors.Is(err, database.ErrUnavailable) {
			t.Errorf("%s: got error %v, want one that is not ErrUnavailable", name, err)
		}
	}
	if err := failing["own error"].Wait(t.Context()); !errors.Is(err, errTest) {
		t.Errorf("own error: got %v, want errTest", err)
	}
	if err := failing["unique"].Wait(t.Context()); !database.IsUnique(err) {
		t.Errorf("unique: IsUnique is false for %v", err)
	}
	if err := failing["panic"].Wait(t.Context()); strings.Contains(err.Error(), "secret") {
		t.Errorf("panic: the error shows the panic's value: %v", err)
	}
	var known runtime.Error
	if err := failing["nil function"].Wait(t.Context()); !errors.As(err, &known) {
		t.Errorf("nil function: got error %v, want one that wraps the runtime's", err)
	}
	if n := count(t, db, "id < 100"); n != 4 {
		t.Errorf("%d successful writes are in the table, want 4", n)
	}
	if n := count(t, db, "id >= 100"); n != 0 {
		t.Errorf("%d rows of failed writes are in the table, want 0", n)
	}
}

// A write alone in its transaction has no savepoint to roll back to.
func TestAFailedWriteAloneInItsTransactionIsRolledBack(t *testing.T) {
	db := openNotes(t, database.Settings{})
	for name, write := range map[string]func(context.Context, func(database.Tx) error) error{
		"WriteExclusive": db.WriteExclusive, "WriteGrouped": db.WriteGrouped,
	} {
		err := write(t.Context(), func(tx database.Tx) error { return errors.Join(note(1)(tx), errTest) })
		if !errors.Is(err, errTest) {
			t.Errorf("%s: got error %v, want errTest", name, err)
		}
		err = write(t.Context(), func(tx database.Tx) error { _ = note(2)(tx); panic("a secret") })
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: got error %v, want one without the panic's value", name, err)
		}
	}
	if n := count(t, db, "true"); n != 0 {
		t.Errorf("%d rows of failed writes are in the table, want 0", n)
	}
}

// A function that ends the transaction itself must not cause the other writes to be reported as committed.
func TestAWriteThatEndsTheTransactionFailsTheBatch(t *testing.T) {
	db := openNotes(t, database.Settings{})
	release := block(t, db)
	before, rogue, after := db.Submit(note(1)), db.Submit(func(tx database.Tx) error {
		_, err := tx.ExecContext(t.Context(), "ROLLBACK")
		return err
	}), db.Submit(note(2))
	release()
	for name, p := range map[string]*database.Pending{"before": before, "rogue": rogue, "after": after} {
		if err := p.Wait(t.Context()); !errors.Is(err, database.ErrUnavailable) {
			t.Errorf("%s: got error %v, want ErrUnavailable", name, err)
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
	var order []int // appended to by one leader at a time
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
			t.Fatalf("write %d was applied at position %d", got, i)
		}
	}
}

func TestWritesAreVisibleWhenWriteGroupedReturns(t *testing.T) {
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
					t.Errorf("note %d is not visible", id)
				}
			}
		})
	}
	all.Wait()
}

// SQLite rolls back the whole transaction if an INSERT is interrupted, so an ended context must not interrupt one.
func TestAnEndedContextDoesNotInterruptTheTransaction(t *testing.T) {
	db := openNotes(t, database.Settings{})
	release := block(t, db)
	ctx, cancel := context.WithCancelCause(t.Context())
	inserting := make(chan struct{})
	slow := db.Submit(func(tx database.Tx) error {
		close(inserting)
		_, err := tx.ExecContext(ctx, `
			INSERT INTO notes (id, text)
			WITH RECURSIVE n (i) AS (SELECT 1000 UNION ALL SELECT i + 1 FROM n WHERE i < 100000)
			SELECT i, 'x' FROM n`)
		return err
	})
	other := db.Submit(note(1))
	release()
	<-inserting
	cancel(errTest)
	must(t, slow.Wait(ctx))
	must(t, other.Wait(ctx))
	if n := count(t, db, "id = 1 OR id >= 1000"); n != 99002 {
		t.Errorf("%d notes, want those of both writes of the batch", n)
	}
}

func TestQueuedWriteIsCancelledWithItsContext(t *testing.T) {
	db := openNotes(t, database.Settings{})
	release := block(t, db)
	ctx, cancel := context.WithCancelCause(t.Context())
	before := db.Submit(note(1))
	results := make(chan error)
	for id := range 3 {
		p := db.Submit(func(tx database.Tx) error {
			t.Error("a cancelled write was applied")
			return note(10 + id)(tx)
		})
		go func() { results <- p.Wait(ctx) }()
	}
	after := db.Submit(note(2))
	cancel(errTest)
	for range 3 {
		if err := <-results; !errors.Is(err, database.ErrCancelled) || !errors.Is(err, errTest) {
			t.Errorf("a write in the queue: got error %v, want ErrCancelled with the cause", err)
		}
	}
	if err := db.WriteGrouped(ctx, note(13)); !errors.Is(err, database.ErrCancelled) {
		t.Errorf("a write with a context that has ended: got error %v, want ErrCancelled", err)
	}
	release()
	must(t, before.Wait(t.Context()))
	must(t, after.Wait(t.Context()))
	if n := count(t, db, "true"); n != 2 {
		t.Errorf("%d notes, want those of the two writes that were not cancelled", n)
	}
}

func TestStartedWriteReturnsItsOwnResultWhenItsContextEnds(t *testing.T) {
	db := openNotes(t, database.Settings{})
	for _, who := range []string{"its caller leads", "the writer leads"} {
		t.Run(who, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			started, finish, result := make(chan struct{}), make(chan struct{}), make(chan error)
			apply := func(database.Tx) error {
				close(started)
				<-finish
				return errTest
			}
			enqueue := db.Enqueue
			if who == "the writer leads" {
				enqueue = db.Submit
			}
			p := enqueue(apply)
			go func() {
				if who == "the writer leads" {
					<-started
				}
				result <- p.Wait(ctx)
			}()
			<-started
			cancel()
			close(finish)
			if err := <-result; !errors.Is(err, errTest) {
				t.Errorf("got error %v, want that of the write", err)
			}
		})
	}
}

// What a closure assigns belongs to its caller again when the write returns: the race detector watches it here.
func TestNoClosureRunsAfterItsCallerHasReturned(t *testing.T) {
	db := openNotes(t, database.Settings{})
	var all sync.WaitGroup
	for worker := range 16 {
		all.Go(func() {
			for i := range 40 {
				id, applied := worker*1000+i, 0
				ctx, cancel := context.WithCancel(t.Context())
				go cancel()
				err := db.WriteGrouped(ctx, func(tx database.Tx) error {
					applied++
					return note(id)(tx)
				})
				cancel()
				if stored := count(t, db, fmt.Sprintf("id = %d", id)); stored != applied || (err == nil) != (applied == 1) ||
					err != nil && !errors.Is(err, database.ErrCancelled) {
					t.Errorf("got error %v, applied %d times, with %d rows", err, applied, stored)
				}
			}
		})
	}
	all.Wait()
}

func TestCloseCommitsSubmittedWrites(t *testing.T) {
	path := filepath.Join(t.TempDir(), "base.db")
	db, err := database.Open(t.Context(), database.Settings{Path: path}, zap.NewNop())
	must(t, err)
	createNotes(t, db)
	confirmed := make([]int, 8)
	var all sync.WaitGroup
	started := make(chan struct{}, len(confirmed))
	for worker := range confirmed {
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
				if confirmed[worker]++; i == 3 {
					started <- struct{}{}
				}
			}
		})
	}
	for range confirmed {
		<-started
	}
	must(t, db.Close())
	must(t, db.Close())
	all.Wait()
	if err := db.WriteExclusive(t.Context(), note(1)); !errors.Is(err, database.ErrClosed) {
		t.Errorf("after Close: got error %v, want ErrClosed", err)
	}
	want := 0
	for _, n := range confirmed {
		want += n
	}
	if got := count(t, open(t, path), "true"); got != want {
		t.Errorf("%d notes on disk, %d were confirmed", got, want)
	}
}
