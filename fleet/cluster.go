package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"basegate/database"
	"basegate/database/postgres"
	"basegate/internal/wait"
)

// Of the gateways on one PostgreSQL database, one leads: it alone runs programs and puts backends to sleep, takes the
// operators' commands, and keeps the warm windows. It publishes the state of the backends in the row fleet_leader, which the
// others follow. Each gateway reports in a row of fleet_reports what it has read of that, and which backends it uses and
// wants started.

const (
	// syncInterval is the interval at which the gateways of a cluster read each other's rows, if they can start or stop a backend.
	syncInterval = 100 * time.Millisecond
	// useInterval is the interval at which a gateway tells the others when it last used its backends.
	useInterval = 2 * time.Second
	// leadFresh is how long after the database has confirmed that a gateway leads it may run a program without asking again:
	// less than the 12 s after which another gateway may declare this one dead.
	leadFresh = 5 * time.Second
	// endTimeout limits the last write of a leader that is closed.
	endTimeout = 2 * time.Second
)

// useLag is how much later than a gateway's last request the others know of it, for a decision on an idle time.
func useLag(idle time.Duration) time.Duration { return min(2*useInterval, idle) }

// errNotLeader is returned if another gateway leads, or this one has no epoch.
var errNotLeader = errors.New("the gateway does not lead the fleet")

// versions number the programs of a gateway that shares its backends with no other, and what a leader publishes. They are
// microseconds since 1970, so that they also rise over restarts.
type versions struct{ last atomic.Int64 }

func (v *versions) next() int64 {
	for {
		last := v.last.Load()
		next := max(last+1, time.Now().UnixMicro())
		if v.last.CompareAndSwap(last, next) {
			return next
		}
	}
}

// entry is what the leader publishes of a backend.
type entry struct {
	Version  int64  `json:"version"` // of the leader's row since which the entry is as it is
	Changes  int64  `json:"changes"` // of the state, at this leader
	State    State  `json:"state"`
	Reason   string `json:"reason,omitempty"`   // of a boot, a drain or a failure
	Since    int64  `json:"since"`              // when the state or the stop began, by the database's clock
	Wake     bool   `json:"wake,omitempty"`     // it starts by being woken
	Sleep    bool   `json:"sleep,omitempty"`    // it drains to be put to sleep
	Stopping bool   `json:"stopping,omitempty"` // it is stopped or put to sleep, which cannot be cancelled
	Held     bool   `json:"held,omitempty"`     // an operator has stopped it: no warm window starts it
	URL      string `json:"url,omitempty"`      // where launch.start has said that it is
}

// use is what a gateway reports of a backend.
type use struct {
	requested time.Time // when a request last began or ended; zero: never

	Requested int64 `json:"requested,omitempty"` // the same by the database's clock
	Busy      bool  `json:"busy,omitempty"`      // requests are in flight
	Wanted    bool  `json:"wanted,omitempty"`    // a start
	Held      int   `json:"held,omitempty"`      // requests that wait because the engine is full
}

// report is what another gateway has reported last.
type report struct {
	gateway string
	alive   bool
	current bool // it is of the gateway's epoch
	seen    int64
	uses    map[string]use // by MODEL/BACKEND
}

// cluster is the fleet's view of the other gateways.
type cluster struct {
	db     *database.DB
	epoch  func() (gateway int32, epoch int64, ok bool)
	wake   chan struct{} // requests a sync
	leads  atomic.Bool
	synced struct {
		sync.Mutex
		at   time.Time     // when the last sync that found this gateway leading began
		next chan struct{} // closed by the next one
	}

	// Only the reconciler uses what follows, and Start before.
	known    bool           // the leader's row has been read
	row      leaderRow      // as it was last read or written
	executed int64          // number of the last command that was executed and is still in the queue; 0: none
	reported map[string]use // what the gateway has last reported
	reportOf [3]int64       // gateway, epoch and version of that
	sentAt   time.Time
}

