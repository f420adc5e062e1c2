package cluster

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"basegate/budget"
	"basegate/budget/usage"
	"basegate/database/postgres"
)

// simDB is a database in memory that has the functions of the ledger: rows with versions, transactions whose writes others see after
// their commit, and locks that they hold until then. Each call is executed in stages, between which the scheduler may do something else:
// one for each lock, and one for what is read or written under them.
type simDB struct {
	mu       sync.Mutex
	rand     *rand.Rand
	broken   mutation
	offset   time.Duration // of the clock
	xid      uint32
	released int        // transactions that have released locks
	arrived  []*simCall // that are not sent yet
	calls    []*simCall
	sessions []*simSession
	wakes    []*simWake
	locks    map[string]*simLock
	trace    func(format string, args ...any)
	problem  string // the first invariant that does not hold

	owners   map[string]*simOwner // rows are replaced, never changed
	inflight map[string]*simLease
	waiters  map[string]*simWaiter // by account, key and ticket
	requests []*simRow
	decided  []*simDecided
	gateways []*simGatewayRow
	lanes    map[simLaneID]simLane

	opened map[string]int // how often each request was granted
	seen   map[string]int // what has happened
}

// mutation is a rule that the database does not obey.
type mutation int

const (
	sound mutation = iota
	ignoresVersions
	ignoresFence
	repeatsSequence
	takesOldSequence
	forgetsReply
	settlesTwice
	ordersByTicketBackwards
	locksNothing
	readsBeforeLock
	keepsEpochOfReaped
	forgetsWhatIsLeft
	forgetsRegrant
	forgetsDecisions
	holdsNoGatewayLock
	sharesNoSequence
)

type simOwner struct {
	ownerRow

	numbers [numbersPerOwner]int64
}

// get returns the numbers of an owner by their names.
func (o *simOwner) get() (n budget.Numbers) {
	for i, to := range numbersOf(&n) {
		*to = o.numbers[i]
	}
	return n
}

// set changes the numbers of an owner by their names.
func (o *simOwner) set(change func(*budget.Numbers)) {
	n := o.get()
	change(&n)
	for i, from := range numbersOf(&n) {
		o.numbers[i] = *from
	}
}

type simLease struct {
	admission

	gateway            int32
	epoch              int64
	prompt, completion int64
}

type simWaiter struct {
	admission

	gateway int32
	epoch   int64
	lane    int
}

type simRow struct {
	id, key, account   string
	time               int64
	state              usage.State
	prompt, completion int64
}

type simDecided struct {
	gateway int32
	lane    int
	id      string
	reply   json.RawMessage
}

type simGatewayRow struct {
	name        string
	epoch, beat int64
	alive, left bool
}

type simEpoch struct {
	gateway int32
	epoch   int64
}

type simLaneID struct {
	gateway int32
	n       int
}

type simLane struct {
	epoch, seq int64
	reply      []byte
}

type simLock struct {
	holder *simTx
	shared []*simTx
}

// simTx is a transaction.
type simTx struct {
	explicit, aborted bool
	xid               uint32 // of what it writes; 0 unless it does
	began, idle       time.Time
	locked            []string
	gateway           int32 // that the ledger's function was called for; 0 for none
	epoch             int64
	inflight          map[string]*simLease // written; nil is deleted
	rows              []*simRow
	freed, waited     []string     // accounts in which something has ended that others may wait for, and in which a request begins to wait
	granted           []*simLease  // opened
	passed            []*simWaiter // granted after their wait
	writes            []func()     // at the commit
	notes             []simNote
}

type simNote struct {
	gateway int32
	payload string
}

// simSession is a connection. Its client may be gone before the database notices.
type simSession struct {
	name    string      // of its latest call
	process *simProcess // nil: none of a gateway
	lane    bool
	pooled  bool
	begun   bool // a call of it has arrived
	tx      *simTx
	call    *simCall // that it executes
	left    bool     // the client has closed it
	ended   bool     // by the database
	over    chan struct{}
	listens int32
	inbox   []string
	awaits  bool // its client waits for a notification
	notes   chan string
}

type simStatement struct {
	text string
	args []any
}

