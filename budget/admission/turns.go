package admission

import (
	"cmp"
	"container/list"
	"context"
	"slices"
	"sync"
	"time"
)

// Turns gives a number of places to accounts in turn. It bounds work such as an upload, the validation of a file or the
// requests at a backend: whatever one account does, others get places. It stores nothing and limits no time; who holds a place
// ends slow work.
//
// With a limit per account, only an account that holds none gets one of the last half of the places, so that one is free for
// others unless as many accounts are at work. Within the limit of an account, the same holds of its keys; see AcquireOf.
type Turns struct {
	perAccount int // 0: no limit

	mu       sync.Mutex // guards the fields below
	places   int
	used     int
	waiting  int
	refused  uint64
	accounts map[string]*accountTurns // those that hold places or wait
	queue    list.List                // of *accountTurns: those that wait, the next one first
}

// accountTurns is what an account holds and waits for.
type accountTurns struct {
	name    string
	most    int // that it may hold; 0: no limit
	held    int
	keys    map[string]int // places that keys hold, of those by AcquireOf; nil if none does
	waiters list.List      // of *Turn, in order of arrival
	turn    *list.Element  // in Turns.queue; nil if nobody waits
}

// Turn is a place that is held. The zero value holds none.
type Turn struct {
	turns   *Turns
	account *accountTurns // nil after Try
	key     string        // of AcquireOf
	granted chan struct{}
	since   time.Time // when it began to wait
	held    bool
}

// TurnsStats are numbers for metrics and the operator's page.
type TurnsStats struct {
	Places, Running, Waiting int
	Accounts                 int           // that hold places or wait
	Refused                  uint64        // waits that were given up
	Longest                  time.Duration // that somebody waits now
}

// NewTurns returns places of which an account holds at most perAccount; 0 means any number.
func NewTurns(places, perAccount int) *Turns {
	return &Turns{places: places, perAccount: perAccount, accounts: map[string]*accountTurns{}}
}

// SetPlaces changes the number of places. Places that are held beyond it are kept until they are released.
func (t *Turns) SetPlaces(places int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.places = places
	t.dispatch()
}

// Try takes a place if one is free and nobody waits. It does not count the place as one of an account, so it is for places
// without a limit per account.
func (t *Turns) Try(turn *Turn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.used >= t.places || t.waiting > 0 {
		return false
	}
	t.used++
	turn.turns, turn.held = t, true
	return true
}

// Acquire waits for a place. Accounts get places in turn, and the calls of one account in order of arrival. The caller must
// release the place. The error is the cause of the context's end.
func (t *Turns) Acquire(ctx context.Context, account string) (*Turn, error) {
	return t.AcquireUpTo(ctx, account, t.perAccount)
}

// AcquireUpTo is Acquire with a number of places that the account may hold; 0 means any number. It replaces that of earlier
// calls, also for those that wait.
func (t *Turns) AcquireUpTo(ctx context.Context, account string, most int) (*Turn, error) {
	return t.acquire(ctx, &Turn{turns: t}, account, most)
}

// AcquireOf is Acquire for a key of the account. One that holds a place gets none of the last half of those that the account may
// hold, so that its slow work leaves places to the account's other keys.
func (t *Turns) AcquireOf(ctx context.Context, account, key string) (*Turn, error) {
	return t.acquire(ctx, &Turn{turns: t, key: key}, account, t.perAccount)
}

func (t *Turns) acquire(ctx context.Context, turn *Turn, account string, most int) (*Turn, error) {
	if err := t.wait(ctx, turn, account, most); err != nil {
		return nil, err
	}
	return turn, nil
}

