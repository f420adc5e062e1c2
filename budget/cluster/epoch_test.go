package cluster_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"basegate/budget"
	"basegate/budget/cluster"
	"basegate/budget/quota"
	"basegate/internal/poll"
)

// fence ends the epoch of a gateway, as a reaper does. The next one cannot begin until the function that it returns is called.
func fence(t *testing.T, db *testDatabase, l *cluster.Ledger) (release func()) {
	t.Helper()
	gateway, epoch := l.Identity()
	fenced := l.Fenced()
	blocker := connect(t, db.url)
	blocker.exec(t, `SELECT pg_advisory_lock_shared(25191, $1)`, gateway) // first, or the next one begins before at a beat
	blocker.exec(t, `SELECT ledger_leave_v1($1, $2)`, gateway, epoch)
	var called sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	called.Go(func() { _, _ = l.Reserve(ctx, payer, newRequest(), demand(1, 1), nil) }) // a call, which is fenced
	<-fenced
	cancel()
	called.Wait()
	return func() { blocker.exec(t, `SELECT pg_advisory_unlock_shared(25191, $1)`, gateway) }
}

func TestRequestBetweenTwoEpochsIsServedInTheSecond(t *testing.T) {
	db := newDatabase(t)
	l := start(t, db, cluster.Settings{Name: "gateway", Beat: time.Minute, Dead: time.Nanosecond})
	setOwners(t, l, 0, quota.Caps{})
	release := fence(t, db, l)
	began, reserved := make(chan struct{}), make(chan error, 1)
	go func() {
		close(began)
		r, err := l.Reserve(t.Context(), payer, newRequest(), demand(1, 1), nil)
		if err == nil {
			err = r.Settle(t.Context(), budget.Outcome{Prompt: 1, Completion: 1})
		}
		reserved <- err
	}()
	<-began
	release()
	if err := <-reserved; err != nil {
		t.Errorf("got %v, want a reservation in the next epoch", err)
	}
}

func TestRequestIsRefusedIfTheNextEpochDoesNotBegin(t *testing.T) {
	db := newDatabase(t)
	l := start(t, db, cluster.Settings{Name: "gateway", Beat: 20 * time.Millisecond})
	setOwners(t, l, 0, quota.Caps{})
	release := fence(t, db, l)
	if _, err := l.Reserve(t.Context(), payer, newRequest(), demand(1, 1), nil); !errors.Is(err, cluster.ErrFenced) {
		t.Errorf("got %v, want ErrFenced", err)
	}
	release()
	poll.Until(t, "requests are admitted again", func() bool {
		r, err := l.Reserve(t.Context(), payer, newRequest(), demand(1, 1), nil)
		if err == nil {
			r.Release()
		}
		return err == nil
	})
}