// simCall is what a client sends at once, and its reply.
type simCall struct {
	name       string // which orders those that arrive at once
	session    *simSession
	statements []simStatement
	rows       [][][]any // of each statement that has been executed
	err        error

	out      [][]any       // rows of the statement that is executed
	stages   []func() bool // of the statement that is executed; each is repeated until it reports that it has no lock to wait for
	begun    time.Time     // when the statement's execution began; zero if it has not
	waits    time.Time     // for a lock since then; zero if it does not
	released int           // of simDB when it last tried
	limit    time.Duration
	arrives  time.Time // not before
	partial  bool      // the message ends before its Sync: what it executes is neither committed nor replied to
	fate     fate
	finished bool
	unheard  bool // nobody waits for the reply
	done     chan struct{}
}

type fate int

const (
	undecided fate = iota
	delivered
	replyLost
)

func newSimDB(r *rand.Rand) *simDB {
	return &simDB{
		rand: r, locks: map[string]*simLock{}, owners: map[string]*simOwner{}, inflight: map[string]*simLease{},
		waiters: map[string]*simWaiter{}, lanes: map[simLaneID]simLane{}, opened: map[string]int{}, seen: map[string]int{},
		trace: func(string, ...any) {},
	}
}

func (db *simDB) now() time.Time { return time.Now().Add(db.offset).UTC() }

func (db *simDB) today() int64 { return budget.DateOf(db.now()).Days() }

func (db *simDB) fail(format string, args ...any) {
	if db.problem == "" {
		db.problem = fmt.Sprintf(format, args...)
		db.trace("PROBLEM: %s", db.problem)
	}
}

// ----- Locks and transactions -----

func (db *simDB) lock(tx *simTx, name string, shared bool) bool {
	l := db.locks[name]
	if l == nil {
		l = &simLock{}
		db.locks[name] = l
	}
	switch {
	case l.holder == tx || shared && slices.Contains(l.shared, tx):
		return true
	case l.holder != nil || !shared && len(l.shared) > 0:
		return false
	case shared:
		l.shared = append(l.shared, tx)
	default:
		l.holder = tx
	}
	tx.locked = append(tx.locked, name)
	return true
}

func (db *simDB) release(tx *simTx) {
	for _, name := range tx.locked {
		l := db.locks[name]
		if l.holder == tx {
			l.holder = nil
		}
		l.shared = slices.DeleteFunc(l.shared, func(other *simTx) bool { return other == tx })
		if l.holder == nil && len(l.shared) == 0 {
			delete(db.locks, name)
		}
	}
	tx.locked = nil
	db.released++
}

func (db *simDB) commit(tx *simTx) {
	before := maps.Clone(db.waiters)
	for id, l := range tx.inflight {
		if l == nil {
			delete(db.inflight, id)
		} else {
			db.inflight[id] = l
		}
	}
	for _, write := range tx.writes {
		write()
	}
	for _, row := range tx.rows {
		db.seen[string(row.state)]++
	}
	db.seen["granted"] += len(tx.granted)
	db.seen["granted after a wait"] += len(tx.passed)
	db.requests = append(db.requests, tx.rows...)
	db.release(tx)
	for _, n := range tx.notes {
		for _, s := range db.sessions {
			if s.listens == n.gateway && !s.ended {
				s.inbox = append(s.inbox, n.payload)
			}
		}
	}
	db.check(tx, before)
}

// end ends a session, and what it has not committed.
func (db *simDB) end(s *simSession) {
	if s.ended {
		return
	}
	s.ended = true
	if s.tx != nil {
		db.release(s.tx)
		s.tx = nil
	}
	if c := s.call; c != nil {
		db.finish(c, errConnection)
	}
	close(s.over)
	db.sessions = slices.DeleteFunc(db.sessions, func(other *simSession) bool { return other == s })
}

const uniqueViolation, queryCanceled = "23505", "57014"

func refusal(code string) error {
	return &pgconn.PgError{Severity: "ERROR", Code: code, Message: "simulated"}
}

// endSilent ends the sessions whose clients have sent nothing in a transaction for too long.
func (db *simDB) endSilent() (ended int64) {
	for _, s := range slices.Clone(db.sessions) {
		if s.tx != nil && s.call == nil && time.Since(s.tx.idle) > maxSilence {
			db.end(s)
			db.seen["silent session ended"]++
			ended++
		}
	}
	return ended
}

// finish ends a call. Its reply is on the way then.
func (db *simDB) finish(c *simCall, err error) {
	if err != nil {
		db.seen[cmp.Or(postgres.Code(err), "connection lost")]++
	}
	c.finished, c.err, c.session.call = true, err, nil
	if tx := c.session.tx; tx != nil {
		tx.idle = time.Now()
		switch {
		case tx.explicit:
			tx.aborted = tx.aborted || err != nil
		default:
			db.release(tx)
			c.session.tx = nil
		}
	}
}