// leaderRow is the row fleet_leader.
type leaderRow struct {
	version  int64
	backends map[string]entry // by MODEL/BACKEND
	mine     bool
	vacant   bool   // the epoch of the gateway that led has ended
	leader   string // name of the gateway that leads; empty: none
	now      int64  // time of the database
}

// age returns how long ago a time of the database was.
func (r *leaderRow) age(at int64) time.Duration { return micros(max(r.now-at, 0)) }

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// JoinCluster makes the fleet share its backends with the fleets of other gateways on one PostgreSQL database. epoch returns
// the gateway's number and its epoch on the ledger, and false while it has none. It must be called before Start.
func (f *Fleet) JoinCluster(epoch func() (gateway int32, epoch int64, ok bool)) {
	f.cluster = &cluster{db: f.db, epoch: epoch, wake: make(chan struct{}, 1)}
	f.cluster.synced.next = make(chan struct{})
}

// leads reports whether this gateway starts and stops the backends. A gateway without others always does.
func (f *Fleet) leads() bool { return f.cluster == nil || f.cluster.leads.Load() }

// syncSoon requests a sync without waiting for the next tick.
func (f *Fleet) syncSoon() {
	if f.cluster == nil {
		return
	}
	wait.Wake(f.cluster.wake)
}

// nextSync returns a channel that the next sync closes, and whether the last one, a short time ago, found this gateway leading.
func (c *cluster) nextSync() (next <-chan struct{}, leads bool) {
	c.synced.Lock()
	defer c.synced.Unlock()
	return c.synced.next, c.leads.Load() && time.Since(c.synced.at) < leadFresh
}

// syncUntil exchanges rows with the other gateways until the next tick. It returns false if ctx has ended.
func (f *Fleet) syncUntil(ctx context.Context, tick <-chan time.Time) bool {
	var wake chan struct{}
	var often <-chan time.Time
	if f.cluster != nil {
		ticker := time.NewTicker(syncInterval)
		defer ticker.Stop()
		wake, often = f.cluster.wake, ticker.C
	}
	for {
		select {
		case <-ctx.Done():
			return false
		case <-tick:
			return true
		case <-wake:
			f.sync(ctx)
		case <-often:
			if slices.ContainsFunc(f.catalogue.Load().backends(), (*Backend).managed) {
				f.sync(ctx)
			}
		}
	}
}

// draining reports whether the leader waits until every gateway has read that a backend drains, whether it has that or not.
func (r *leaderRow) draining() bool {
	for _, e := range r.backends {
		if e.State == Draining {
			return true
		}
	}
	return false
}

// sync exchanges rows with the other gateways. If it fails, the next one repeats it.
func (f *Fleet) sync(ctx context.Context) {
	c := f.cluster
	gateway, epoch, member := c.epoch()
	began := time.Now()
	err := c.read(ctx, gateway, epoch)
	if err == nil && !c.row.mine { // others may have led before this gateway is elected
		c.leads.Store(false)
		c.executed = 0
	}
	if err == nil && c.row.vacant && member {
		if err = c.elect(ctx, gateway, epoch); err == nil {
			err = c.read(ctx, gateway, epoch)
		}
	}
	if err == nil {
		c.known = true
		if c.row.mine {
			err = f.lead(ctx, gateway, epoch)
		} else {
			f.follow()
		}
	}
	if err == nil && member {
		err = f.report(ctx, gateway, epoch)
	}
	if err != nil {
		f.log.Debug("exchange states of backends with the other gateways", zap.Error(err))
		return
	}
	c.synced.Lock()
	defer c.synced.Unlock()
	c.synced.at = began
	close(c.synced.next)
	c.synced.next = make(chan struct{})
}

const databaseTime = postgres.Now

