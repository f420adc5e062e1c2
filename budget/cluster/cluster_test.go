package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"basegate/budget"
	"basegate/budget/cluster"
	"basegate/budget/quota"
	"basegate/budget/usage"
	"basegate/database"
	"basegate/internal/poll"
	"basegate/internal/postgrestest"
)

// payer is the key and the account of setOwners.
var payer = budget.Payer{Key: "key", Account: "acc"}

// setOwners records one key with its account.
func setOwners(tb testing.TB, l *cluster.Ledger, slots int, caps quota.Caps) {
	tb.Helper()
	must(tb, l.SetOwners(tb.Context(), []cluster.Owner{
		{ID: "acc", Enabled: true}, {ID: "key", Account: "acc", Enabled: true, Slots: slots, Caps: caps},
	}))
}

func reserve(tb testing.TB, l *cluster.Ledger, d budget.Demand) budget.Reservation {
	tb.Helper()
	r, err := l.Reserve(tb.Context(), payer, newRequest(), d, nil)
	must(tb, err)
	return r
}

func settle(tb testing.TB, r budget.Reservation, prompt, completion int64) {
	tb.Helper()
	must(tb, r.Settle(tb.Context(), budget.Outcome{Prompt: prompt, Completion: completion, Status: 200}))
}

func TestWaitersAreGrantedInTheOrderOfTheirTicketsAcrossGateways(t *testing.T) {
	db := newDatabase(t)
	first, second := start(t, db, cluster.Settings{Name: "first"}), start(t, db, cluster.Settings{Name: "second"})
	setOwners(t, first, 1, quota.Caps{})
	running := reserve(t, first, demand(1, 1))
	var waiting []*cluster.Admission
	for i := range 10 {
		ledger := []*cluster.Ledger{first, second}[i%2]
		a, kind, _, err := ledger.Submit(t, payer, newRequest(), demand(1, 1))
		if kind != "wait" {
			t.Fatalf("got %s, %v, want wait", kind, err)
		}
		if i > 0 && a.Ticket() <= waiting[i-1].Ticket() {
			t.Fatalf("got ticket %d after %d, want a later one", a.Ticket(), waiting[i-1].Ticket())
		}
		waiting = append(waiting, a)
	}
	waiting[3].Cancel()
	for i, a := range waiting {
		if i == 3 {
			continue
		}
		settle(t, running, 1, 1)
		var granted budget.Reservation
		poll.Until(t, fmt.Sprintf("waiter %d is granted", i), func() bool {
			_, r, err, ok := a.Decided()
			must(t, err)
			granted = r
			return ok
		})
		for j, later := range waiting[i+1:] {
			if kind, _, _, ok := later.Decided(); ok {
				t.Fatalf("waiter %d is decided (%s) while waiter %d runs", i+1+j, kind, i)
			}
		}
		running = granted
	}
	settle(t, running, 1, 1)
}

func TestOnlyGrantsToAnotherGatewayNotify(t *testing.T) {
	db := newDatabase(t)
	first, second := start(t, db, cluster.Settings{Name: "first"}), start(t, db, cluster.Settings{Name: "second"})
	setOwners(t, first, 1, quota.Caps{})
	listener := connect(t, db.url).conn
	for _, l := range []*cluster.Ledger{first, second} {
		gateway, _ := l.Identity()
		_, err := listener.Exec(t.Context(), fmt.Sprintf("LISTEN basegate_gateway_%d", gateway))
		must(t, err)
	}
	running := reserve(t, first, demand(1, 1))
	own, _, _, _ := first.Submit(t, payer, newRequest(), demand(1, 1))
	other, _, _, _ := second.Submit(t, payer, newRequest(), demand(1, 1))
	settle(t, running, 1, 1)
	_, ownReservation, _, ok := own.Decided()
	if !ok {
		t.Fatal("the waiter of the gateway that settled is not decided by the settlement's reply")
	}
	settle(t, ownReservation, 1, 1)
	notification, err := listener.WaitForNotification(t.Context())
	must(t, err)
	gateway, _ := second.Identity()
	if want := fmt.Sprintf("basegate_gateway_%d", gateway); notification.Channel != want {
		t.Errorf("got a notification of %s, want %s", notification.Channel, want)
	}
	poll.Until(t, "the other gateway's waiter is granted", func() bool { _, _, _, ok := other.Decided(); return ok })
}