// advance executes the next stage of a call, or all until it has to wait for a lock.
func (db *simDB) advance(c *simCall, all bool) {
	s := c.session
	for {
		if c.begun.IsZero() {
			c.begun, c.out = time.Now(), nil
			if s.tx == nil {
				s.tx = &simTx{began: time.Now(), inflight: map[string]*simLease{}}
			}
			db.prepare(c, s.tx, &c.statements[len(c.rows)])
		}
		done := c.stages[0]()
		if c.finished { // it has failed
			return
		}
		if !done {
			if c.released = db.released; c.waits.IsZero() {
				c.waits = time.Now()
			}
			return
		}
		c.waits = time.Time{}
		if c.stages = c.stages[1:]; len(c.stages) == 0 {
			c.begun, c.rows = time.Time{}, append(c.rows, c.out)
			if tx := s.tx; tx != nil && !tx.explicit && !c.partial {
				s.tx = nil
				db.commit(tx)
			}
			if c.executed() {
				if !c.partial {
					db.finish(c, nil)
				}
				return
			}
		}
		if !all {
			return
		}
	}
}

// executed reports whether all statements have been executed.
func (c *simCall) executed() bool { return len(c.rows) == len(c.statements) }

// prepare sets the stages of a statement.
func (db *simDB) prepare(c *simCall, tx *simTx, st *simStatement) {
	c.limit = time.Second
	then := func(stages ...func()) {
		for _, run := range stages {
			c.stages = append(c.stages, func() bool { run(); return true })
		}
	}
	is := func(text string) bool { return strings.Contains(st.text, text) }
	switch {
	case is("ROLLBACK"):
		then(func() { db.release(tx); c.session.tx = nil })
	case is("COMMIT"):
		then(func() {
			c.session.tx = nil
			if tx.aborted {
				db.release(tx)
			} else {
				db.commit(tx)
			}
		})
	case tx.aborted:
		then(func() { db.finish(c, refusal("25P02")) })
	case is("BEGIN"):
		then(func() { tx.explicit = true })
	case is("ledger_read_v1"):
		c.limit = 100 * time.Millisecond
		db.read(c, tx, st.args)
	case is("ledger_write_v1"):
		c.limit = 100 * time.Millisecond
		db.write(c, tx, st.args)
	case is("ledger_join_v1"):
		db.join(c, tx, st.args[0].(string), st.args[2].(int))
	case is("ledger_beat_v1"):
		then(func() { db.beat(c, st.args[0].(int32), st.args[1].(int64)) })
	case is("ledger_reap_v1"):
		by, dead := simEpoch{st.args[0].(int32), st.args[1].(int64)}, st.args[2].(int32)
		c.await(db, tx, "gateway", dead, false)
		then(func() {
			g := db.gateway(dead)
			reaps := db.current(by) && g.alive && g.epoch == st.args[3].(int64) && g.beat == st.args[4].(int64)
			if reaps {
				db.seen["reaped"]++
				db.endEpoch(tx, dead)
			}
			c.out = [][]any{{reaps}}
		})
	case is("ledger_leave_v1"):
		own := simEpoch{st.args[0].(int32), st.args[1].(int64)}
		c.await(db, tx, "gateway", own.gateway, false)
		then(func() {
			if db.current(own) {
				db.endEpoch(tx, own.gateway)
			}
		})
	case is("ledger_left_v1"):
		then(func() { db.left(c, tx) })
	case is("LISTEN"):
		then(func() { _, _ = fmt.Sscanf(st.text, "LISTEN basegate_gateway_%d", &c.session.listens) })
	case is("alive AND epoch > $2"):
		then(func() {
			g := db.gateway(st.args[0].(int32))
			c.out = [][]any{{g.alive && g.epoch > st.args[1].(int64)}}
		})
	case is("owners"): // by the simulation
		c.await(db, tx, "owner", st.args[0].(*simOwner).Account, false)
		then(func() { db.change(tx, st.args[0].(*simOwner)) })
	default:
		panic("the simulated database does not know " + st.text)
	}
}

// await adds a stage that takes a lock.
func (c *simCall) await(db *simDB, tx *simTx, kind string, id any, shared bool) {
	name := fmt.Sprint(kind, " ", id)
	c.stages = append(c.stages, func() bool { return db.lock(tx, name, shared) })
}

// stop ends the statement that is executed, with a row.
func (c *simCall) stop(db *simDB, row ...any) {
	db.seen[row[0].(string)]++
	c.out, c.stages = [][]any{row}, c.stages[:1]
}