// wait waits until the place is granted, or the context ends.
func (t *Turns) wait(ctx context.Context, turn *Turn, account string, most int) error {
	t.mu.Lock()
	a := t.accounts[account]
	if a == nil {
		a = &accountTurns{name: account}
		t.accounts[account] = a
	}
	a.most = most
	turn.account, turn.granted, turn.since = a, make(chan struct{}), time.Now()
	e := a.waiters.PushBack(turn)
	t.waiting++
	if a.turn == nil {
		a.turn = t.queue.PushBack(a)
	}
	t.dispatch()
	t.mu.Unlock()
	select {
	case <-turn.granted:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refused++
	if turn.held { // at the same moment
		t.release(turn)
		return context.Cause(ctx)
	}
	t.remove(a, e)
	t.forget(a)
	return context.Cause(ctx)
}

// remove removes a waiter. t.mu is held.
func (t *Turns) remove(a *accountTurns, e *list.Element) {
	a.waiters.Remove(e)
	t.waiting--
	if a.waiters.Len() == 0 {
		t.queue.Remove(a.turn)
		a.turn = nil
	}
}

// dispatch grants free places. t.mu is held.
func (t *Turns) dispatch() {
	for e := t.queue.Front(); e != nil; {
		a := e.Value.(*accountTurns)
		w := a.next()
		if w == nil || !t.mayTake(a) {
			e = e.Next()
			continue
		}
		turn := w.Value.(*Turn)
		t.queue.MoveToBack(e)
		t.remove(a, w)
		a.held++
		if turn.key != "" {
			if a.keys == nil {
				a.keys = map[string]int{}
			}
			a.keys[turn.key]++
		}
		t.used++
		turn.held = true
		close(turn.granted)
		e = t.queue.Front()
	}
}

// next returns the first waiter whose key may have another place of the account; nil if there is none. Turns.mu is held.
func (a *accountTurns) next() *list.Element {
	for e := a.waiters.Front(); e != nil; e = e.Next() {
		if key := e.Value.(*Turn).key; a.keys[key] == 0 || a.most == 0 || a.held < a.most/2 {
			return e
		}
	}
	return nil
}

// mayTake reports whether an account may have another place. t.mu is held.
func (t *Turns) mayTake(a *accountTurns) bool {
	if a.held == 0 || a.most == 0 {
		return t.used < t.places
	}
	return a.held < a.most && t.used < t.places/2
}

// forget removes an account that neither holds a place nor waits. t.mu is held.
func (t *Turns) forget(a *accountTurns) {
	if a.held == 0 && a.waiters.Len() == 0 {
		delete(t.accounts, a.name)
	}
}

// release gives a place back. t.mu is held.
func (t *Turns) release(turn *Turn) {
	if !turn.held {
		return
	}
	turn.held = false
	t.used--
	if turn.account == nil {
		t.dispatch()
		return
	}
	turn.account.held--
	if turn.key != "" {
		if turn.account.keys[turn.key]--; turn.account.keys[turn.key] == 0 {
			delete(turn.account.keys, turn.key)
		}
	}
	t.dispatch()
	t.forget(turn.account)
}

// Release gives the place back. Further calls have no effect.
func (turn *Turn) Release() {
	if turn.turns == nil {
		return
	}
	turn.turns.mu.Lock()
	defer turn.turns.mu.Unlock()
	turn.turns.release(turn)
}

// Yield gives the place to an account whose turn it is, if any waits, and returns once the caller's own turn has come again.
// If the context ends, the error is its cause, and the place is not held any more.
func (turn *Turn) Yield(ctx context.Context) error {
	t := turn.turns
	t.mu.Lock()
	if err := context.Cause(ctx); err != nil {
		t.release(turn)
		t.mu.Unlock()
		return err
	}
	a := turn.account
	others := t.queue.Len()
	if a.turn != nil {
		others--
		t.queue.MoveToBack(a.turn) // it has had its turn
	}
	if others == 0 {
		t.mu.Unlock()
		return nil
	}
	t.release(turn)
	t.mu.Unlock()
	return t.wait(ctx, turn, a.name, a.most)
}

// Stats returns the current numbers.
func (t *Turns) Stats() TurnsStats {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := TurnsStats{Places: t.places, Running: t.used, Waiting: t.waiting, Accounts: len(t.accounts), Refused: t.refused}
	for e := t.queue.Front(); e != nil; e = e.Next() {
		first := e.Value.(*accountTurns).waiters.Front().Value.(*Turn)
		s.Longest = max(s.Longest, time.Since(first.since))
	}
	return s
}

// AccountTurns are the places of one account.
type AccountTurns struct {
	Account          string
	Running, Waiting int
	Longest          time.Duration // that one of its calls waits now
}

// Accounts returns the accounts that hold places or wait, sorted by name.
func (t *Turns) Accounts() []AccountTurns {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]AccountTurns, 0, len(t.accounts))
	for name, a := range t.accounts {
		of := AccountTurns{Account: name, Running: a.held, Waiting: a.waiters.Len()}
		if first := a.waiters.Front(); first != nil {
			of.Longest = time.Since(first.Value.(*Turn).since)
		}
		all = append(all, of)
	}
	slices.SortFunc(all, func(a, b AccountTurns) int { return cmp.Compare(a.Account, b.Account) })
	return all
}