// Every settlement of the account decides again on what waits, also while nothing of it can get a slot of the account.
func TestLinesTakeNoTokensThatARequestWithoutASlotWaitsFor(t *testing.T) {
	db := newDatabase(t)
	l := start(t, db, cluster.Settings{Name: "gateway"})
	other := budget.Payer{Key: "other", Account: payer.Account}
	must(t, l.SetOwners(t.Context(), []cluster.Owner{
		{ID: payer.Account, Enabled: true, Slots: 1},
		{ID: other.Key, Account: payer.Account, Enabled: true},
		{ID: payer.Key, Account: payer.Account, Enabled: true, Caps: quota.Caps{quota.MonthTotal: quota.Limit(100)}},
	}))
	ofKey, err := tryLine(t, l, payer, 80)
	must(t, err)
	ofOther, err := tryLine(t, l, other, 10)
	must(t, err)
	running, err := l.Reserve(t.Context(), other, newRequest(), demand(0, 10), nil)
	must(t, err)
	first, _, _, _ := l.Submit(t, other, newRequest(), demand(0, 10))
	second, _, _, _ := l.Submit(t, payer, newRequest(), demand(0, 60))
	settle(t, ofOther, 0, 10)
	if _, err := tryLine(t, l, payer, 20); !errors.Is(err, budget.ErrReserved) {
		t.Errorf("a line beside a request that waits for its tokens: got error %v, want ErrReserved", err)
	}
	settle(t, running, 0, 10)
	settle(t, ofKey, 0, 0)
	_, firstReservation, _, ok := first.Decided()
	if _, _, _, early := second.Decided(); !ok || early {
		t.Fatalf("decided: %v, %v; want only the first request", ok, early)
	}
	settle(t, firstReservation, 0, 10)
	_, secondReservation, _, ok := second.Decided()
	if !ok {
		t.Fatal("the request waits although its slot and its tokens are free")
	}
	last, err := tryLine(t, l, payer, 20)
	must(t, err)
	settle(t, last, 0, 20)
	settle(t, secondReservation, 0, 60)
}

// A settlement evaluates only the first of those that wait for a slot: what others wait for stays theirs.
func TestLinesTakeNoTokensThatARequestBehindOneWithoutASlotWaitsFor(t *testing.T) {
	other := budget.Payer{Key: "other", Account: payer.Account}
	for _, c := range []struct {
		name         string
		account, key cluster.Owner // of payer
		first        budget.Payer
	}{
		{"tokens of an account without a slot", cluster.Owner{Slots: 1, Caps: quota.Caps{quota.MonthTotal: quota.Limit(100)}}, cluster.Owner{}, other},
		{"tokens of a key without a slot", cluster.Owner{}, cluster.Owner{Slots: 1, Caps: quota.Caps{quota.MonthTotal: quota.Limit(100)}}, payer},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := start(t, newDatabase(t), cluster.Settings{Name: "gateway"})
			c.account.ID, c.account.Enabled = payer.Account, true
			c.key.ID, c.key.Account, c.key.Enabled = payer.Key, payer.Account, true
			must(t, l.SetOwners(t.Context(), []cluster.Owner{c.account, {ID: other.Key, Account: payer.Account, Enabled: true}, c.key}))
			large, err := tryLine(t, l, payer, 70)
			must(t, err)
			small, err := tryLine(t, l, c.first, 2)
			must(t, err)
			running, err := l.Reserve(t.Context(), c.first, newRequest(), demand(0, 2), nil)
			must(t, err)
			first, _, _, _ := l.Submit(t, c.first, newRequest(), demand(0, 2))
			second, _, _, _ := l.Submit(t, payer, newRequest(), demand(0, 60))
			settle(t, small, 0, 2)
			if _, err := tryLine(t, l, c.first, 10); !errors.Is(err, budget.ErrReserved) {
				t.Errorf("a line beside a request that waits for its tokens: got error %v, want ErrReserved", err)
			}
			settle(t, large, 0, 0)
			settle(t, running, 0, 2)
			_, granted, _, ok := first.Decided()
			if !ok {
				t.Fatal("the first request waits although a slot is free")
			}
			settle(t, granted, 0, 2)
			if _, granted, _, ok = second.Decided(); !ok {
				t.Fatal("the second request waits although its slot and its tokens are free")
			}
			line, err := tryLine(t, l, c.first, 10)
			must(t, err)
			settle(t, line, 0, 10)
			settle(t, granted, 0, 60)
		})
	}
}