// ----- Gateways -----

func (db *simDB) gateway(id int32) *simGatewayRow {
	if id < 1 || int(id) > len(db.gateways) {
		return &simGatewayRow{}
	}
	return db.gateways[id-1]
}

// current reports whether an epoch has not ended.
func (db *simDB) current(e simEpoch) bool {
	g := db.gateway(e.gateway)
	return g.alive && g.epoch == e.epoch
}

func (db *simDB) endEpoch(tx *simTx, id int32) {
	tx.writes = append(tx.writes, func() {
		g := *db.gateway(id)
		if db.broken == keepsEpochOfReaped {
			g.epoch--
		}
		g.epoch, g.alive = g.epoch+1, false
		for _, l := range db.inflight {
			g.left = g.left || l.gateway == id
		}
		for _, w := range db.waiters {
			g.left = g.left || w.gateway == id
		}
		g.left = g.left && db.broken != forgetsWhatIsLeft
		db.gateways[id-1] = &g
		for n, l := range db.lanes {
			if n.gateway == id {
				db.lanes[n] = simLane{epoch: l.epoch + 1}
			}
		}
		db.decided = slices.DeleteFunc(db.decided, func(d *simDecided) bool { return d.gateway == id })
	})
}

func (db *simDB) join(c *simCall, tx *simTx, name string, lanes int) {
	at := slices.IndexFunc(db.gateways, func(g *simGatewayRow) bool { return g.name == name })
	if at < 0 {
		at = len(db.gateways)
		db.gateways = append(db.gateways, &simGatewayRow{name: name})
	}
	id := int32(at + 1)
	c.await(db, tx, "gateway", id, false)
	c.stages = append(c.stages, func() bool {
		db.endEpoch(tx, id)
		before := db.gateways[at]
		left := before.left
		for _, l := range db.inflight {
			left = left || l.gateway == id
		}
		for _, w := range db.waiters {
			left = left || w.gateway == id
		}
		epoch := before.epoch + 1
		if db.broken == keepsEpochOfReaped {
			epoch--
		}
		tx.writes = append(tx.writes, func() {
			g := *db.gateways[at]
			g.alive, g.beat = true, g.beat+1
			db.gateways[at] = &g
			for n := range lanes {
				db.lanes[simLaneID{id, n}] = simLane{epoch: g.epoch}
			}
		})
		c.out = [][]any{{id, epoch, left}}
		return true
	})
}

func (db *simDB) beat(c *simCall, id int32, epoch int64) {
	if !db.current(simEpoch{id, epoch}) {
		return
	}
	g := *db.gateway(id)
	g.beat++
	db.gateways[id-1] = &g
	for i, g := range db.gateways {
		if g.alive || g.left {
			c.out = append(c.out, []any{int32(i + 1), g.epoch, g.beat, g.alive, g.left, db.now().UnixMicro()})
		}
	}
}

// leavings returns the accounts in which epochs that have ended have left something.
func (db *simDB) leavings(of int32) (accounts []string) {
	for _, l := range db.inflight {
		if (of == 0 || l.gateway == of) && !db.current(simEpoch{l.gateway, l.epoch}) {
			accounts = append(accounts, l.Account)
		}
	}
	for _, w := range db.waiters {
		if (of == 0 || w.gateway == of) && !db.current(simEpoch{w.gateway, w.epoch}) {
			accounts = append(accounts, w.Account)
		}
	}
	slices.Sort(accounts)
	return slices.Compact(accounts)
}

func (db *simDB) left(c *simCall, tx *simTx) {
	for i, g := range db.gateways {
		if g.left && len(db.leavings(int32(i+1))) == 0 {
			tx.writes = append(tx.writes, func() {
				g := *db.gateways[i]
				g.left = false
				db.gateways[i] = &g
			})
		}
	}
	tx.writes = append(tx.writes, func() {
		db.decided = slices.DeleteFunc(db.decided, func(d *simDecided) bool { return !db.gateway(d.gateway).alive })
	})
	for _, id := range db.leavings(0) {
		c.out = append(c.out, []any{id})
	}
}