func (c *cluster) read(ctx context.Context, gateway int32, epoch int64) error {
	const text = `SELECT l.version, l.backends, l.gateway = $1 AND l.epoch = $2 AND g.id IS NOT NULL, g.id IS NULL,
			coalesce(g.name, ''), ` + databaseTime + `
		FROM fleet_leader l LEFT JOIN gateway g ON g.id = l.gateway AND g.epoch = l.epoch AND g.alive`
	var r leaderRow
	var backends []byte
	row := c.db.Read().QueryRowContext(ctx, text, gateway, epoch)
	err := row.Scan(&r.version, &backends, &r.mine, &r.vacant, &r.leader, &r.now)
	if err == nil {
		err = json.Unmarshal(backends, &r.backends)
	}
	if err != nil {
		return fmt.Errorf("read the fleet's leader: %w", err)
	}
	c.row = r
	return nil
}

// write runs a statement that changes rows only while the gateway's epoch lasts. The transactions of such writes follow each other
// in all gateways, as all writes of package database do.
func (c *cluster) write(ctx context.Context, text string, args ...any) error {
	return c.db.WriteExclusive(ctx, func(tx database.Tx) error { return database.Exec(ctx, tx, text, args...) })
}

const isMember = `EXISTS (SELECT FROM gateway WHERE id = $1 AND epoch = $2 AND alive)`

// elect makes this gateway lead if the epoch of the one that led has ended.
func (c *cluster) elect(ctx context.Context, gateway int32, epoch int64) error {
	const text = `UPDATE fleet_leader l SET gateway = $1, epoch = $2 WHERE ` + isMember + `
		AND NOT EXISTS (SELECT FROM gateway g WHERE g.id = l.gateway AND g.epoch = l.epoch AND g.alive)`
	return c.write(ctx, text, gateway, epoch)
}

// commands returns the commands in the queue that this gateway, which leads, has not executed, the oldest first. They stay there
// until what they have changed is published, or another gateway that leads by then executes them.
func (c *cluster) commands(ctx context.Context) ([]queuedCommand, error) {
	if !c.leads.Load() {
		return nil, nil
	}
	const text = `SELECT id, model, order_name, $1 - given_at FROM model_orders WHERE id > $2 ORDER BY id`
	found, err := database.List(ctx, c.db.Read(), scanCommand, text, time.Now().UnixMicro(), c.executed)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	c.executed = found[len(found)-1].id
	return found, nil
}

// publish writes the leader's row, and removes the commands that were executed from the queue. heir is the gateway that leads
// afterwards: this one, or 0 for none.
func (c *cluster) publish(ctx context.Context, gateway int32, epoch, version int64, backends map[string]entry,
	heir int32,
) error {
	text, _ := json.Marshal(backends) // cannot fail
	const statement = `UPDATE fleet_leader SET gateway = $3, version = $4, backends = $5
		WHERE gateway = $1 AND epoch = $2 AND ` + isMember
	err := c.db.WriteExclusive(ctx, func(tx database.Tx) error {
		if led, err := database.Change(ctx, tx, statement, gateway, epoch, heir, version, string(text)); err != nil || led == 0 {
			return cmp.Or(err, errNotLeader)
		}
		// Commands are queued in one transaction after the other, so none that was not read has a lower number.
		return database.Exec(ctx, tx, `DELETE FROM model_orders WHERE id <= $1`, c.executed)
	})
	if err == nil {
		c.executed = 0
	}
	return err
}

// reports returns the reports of the other gateways that are alive, and those of the last day of others, whose uses count
// too.
func (c *cluster) reports(ctx context.Context, gateway int32) ([]report, error) {
	const text = `SELECT g.name, g.alive, coalesce(r.epoch = g.epoch, false), coalesce(r.seen, 0), coalesce(r.uses, '{}')
		FROM gateway g LEFT JOIN fleet_reports r ON r.gateway = g.id
		WHERE g.id <> $1 AND (g.alive OR r.reported_at > ` + databaseTime + ` - 86400000000)`
	return database.List(ctx, c.db.Read(), func(row database.Scanner) (r report, err error) {
		var uses []byte
		if err = row.Scan(&r.gateway, &r.alive, &r.current, &r.seen, &uses); err == nil {
			err = json.Unmarshal(uses, &r.uses)
		}
		return r, err
	}, text, gateway)
}