// tryLine reserves tokens for a line of a batch.
func tryLine(t *testing.T, l *cluster.Ledger, p budget.Payer, tokens int64) (budget.Reservation, error) {
	t.Helper()
	r := newRequest()
	r.Batch = "batch_1"
	return l.TryReserve(t.Context(), p, r, demand(0, tokens), nil)
}

func TestDecisionsWithoutAWait(t *testing.T) {
	db := newDatabase(t)
	l := start(t, db, cluster.Settings{Name: "gateway"})
	setOwners(t, l, 1, quota.Caps{quota.MonthTotal: quota.Limit(100)})
	r := newRequest()
	running, err := l.Reserve(t.Context(), payer, r, demand(10, 40), nil)
	must(t, err)
	if _, err := l.TryReserve(t.Context(), payer, newRequest(), demand(1, 1), nil); !errors.Is(err, budget.ErrReserved) {
		t.Errorf("TryReserve beside a taken slot: got %v, want ErrReserved", err)
	}
	if _, err := l.Reserve(t.Context(), budget.Payer{Key: "other", Account: "acc"}, newRequest(), demand(1, 1), nil); !errors.Is(err, cluster.ErrUnknownOwner) {
		t.Errorf("an unknown key: got %v, want ErrUnknownOwner", err)
	}
	settle(t, running, 10, 20)
	again, err := l.Reserve(t.Context(), payer, newRequest(), demand(10, 500), nil)
	must(t, err)
	if again.MaxTokens() != 60 || !again.Clamped() {
		t.Errorf("got %d tokens, clamped %v, want 60 and true", again.MaxTokens(), again.Clamped())
	}
	if c, ok := l.Counters("key"); !ok || c.Used[quota.Month] != (quota.Tokens{Input: 10, Output: 20}) || c.Reserved[quota.Month].Output != 60 || c.Running != 1 {
		t.Errorf("got counters %+v, %v", c, ok)
	}
	settle(t, again, 10, 60)
	var exceeded *budget.Exceeded
	if _, err := l.Reserve(t.Context(), payer, newRequest(), demand(1, 1), nil); !errors.As(err, &exceeded) || exceeded.Used != 100 {
		t.Errorf("got %v, want Exceeded with 100 used tokens", err)
	}
}

func TestDuplicateIDIsRefused(t *testing.T) {
	db := newDatabase(t)
	l := start(t, db, cluster.Settings{Name: "gateway"})
	setOwners(t, l, 0, quota.Caps{})
	r := newRequest()
	first, err := l.Reserve(t.Context(), payer, r, demand(1, 1), nil)
	must(t, err)
	if _, err := l.Reserve(t.Context(), payer, r, demand(1, 1), nil); !errors.Is(err, budget.ErrDuplicate) {
		t.Errorf("got %v, want ErrDuplicate", err)
	}
	settle(t, first, 1, 1)
	var running int
	db.query(t, `SELECT sum(running) FROM owner`, nil, &running)
	if running != 0 {
		t.Errorf("got %d running, want 0", running)
	}
}

func TestDisconnectedClientLeavesTheQueue(t *testing.T) {
	db := newDatabase(t)
	l := start(t, db, cluster.Settings{Name: "gateway"})
	setOwners(t, l, 1, quota.Caps{})
	running := reserve(t, l, demand(1, 1))
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error)
	go func() {
		_, err := l.Reserve(ctx, payer, newRequest(), demand(1, 1), nil)
		failed <- err
	}()
	waiters := func() (n int) {
		db.query(t, `SELECT count(*) FROM waiter`, nil, &n)
		return n
	}
	poll.Until(t, "the request waits", func() bool { return waiters() == 1 })
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want Canceled", err)
	}
	poll.Until(t, "the request has left the queue", func() bool { return waiters() == 0 })
	settle(t, running, 1, 1)
}