// change replaces the caps, slots and state of an owner.
func (db *simDB) change(tx *simTx, o *simOwner) {
	tx.xid, tx.freed = db.nextVersion(), []string{o.Account}
	tx.writes = append(tx.writes, func() {
		after := *db.owners[o.ID]
		if after.Caps != o.Caps {
			after.set(func(n *budget.Numbers) { n.Raised = 0 })
		}
		regrant := after.Regrant
		after.ownerRow, after.Version, after.Regrant = o.ownerRow, tx.xid, regrant
		db.owners[o.ID] = &after
		account := *db.owners[o.Account]
		if account.get().Waiting > 0 && db.broken != forgetsRegrant {
			account.Regrant, account.Version = true, tx.xid
			db.owners[o.Account] = &account
		}
	})
	for _, id := range slices.Sorted(maps.Keys(db.waiters)) {
		if w := db.waiters[id]; w.Account == o.Account && db.broken != forgetsRegrant {
			if n := (simNote{w.gateway, o.Account}); !slices.Contains(tx.notes, n) {
				tx.notes = append(tx.notes, n)
			}
		}
	}
}

func (db *simDB) nextVersion() uint32 {
	db.xid++
	return db.xid
}

// ----- Reading and writing the ledger -----

// guard adds the stages of ledger_fence.
func (db *simDB) guard(c *simCall, tx *simTx, gateway int32, epoch *int64, lane *int, seq int64) {
	tx.gateway = gateway
	if epoch == nil {
		c.await(db, tx, "gateway", gateway, false)
		return
	}
	tx.epoch = *epoch
	if db.broken != holdsNoGatewayLock {
		c.await(db, tx, "gateway", gateway, true)
	}
	if lane == nil {
		c.stages = append(c.stages, func() bool {
			if !db.current(simEpoch{gateway, *epoch}) && db.broken != ignoresFence {
				c.stop(db, statusFenced, []byte(nil))
			}
			return true
		})
		return
	}
	c.await(db, tx, "lane", fmt.Sprint(gateway, "/", *lane), false)
	c.stages = append(c.stages, func() bool {
		l, found := db.lanes[simLaneID{gateway, *lane}]
		switch {
		case (!found || l.epoch != *epoch) && db.broken != ignoresFence:
			c.stop(db, statusFenced, []byte(nil))
		case l.epoch != *epoch:
		case l.seq == seq && db.broken != repeatsSequence && db.broken != sharesNoSequence:
			c.stop(db, statusDone, l.reply)
		case l.seq > seq && db.broken != takesOldSequence && db.broken != sharesNoSequence, l.seq < seq-1:
			c.stop(db, "lost", []byte(nil))
		}
		return true
	})
}

func waiterName(account, key string, ticket int64) string {
	return fmt.Sprintf("%s %s %06d", account, key, ticket)
}

func (w *simWaiter) row() *waiterRow {
	return &waiterRow{
		Account: w.Account, Key: w.Key, Ticket: w.Ticket, ID: w.ID, Gateway: w.gateway, Lane: w.lane, Arrived: w.Arrived,
		Prompt: w.Prompt, Candidates: w.Candidates, Max: w.Max, Min: w.Min, Prompts: w.Prompts, Times: w.Times, Context: w.Context,
		Batch: w.Batch,
	}
}