// lead makes this gateway take the lead over if it did not lead before, and publishes what has changed.
func (f *Fleet) lead(ctx context.Context, gateway int32, epoch int64) error {
	c := f.cluster
	reports, err := c.reports(ctx, gateway)
	if err != nil {
		return err
	}
	backends := f.catalogue.Load().backends()
	if !c.leads.Load() {
		f.follow() // what the gateway that led before has published
		c.leads.Store(true)
		f.log.Info("this gateway takes over the lead of the fleet")
		for _, b := range backends {
			b.takeOver(&c.row)
		}
	}
	for _, b := range backends {
		b.observeOthers(reports, &c.row)
	}
	return f.publish(ctx, gateway, epoch, gateway)
}

// publish publishes the states of the backends if they have changed, or if heir, and not this gateway, leads afterwards.
func (f *Fleet) publish(ctx context.Context, gateway int32, epoch int64, heir int32) error {
	c, backends, next := f.cluster, f.catalogue.Load().backends(), map[string]entry{}
	version := max(f.versions.next(), c.row.version+1)
	changed := heir != gateway || len(backends) != len(c.row.backends) || c.executed > 0
	for _, b := range backends {
		e, differs := b.nextEntry(version, c.row.now)
		next[b.String()], changed = e, changed || differs
	}
	if !changed {
		return nil
	}
	if err := c.publish(ctx, gateway, epoch, version, next, heir); err != nil {
		return err
	}
	c.row.version, c.row.backends = version, next
	for _, b := range backends {
		b.setPublished(next[b.String()])
	}
	return nil
}

func (f *Fleet) follow() {
	for _, b := range f.catalogue.Load().backends() {
		b.follow(&f.cluster.row)
	}
}

// resign lets another gateway lead at once after this one is closed.
func (f *Fleet) resign() {
	if f.cluster == nil || !f.cluster.leads.Load() || f.writeCtx == nil {
		return
	}
	ctx, cancel := context.WithTimeout(f.writeCtx, endTimeout)
	defer cancel()
	gateway, epoch, _ := f.cluster.epoch()
	if err := f.publish(ctx, gateway, epoch, 0); err != nil {
		f.log.Warn("the lead of the fleet was not given back; another gateway waits for the end of this one's epoch", zap.Error(err))
	}
}

// report tells the other gateways which backends this one uses and wants started. A use is reported at useInterval, and
// the rest at once.
func (f *Fleet) report(ctx context.Context, gateway int32, epoch int64) error {
	c := f.cluster
	uses, urgent := map[string]use{}, c.row.draining()
	for _, b := range f.catalogue.Load().backends() {
		if u := b.use(); u != (use{}) {
			uses[b.String()] = u
			urgent = urgent || u.Wanted
		}
	}
	of := [3]int64{int64(gateway), epoch, c.row.version}
	if of == c.reportOf && maps.Equal(uses, c.reported) || !urgent && time.Since(c.sentAt) < useInterval {
		return nil
	}
	sent := map[string]use{}
	for id, u := range uses {
		if !u.requested.IsZero() {
			u.Requested = c.row.now - time.Since(u.requested).Microseconds()
		}
		sent[id] = u
	}
	text, _ := json.Marshal(sent) // cannot fail
	const statement = `INSERT INTO fleet_reports (gateway, epoch, seen, uses, reported_at)
		SELECT $1::int, $2::bigint, $3::bigint, $4::text, ` + databaseTime + ` WHERE ` + isMember + `
		ON CONFLICT (gateway) DO UPDATE SET epoch = excluded.epoch, seen = excluded.seen, uses = excluded.uses,
			reported_at = excluded.reported_at`
	if err := c.write(ctx, statement, gateway, epoch, c.row.version, string(text)); err != nil {
		return fmt.Errorf("report uses of backends: %w", err)
	}
	c.reported, c.reportOf, c.sentAt = uses, of, time.Now()
	return nil
}