func TestTextsWithU0000AreRecorded(t *testing.T) {
	db := newDatabase(t)
	l := start(t, db, cluster.Settings{Name: "gateway"})
	setOwners(t, l, 0, quota.Caps{})
	q := newRequest()
	q.User = "a\x00b"
	r, err := l.Reserve(t.Context(), payer, q, demand(1, 1), nil)
	must(t, err)
	must(t, r.Settle(t.Context(), budget.Outcome{Backend: "gpu\x00", Attempts: []usage.Attempt{{Backend: "x\x00"}}}))
	var tag, backend string
	db.query(t, `SELECT user_tag, backend FROM requests WHERE request_id = $1`, []any{q.ID}, &tag, &backend)
	if tag != "a␀b" || backend != "gpu␀" {
		t.Errorf("got %q and %q, want U+2400 for U+0000", tag, backend)
	}
}

// A value that the database refuses fails one operation, not those that share its call.
func TestRefusedValueFailsOnlyItsOperation(t *testing.T) {
	db := newDatabase(t)
	l := start(t, db, cluster.Settings{Name: "gateway", Lanes: 1})
	setOwners(t, l, 0, quota.Caps{})
	settle(t, reserve(t, l, demand(1, 1)), 1, 1)
	const refused = 999
	db.exec(t, fmt.Sprintf(`ALTER TABLE requests ADD CHECK (status <> %d)`, refused))
	reservations := make([]budget.Reservation, 20)
	for i := range reservations {
		reservations[i] = reserve(t, l, demand(1, 1))
	}
	tx, err := db.conn.Begin(t.Context())
	must(t, err)
	_, err = tx.Exec(t.Context(), `SELECT FROM owner WHERE id = 'acc' FOR UPDATE`) // so that the settlements gather
	must(t, err)
	results := make([]chan error, len(reservations))
	for i, r := range reservations {
		results[i] = make(chan error, 1)
		o := budget.Outcome{Prompt: 1, Completion: 1}
		if i == 7 {
			o.Status = refused
		}
		go func() { results[i] <- r.Settle(t.Context(), o) }()
	}
	must(t, tx.Rollback(t.Context()))
	for i, result := range results {
		if err := <-result; (err != nil) != (i == 7) {
			t.Errorf("settlement %d: got %v", i, err)
		}
	}
	var rows int
	db.query(t, `SELECT count(*) FROM requests`, nil, &rows)
	if rows != len(reservations) { // one before, and all but one
		t.Errorf("got %d rows, want %d", rows, len(reservations))
	}
}

func TestStoppedGatewayIsReapedAndFenced(t *testing.T) {
	db := newDatabase(t)
	proxy := postgrestest.NewProxy(t, postgrestest.Shared(t))
	s := cluster.Settings{Name: "stopped", Beat: 20 * time.Millisecond, Dead: time.Hour} // it reaps nobody when it goes on
	stopped := start(t, &testDatabase{url: through(t, proxy, db)}, s)
	setOwners(t, stopped, 1, quota.Caps{quota.MonthTotal: quota.Limit(1000)})
	q := newRequest()
	running, err := stopped.Reserve(t.Context(), payer, q, demand(100, 400), nil)
	must(t, err)
	running.SetPromptTokens(90)
	running.SetProgress(30)
	running.SetBackend("gpu1")
	poll.Until(t, "a checkpoint is written", func() bool {
		var completion int64
		db.query(t, `SELECT completion_tokens FROM inflight WHERE request_id = $1`, []any{q.ID}, &completion)
		return completion == 30
	})
	waiter, kind, _, _ := stopped.Submit(t, payer, newRequest(), demand(1, 1))
	if kind != "wait" {
		t.Fatalf("got %s, want wait", kind)
	}
	proxy.Pause()
	running.SetProgress(35) // sent to the client after the last checkpoint

	s.Name, s.Dead = "other", 2*time.Second
	other := start(t, db, s)
	granted, err := other.Reserve(t.Context(), payer, newRequest(), demand(10, 10), nil) // waits until the slot is free
	must(t, err)
	var state, backend string
	var prompt, completion, waiting int64
	db.query(t, `SELECT state, backend, prompt_tokens, completion_tokens FROM requests WHERE request_id = $1`, []any{q.ID},
		&state, &backend, &prompt, &completion)
	if state != "interrupted" || backend != "gpu1" || prompt != 90 || completion != 30 {
		t.Errorf("got %s at %s with %d and %d tokens, want the last checkpoint", state, backend, prompt, completion)
	}
	db.query(t, `SELECT count(*) FROM waiter`, nil, &waiting)
	if reaped := other.Values(t)["reaped_gateways_total"]; waiting != 0 || reaped != 1 {
		t.Errorf("got %d waiters and %v reaped gateways, want 0 and 1", waiting, reaped)
	}

	_, epoch := stopped.Identity()
	fenced := stopped.Fenced()
	proxy.Resume()
	if err := running.Settle(t.Context(), budget.Outcome{Prompt: 90, Completion: 40}); !errors.Is(err, cluster.ErrFenced) {
		t.Errorf("settle after the epoch has ended: got %v, want ErrFenced", err)
	}
	<-fenced
	<-running.Lost().Done()
	poll.Until(t, "the waiter's wait ends", func() bool {
		_, _, err, ok := waiter.Decided()
		return ok && errors.Is(err, cluster.ErrFenced)
	})
	if got := stopped.Values(t)["uncharged_tokens_total"]; got != 5 {
		t.Errorf("got %v uncharged tokens, want 5", got)
	}
	settle(t, granted, 10, 10)
	var used int64
	db.query(t, `SELECT month_in + month_out FROM owner WHERE id = 'key'`, nil, &used)
	if used != 140 {
		t.Errorf("got %d tokens used, want 140", used)
	}
	poll.Until(t, "the gateway begins another epoch", func() bool { return stopped.Rejoined(epoch) })
	settle(t, reserve(t, stopped, demand(1, 1)), 1, 1)
}