func (db *simDB) read(c *simCall, tx *simTx, args []any) {
	gateway, epoch, lane := args[0].(int32), args[1].(*int64), args[2].(*int)
	accounts, keys, ids, tickets := args[4].([]string), args[5].([]string), args[6].([]string), args[7].([]int64)
	heads, waits, ended, times := args[8].(int), args[9].(bool), args[10].(bool), args[11].([]int64)
	var seq int64
	if s := args[3].(*int64); s != nil {
		seq = *s
	}
	db.guard(c, tx, gateway, epoch, lane, seq)
	var locked []string
	var owners map[string]*simOwner
	var waiters map[string]*simWaiter
	snapshot := func() { owners, waiters = maps.Clone(db.owners), maps.Clone(db.waiters) }
	if db.broken == readsBeforeLock {
		c.stages = append(c.stages, func() bool { snapshot(); return true })
	}
	accounts = slices.Compact(slices.Sorted(slices.Values(accounts)))
	for _, id := range accounts {
		c.stages = append(c.stages, func() bool {
			if db.owners[id] == nil {
				return true
			}
			if waits {
				c.limit = time.Second
			}
			if db.broken != locksNothing && !db.lock(tx, "owner "+id, false) {
				return !waits
			}
			locked = append(locked, id)
			return true
		})
	}
	var r read
	c.stages = append(c.stages, func() bool {
		if owners == nil {
			snapshot()
		}
		r.Locked, keys = locked, slices.Clone(keys)
		count := map[string]int{}
		for _, name := range slices.Sorted(maps.Keys(waiters)) {
			w := waiters[name]
			if !slices.Contains(locked, w.Account) || owners[w.Account].get().Waiting == 0 {
				continue
			}
			count[w.Key]++
			asked := slices.Contains(args[5].([]string), w.Key) && slices.Contains(tickets, w.Ticket)
			if count[w.Key] > heads && !asked {
				continue
			}
			keys = append(keys, w.Key)
			row := w.row()
			row.Ended, row.Duplicate = !db.current(simEpoch{w.gateway, w.epoch}), db.inflight[w.ID] != nil
			r.Waiters = append(r.Waiters, row)
		}
		if db.broken == ordersByTicketBackwards {
			slices.Reverse(r.Waiters)
		}
		return true
	}, func() bool {
		r.Now = db.now().UnixMicro()
		for _, id := range keys {
			if o := owners[id]; o != nil && o.Parent != "" {
				keys = append(keys, o.Parent)
			}
		}
		for _, id := range slices.Compact(slices.Sorted(slices.Values(slices.Concat(locked, keys)))) {
			if o := owners[id]; o != nil {
				row := o.ownerRow
				row.Numbers = o.numbers
				r.Owners = append(r.Owners, &row)
			}
		}
		of := func(l *simLease) lease {
			return lease{ID: l.ID, Gateway: l.gateway, Epoch: l.epoch, Account: l.Account, Key: l.Key, Day: l.Day, In: l.In, Out: l.Out, Line: l.Batch != ""}
		}
		for i, id := range ids {
			if l := db.inflight[id]; l != nil {
				r.Leases = append(r.Leases, of(l))
			}
			if i < len(times) && slices.ContainsFunc(db.requests, func(q *simRow) bool { return q.id == id && q.time == times[i] && q.state == usage.Settled }) {
				r.Rows = append(r.Rows, id)
			}
		}
		for _, id := range slices.Sorted(maps.Keys(db.inflight)) {
			if l := db.inflight[id]; ended && slices.Contains(locked, l.Account) && !db.current(simEpoch{l.gateway, l.epoch}) {
				left := of(l)
				left.Prompt, left.Completion = l.prompt, l.completion
				r.Ended = append(r.Ended, left)
			}
		}
		for _, id := range accounts {
			if db.owners[id] == nil {
				r.Missing = append(r.Missing, id)
			}
		}
		c.out = [][]any{{statusOK, encode(r)}}
		return true
	})
}

func encode(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return text
}

func decode[T any](list any) (all []T) {
	if text := list.(*string); text != nil {
		if err := json.Unmarshal([]byte(*text), &all); err != nil {
			panic(err)
		}
	}
	return all
}

// lease returns the row of a request in flight as a transaction sees it.
func (db *simDB) lease(tx *simTx, id string) *simLease {
	if l, written := tx.inflight[id]; written {
		return l
	}
	return db.inflight[id]
}

func (db *simDB) write(c *simCall, tx *simTx, args []any) {
	w := &simWrite{
		db: db, tx: tx, c: c, gateway: args[0].(int32), attempt: args[4].(int), day: args[5].(int64), accounts: args[6].([]string),
		numbers: args[9].([]int64), collect: args[16].(bool), due: args[17].([]string), lane: noLane,
		open: decode[admission](args[10]), settle: decode[settlement](args[11]), checkpoint: decode[checkpoint](args[12]),
		wait: decode[admission](args[13]), gone: decode[goneWaiter](args[14]), decided: decode[json.RawMessage](args[15]),
	}
	w.ids, w.versions = args[7].([]string), args[8].([]uint32)
	w.sort()
	if epoch := args[1].(*int64); epoch != nil {
		w.epoch = *epoch
	}
	if seq := args[3].(*int64); seq != nil {
		w.lane, w.seq = *args[2].(*int), *seq
		db.guard(c, tx, w.gateway, &w.epoch, &w.lane, w.seq)
	}
	for _, id := range w.accounts {
		if db.broken != locksNothing {
			c.await(db, tx, "owner", id, false)
		}
	}
	c.stages = append(c.stages, func() bool {
		if w.changed() {
			c.stop(db, statusConflict, []byte(nil))
		}
		return true
	})
	for i := range w.open {
		c.await(db, tx, "request", w.open[i].ID, false)
	}
	for i := range w.gone {
		if n := db.waiters[waiterName(w.gone[i].Account, w.gone[i].Key, w.gone[i].Ticket)]; n != nil {
			c.await(db, tx, "request", n.ID, false)
		}
	}
	for i := range w.settle {
		c.await(db, tx, "request", w.settle[i].ID, false)
	}
	for i := range w.checkpoint {
		c.await(db, tx, "request", w.checkpoint[i].ID, false)
	}
	c.stages = append(c.stages, func() bool { w.run(); return true })
}