// An outage stops the heartbeats of all gateways, and ends the epoch of none.
func TestOutageOfTheDatabaseExpiresNobody(t *testing.T) {
	t.Parallel() // it waits
	server := postgrestest.Start(t)
	empty := open(t, server.URL("postgres"))
	_, err := empty.Migrate(t.Context())
	must(t, err)
	empty.Close()
	db := &testDatabase{url: server.URL("postgres")}
	s := cluster.Settings{Beat: 20 * time.Millisecond, Dead: 4 * time.Second, AdmitTimeout: 3 * time.Second} // for a loaded machine
	s.Name = "first"
	first := start(t, db, s)
	s.Name = "second"
	second := start(t, db, s)
	setOwners(t, first, 1, quota.Caps{})
	running := reserve(t, first, demand(1, 1))
	waiter, kind, _, _ := second.Submit(t, payer, newRequest(), demand(1, 1))
	if kind != "wait" {
		t.Fatalf("got %s, want wait", kind)
	}
	server.Pause(t)
	began := time.Now()
	poll.Until(t, "more than the limit of heartbeats has passed", func() bool { return time.Since(began) > s.Dead*3/2 })
	if _, err := first.Reserve(t.Context(), payer, newRequest(), demand(1, 1), nil); !errors.Is(err, database.ErrUnavailable) {
		t.Errorf("reserve in an outage: got %v, want ErrUnavailable", err)
	}
	server.Resume(t)
	settle(t, running, 1, 1)
	poll.Until(t, "the waiter that kept its place is granted", func() bool {
		_, r, err, ok := waiter.Decided()
		must(t, err)
		if ok {
			settle(t, r, 1, 1)
		}
		return ok
	})
	first.Sync(t, "acc") // cancels the request that was refused above
	first.Sync(t, "acc")
	var left int
	connect(t, db.url).query(t, `SELECT sum(running + waiting) FROM owner`, nil, &left)
	const reaped = "reaped_gateways_total"
	if n := first.Values(t)[reaped] + second.Values(t)[reaped]; left != 0 || n != 0 {
		t.Errorf("got %d requests left and %v reaped gateways, want none", left, n)
	}
}