// simWrite is a call of ledger_write_v1.
type simWrite struct {
	db *simDB
	tx *simTx
	c  *simCall

	gateway    int32
	epoch, seq int64
	lane       int
	attempt    int
	day        int64
	accounts   []string
	ids        []string
	versions   []uint32
	numbers    []int64
	open, wait []admission
	settle     []settlement
	checkpoint []checkpoint
	gone       []goneWaiter
	decided    []json.RawMessage
	collect    bool
	due        []string
}

// sort gives the lists an order that does not depend on the order in which the gateway has evaluated accounts.
func (w *simWrite) sort() {
	slices.SortFunc(w.open, func(x, y admission) int { return cmp.Compare(x.ID, y.ID) })
	slices.SortFunc(w.wait, func(x, y admission) int { return cmp.Compare(x.ID, y.ID) })
	slices.SortFunc(w.settle, func(x, y settlement) int { return cmp.Compare(x.ID, y.ID) })
	slices.SortFunc(w.checkpoint, func(x, y checkpoint) int { return cmp.Compare(x.ID, y.ID) })
	slices.SortFunc(w.gone, func(x, y goneWaiter) int {
		return cmp.Or(cmp.Compare(x.Account, y.Account), cmp.Compare(x.Ticket, y.Ticket))
	})
	slices.SortFunc(w.decided, func(x, y json.RawMessage) int { return bytes.Compare(x, y) })
}

// changed reports whether rows have changed, or the day.
func (w *simWrite) changed() bool {
	if w.accounts == nil {
		return false
	}
	for i, id := range w.ids {
		if o := w.db.owners[id]; w.db.broken != ignoresVersions && (o == nil || o.Version != w.versions[i]) {
			return true
		}
	}
	return w.db.today() != w.day
}

func (w *simWrite) String() string {
	var all []string
	for i := range w.open {
		all = append(all, "open "+w.open[i].ID)
	}
	for i := range w.settle {
		all = append(all, fmt.Sprintf("%s %s", w.settle[i].State, w.settle[i].ID))
	}
	for i := range w.checkpoint {
		all = append(all, "checkpoint "+w.checkpoint[i].ID)
	}
	for i := range w.wait {
		all = append(all, fmt.Sprintf("wait %s/%d", w.wait[i].ID, w.wait[i].Ticket))
	}
	for _, g := range w.gone {
		all = append(all, fmt.Sprintf("gone %s/%d, granted %t", g.Account, g.Ticket, g.Day != nil))
	}
	for _, d := range w.decided {
		all = append(all, fmt.Sprintf("decided %s", d))
	}
	return fmt.Sprintf("gateway %d epoch %d lane %d seq %d attempt %d %q %v", w.gateway, w.epoch, w.lane, w.seq, w.attempt, all, w.numbers)
}

func (w *simWrite) run() {
	db, tx := w.db, w.tx
	db.trace("  %s", w)
	if len(w.numbers) > 0 && tx.xid == 0 {
		tx.xid = db.nextVersion()
	}
	for i := range len(w.numbers) / numbersPerOwner {
		id, numbers := w.ids[i], [numbersPerOwner]int64(w.numbers[i*numbersPerOwner:])
		tx.writes = append(tx.writes, func() {
			after := *db.owners[id]
			after.numbers, after.Regrant, after.Version = numbers, false, tx.xid
			db.owners[id] = &after
		})
	}
	for _, n := range w.open {
		epoch := w.epoch
		if n.Epoch != nil {
			epoch = *n.Epoch
		}
		if !w.insert(&simLease{admission: n, gateway: w.gateway, epoch: epoch}, codeInFlight) {
			return
		}
	}
	for _, g := range w.gone {
		name := waiterName(g.Account, g.Key, g.Ticket)
		n := db.waiters[name]
		if n == nil {
			continue
		}
		tx.freed = append(tx.freed, n.Account)
		tx.writes = append(tx.writes, func() { delete(db.waiters, name) })
		if g.Day == nil {
			continue
		}
		l := &simLease{admission: n.admission, gateway: n.gateway, epoch: n.epoch}
		l.Day, l.Time, l.In, l.Out = *g.Day, g.Time, g.In, g.Out
		if !w.insert(l, uniqueViolation) {
			return
		}
		tx.passed = append(tx.passed, n)
	}
	for i := range w.settle {
		if !w.end(&w.settle[i]) {
			return
		}
	}
	for _, p := range w.checkpoint {
		if l := db.lease(tx, p.ID); l != nil && l.gateway == w.gateway && l.epoch == w.epoch {
			after := *l
			after.prompt, after.completion = p.Prompt, p.Completion
			tx.inflight[p.ID] = &after
		}
	}
	for _, n := range w.wait {
		name := waiterName(n.Account, n.Key, n.Ticket)
		if db.waiters[name] != nil {
			db.finish(w.c, refusal(uniqueViolation))
			return
		}
		db.seen["waits"]++
		tx.waited = append(tx.waited, n.Account)
		tx.writes = append(tx.writes, func() { db.waiters[name] = &simWaiter{n, w.gateway, w.epoch, w.lane} })
	}
	w.reply()
}

// insert makes a request one that is in flight.
func (w *simWrite) insert(l *simLease, code string) bool {
	if w.db.lease(w.tx, l.ID) != nil {
		w.db.finish(w.c, refusal(code))
		return false
	}
	w.tx.inflight[l.ID] = l
	w.tx.granted = append(w.tx.granted, l)
	return true
}

// end ends a request in flight.
func (w *simWrite) end(s *settlement) bool {
	db, tx := w.db, w.tx
	l := db.lease(tx, s.ID)
	gateway, epoch := cmp.Or(s.Gateway, w.gateway), cmp.Or(s.Epoch, w.epoch)
	if l == nil || l.gateway != gateway || l.epoch != epoch {
		db.finish(w.c, refusal(codeInFlight))
		return false
	}
	tx.inflight[s.ID], tx.freed = nil, append(tx.freed, l.Account)
	if s.State != stateDropped {
		row := &simRow{l.ID, l.Key, l.Account, l.Time, s.State, s.Prompt, s.Completion}
		tx.rows = append(tx.rows, row)
		if db.broken == settlesTwice && db.rand.IntN(8) == 0 {
			tx.rows = append(tx.rows, row)
		}
	}
	return true
}

func (w *simWrite) reply() {
	db, tx := w.db, w.tx
	for _, d := range w.decided {
		db.seen["decided for others"]++
		var to decision
		if err := json.Unmarshal(d, &to); err != nil {
			panic(err)
		}
		if slices.ContainsFunc(db.decided, func(o *simDecided) bool { return o.gateway == to.Gateway && o.lane == to.Lane && o.id == to.ID }) {
			db.finish(w.c, refusal(uniqueViolation))
			return
		}
		tx.writes = append(tx.writes, func() { db.decided = append(db.decided, &simDecided{to.Gateway, to.Lane, to.ID, d}) })
		if n := (simNote{to.Gateway, ""}); !slices.Contains(tx.notes, n) {
			tx.notes = append(tx.notes, n)
		}
	}
	r := struct {
		Attempt int               `json:"attempt"`
		Version uint32            `json:"version"`
		Decided []json.RawMessage `json:"decided"`
		Due     []string          `json:"due"`
	}{Attempt: w.attempt, Version: tx.xid}
	if w.collect {
		mine := func(d *simDecided) bool { return d.gateway == w.gateway && d.lane == w.lane }
		collected := slices.DeleteFunc(slices.Clone(db.decided), func(d *simDecided) bool { return !mine(d) })
		for _, d := range collected {
			r.Decided = append(r.Decided, d.reply)
		}
		tx.writes = append(tx.writes, func() {
			db.decided = slices.DeleteFunc(db.decided, func(d *simDecided) bool { return slices.Contains(collected, d) })
		})
		for _, id := range w.due {
			if o := db.owners[id]; o != nil && (o.Regrant || o.get().Day < db.today()) {
				r.Due = append(r.Due, id)
			}
		}
	}
	text := encode(r)
	if w.lane != noLane {
		stored := text
		if db.broken == forgetsReply {
			r.Decided = nil
			stored = encode(r)
		}
		lane := simLane{w.epoch, w.seq, stored}
		tx.writes = append(tx.writes, func() { db.lanes[simLaneID{w.gateway, w.lane}] = lane })
		if db.broken == forgetsDecisions && len(r.Decided) > 0 && db.rand.IntN(4) == 0 {
			r.Decided = nil
			text = encode(r)
		}
	}
	w.c.out = [][]any{{statusOK, text}}
}