// awaitBlocked waits until a call waits for a lock. It uses a connection of its own: a transaction that looks twice
// sees the same.
func awaitBlocked(t *testing.T, db *testDatabase) {
	t.Helper()
	other := connect(t, db.url)
	poll.Until(t, "a call is blocked", func() bool {
		var blocked int
		other.query(t, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`, nil, &blocked)
		return blocked > 0
	})
}

func TestSettlementThatCouldNotBeSentChargesTheFallback(t *testing.T) {
	db := newDatabase(t)
	l := start(t, db, cluster.Settings{Name: "gateway", Lanes: 1})
	setOwners(t, l, 0, quota.Caps{})
	blocker, r := reserve(t, l, demand(1, 1)), reserve(t, l, demand(10, 10))
	tx, err := db.conn.Begin(t.Context())
	must(t, err)
	_, err = tx.Exec(t.Context(), `SELECT FROM lane FOR UPDATE`)
	must(t, err)
	blocker.Release() // its call waits for the lock, and so do its repetitions
	awaitBlocked(t, db)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err = r.Settle(ctx, budget.Outcome{Prompt: 10, Completion: 10, Fallback: &budget.Outcome{Prompt: 10, Code: "overloaded"}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want Canceled", err)
	}
	must(t, tx.Rollback(t.Context()))
	l.Sync(t, "acc")
	var input, output int64
	db.query(t, `SELECT month_in, month_out FROM owner WHERE id = 'acc'`, nil, &input, &output)
	if input != 10 || output != 0 {
		t.Errorf("got %d and %d tokens, want the fallback's 10 and 0", input, output)
	}
}

func TestRequestWhoseCallIsInFlightIsFencedToo(t *testing.T) {
	db := newDatabase(t)
	l := start(t, db, cluster.Settings{Name: "gateway", Lanes: 1, Beat: 20 * time.Millisecond})
	setOwners(t, l, 0, quota.Caps{})
	tx, err := db.conn.Begin(t.Context())
	must(t, err)
	_, err = tx.Exec(t.Context(), `SELECT FROM lane FOR UPDATE`)
	must(t, err)
	reserved := make(chan error, 1)
	go func() {
		_, err := l.Reserve(t.Context(), payer, newRequest(), demand(1, 1), nil)
		reserved <- err
	}()
	awaitBlocked(t, db)
	connect(t, db.url).exec(t, `UPDATE gateway SET epoch = epoch + 1, alive = false`) // as the reaper
	if err := <-reserved; !errors.Is(err, cluster.ErrFenced) {
		t.Errorf("got %v, want ErrFenced", err)
	}
	must(t, tx.Rollback(t.Context()))
}

func TestLostCommitsFenceTheGateway(t *testing.T) {
	db := newDatabase(t)
	l := start(t, db, cluster.Settings{Name: "gateway", Lanes: 1})
	setOwners(t, l, 0, quota.Caps{})
	settle(t, reserve(t, l, demand(1, 1)), 1, 1)
	db.exec(t, `UPDATE lane SET seq = seq - 1`) // as a standby that was behind
	fenced := l.Fenced()
	// If a call of the listener is the first to find it, the request has not been sent, and the next epoch admits it.
	if _, err := l.Reserve(t.Context(), payer, newRequest(), demand(1, 1), nil); err != nil && !errors.Is(err, cluster.ErrFenced) {
		t.Errorf("got %v, want ErrFenced or none", err)
	}
	<-fenced
}

func TestRestartedGatewayEndsItsPreviousEpoch(t *testing.T) {
	db := newDatabase(t)
	first := start(t, db, cluster.Settings{Name: "gateway"})
	setOwners(t, first, 1, quota.Caps{})
	running := reserve(t, first, demand(10, 10))
	second := start(t, db, cluster.Settings{Name: "gateway"})
	settle(t, reserve(t, second, demand(1, 1)), 1, 1) // the slot is free
	if err := running.Settle(t.Context(), budget.Outcome{Prompt: 10, Completion: 10}); !errors.Is(err, cluster.ErrFenced) {
		t.Errorf("got %v, want ErrFenced", err)
	}
}

// Requests are charged to the day on which they were admitted.
func TestDaysAndMonthsRollOver(t *testing.T) {
	db := newDatabase(t)
	at := func(text string) time.Time {
		parsed, err := time.Parse(time.RFC3339, text)
		must(t, err)
		return parsed
	}
	db.setClock(t, at("2027-11-29T23:00:00Z"))
	l := start(t, db, cluster.Settings{Name: "gateway"})
	setOwners(t, l, 0, quota.Caps{})
	settle(t, reserve(t, l, demand(10, 10)), 1, 2)
	sameMonth, nextMonth := reserve(t, l, demand(10, 10)), reserve(t, l, demand(10, 10))
	db.setClock(t, at("2027-11-30T01:00:00Z"))
	settle(t, reserve(t, l, demand(10, 20)), 10, 20)
	settle(t, sameMonth, 3, 4)
	db.setClock(t, at("2027-11-29T12:00:00Z")) // set back: the day stays
	settle(t, reserve(t, l, demand(100, 200)), 100, 200)
	db.setClock(t, at("2027-12-01T00:00:00Z"))
	settle(t, nextMonth, 5, 6)
	settle(t, reserve(t, l, demand(1000, 2000)), 1000, 2000)
	for _, owner := range []string{"key", "acc"} {
		var counters string
		db.query(t, `SELECT format('%s %s %s %s %s', day, day_in + day_out, month_in, month_out, reserved_month_in + reserved_month_out + reserved_day_in + reserved_day_out)
			FROM owner WHERE id = $1`, []any{owner}, &counters)
		if want := "2027-12-01 3000 1000 2000 0"; counters != want {
			t.Errorf("%s: got counters %s, want %s", owner, counters, want)
		}
	}
	var outside int
	db.query(t, `SELECT count(*) FROM requests WHERE ledger_day(time) NOT IN ('2027-11-29', '2027-11-30', '2027-12-01')`, nil, &outside)
	if outside > 0 {
		t.Errorf("got %d rows outside the days that were charged", outside)
	}
}

func TestMissingPartitionIsCreatedByTheSettlementThatNeedsIt(t *testing.T) {
	db := newDatabase(t)
	l := start(t, db, cluster.Settings{Name: "gateway"})
	setOwners(t, l, 0, quota.Caps{})
	dropPartitions(t, db)
	settle(t, reserve(t, l, demand(1, 1)), 1, 1)
}

func dropPartitions(t *testing.T, db *testDatabase) {
	t.Helper()
	db.exec(t, `DO $$ DECLARE t text; BEGIN FOR t IN SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = 'requests'::regclass
		LOOP EXECUTE 'DROP TABLE ' || t; END LOOP; END $$`)
}

func TestWaitersOfANewDayAreGrantedWithoutASettlement(t *testing.T) {
	db := newDatabase(t)
	now := time.Date(2027, 11, 20, 23, 0, 0, 0, time.UTC)
	db.setClock(t, now)
	l := start(t, db, cluster.Settings{Name: "gateway"})
	setOwners(t, l, 0, quota.Caps{quota.DayTotal: quota.Limit(100)})
	reserve(t, l, demand(10, 80))
	waiter, kind, _, _ := l.Submit(t, payer, newRequest(), demand(10, 80))
	if kind != "wait" {
		t.Fatalf("got %s, want wait", kind)
	}
	db.setClock(t, now.Add(time.Hour))
	poll.Until(t, "the waiter is granted", func() bool { _, _, _, ok := waiter.Decided(); return ok })
}

// The partition is missing when the call is sent for the second time.
func TestMissingPartitionIsCreatedAfterALostConnection(t *testing.T) {
	db := newDatabase(t)
	proxy := postgrestest.NewProxy(t, postgrestest.Shared(t))
	l := start(t, &testDatabase{url: through(t, proxy, db)}, cluster.Settings{Name: "gateway"})
	setOwners(t, l, 0, quota.Caps{})
	r := reserve(t, l, demand(1, 1))
	dropPartitions(t, db)
	proxy.CutAll()
	settle(t, r, 1, 1)
	checkUsed(t, db, 2, 0, 1)
}

func TestDemandOfASlotOnlyWaitsForItAndLeavesNoRow(t *testing.T) {
	db := newDatabase(t)
	l := start(t, db, cluster.Settings{Name: "gateway"})
	other := start(t, db, cluster.Settings{Name: "other"})
	setOwners(t, l, 1, quota.Caps{quota.MonthTotal: quota.Limit(0)}) // a cap that is used up does not matter
	first, err := l.Reserve(t.Context(), payer, newRequest(), budget.Demand{SlotOnly: true}, nil)
	must(t, err)
	waiter, kind, _, _ := other.Submit(t, payer, newRequest(), budget.Demand{SlotOnly: true})
	if kind != "wait" {
		t.Fatalf("got %s, want wait", kind)
	}
	first.Drop()
	await(t, "the other gateway's", waiter).Drop()
	other.Sync(t, payer.Account)
	checkUsed(t, db, 0, 0, 0)
	var left int
	db.query(t, `SELECT (SELECT sum(running + waiting) FROM owner) + (SELECT count(*) FROM inflight) + (SELECT count(*) FROM waiter)`, nil, &left)
	if left != 0 {
		t.Errorf("got %d leases and waiters, want none", left)
	}
}
