// Package refusals records the requests that were refused before a reservation, which have no row on the ledger and cost
// nothing: those with a bad body, over a cap, of a key that may not be used, or while there is no room.
//
// A flood of them costs the database next to nothing. Record only appends to a bounded buffer; a goroutine writes it once
// a second, in one grouped transaction. Each account may have a burst of rows and then a few a minute, and all accounts
// together a few a second. Refusals beyond that are counted by account, hour and code, but have no row. Rows are deleted
// after a month, or earlier if an account or the table has too many.
//
// A row holds times, names, the error code and what was expected of which field, and nothing of the request's text. Package usage
// reads the rows; deciding what to refuse is left to package proxy.
package refusals

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"basegate/database"
	"basegate/internal/ratelimit"
	"basegate/internal/wait"
)

// Refusal is a request that was refused. Durations that do not apply are 0.
type Refusal struct {
	RequestID string
	Time      time.Time // when it arrived
	AccountID string
	KeyID     string
	Model     string // empty if it is not known
	Backend   string // empty if there was no attempt
	Endpoint  string
	Workload  string
	Run       string
	User      string
	Stream    bool
	Status    int    // of the HTTP response
	Code      string // of the error
	Param     string // the API's name of the field in error; empty if there is none
	Expected  string // of that field, in the gateway's words
	Queue     time.Duration
	Boot      time.Duration
	Total     time.Duration
}

// Settings limit what is recorded.
type Settings struct {
	AccountBurst    int           // rows of an account that has had none for long
	AccountInterval time.Duration // after which an account may have one more row
	Burst           int           // rows of all accounts
	PerSecond       int           // rows of all accounts, in the long run
	AccountRows     int           // rows of an account that are kept
	Rows            int           // rows of all accounts that are kept
	Keep            time.Duration // how long rows are kept
	KeepCounts      time.Duration // how long the numbers of refusals are kept
}

// Default are the settings of a gateway.
var Default = Settings{
	AccountBurst: 100, AccountInterval: 5 * time.Second, Burst: 400, PerSecond: 20,
	AccountRows: 5000, Rows: 200_000, Keep: 30 * day, KeepCounts: 400 * day,
}

const (
	day = 24 * time.Hour

	writeInterval = time.Second
	pruneInterval = time.Minute

	maxAccounts  = 10_000 // whose rates are in memory
	maxCounts    = 20_000 // numbers that wait to be written
	countsAtOnce = 500    // numbers that one transaction writes
)

// Recorder records refusals. It is safe for concurrent use.
type Recorder struct {
	db       *database.DB
	log      *zap.Logger
	settings Settings
	accounts *ratelimit.Limiter
	all      *rate.Limiter

	mu     sync.Mutex
	rows   []Refusal
	counts map[count]int64

	recorded, dropped prometheus.Counter // rows

	pruned  time.Time       // when old rows were last deleted; accessed by the writing goroutine only
	written map[string]bool // accounts with new rows since then; accessed by the writing goroutine only

	loop wait.Loop
}

// count identifies a number of refusals.
type count struct {
	account string
	hour    int64 // from the epoch
	code    string
}

// New returns a Recorder. Refusals recorded before Start are written after it.
func New(db *database.DB, log *zap.Logger, s Settings) *Recorder {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "basegate_refusals_" + name, Help: help})
	}
	return &Recorder{
		db: db, log: log, settings: s,
		recorded: counter("recorded_total", "Refused requests of known accounts that have a row of their own."),
		dropped:  counter("dropped_total", "Refused requests of known accounts that are only counted, because there were too many."),
		accounts: ratelimit.New(ratelimit.Settings{Interval: s.AccountInterval, Burst: s.AccountBurst, MaxKeys: maxAccounts}),
		all:      rate.NewLimiter(rate.Limit(s.PerSecond), s.Burst),
		counts:   map[count]int64{}, written: map[string]bool{},
	}
}

// Collectors returns the metrics.
func (r *Recorder) Collectors() []prometheus.Collector {
	return []prometheus.Collector{r.recorded, r.dropped}
}

// Start starts to write what is recorded, until Close.
func (r *Recorder) Start(ctx context.Context) {
	r.loop.Start(ctx, func(ctx context.Context) {
		endless := context.WithoutCancel(ctx) // what is recorded is written, also at the end
		wait.Every(ctx, writeInterval, func(ctx context.Context) {
			r.flush(endless)
			r.prune(ctx)
		})
		r.flush(endless)
	})
}

// Close writes what is recorded and stops.
func (r *Recorder) Close() { r.loop.Close() }

// Record records a refusal of a known account. It does not wait for the database.
func (r *Recorder) Record(f *Refusal) {
	// The limit of the account comes first, so that one that is over it takes nothing of what all have together.
	kept := r.accounts.Take(f.AccountID, 1) == 0 && r.all.Allow()
	c := count{f.AccountID, f.Time.Unix() / 3600, f.Code}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := r.counts[c]; known || len(r.counts) < maxCounts {
		r.counts[c]++
	}
	if kept && len(r.rows) < r.settings.Burst {
		r.rows = append(r.rows, *f)
		return
	}
	r.dropped.Inc()
}

// flush writes what has been recorded. If it fails, the rows are dropped and the numbers are written with the next flush.
func (r *Recorder) flush(ctx context.Context) {
	rows, counts := r.take()
	if len(rows) == 0 && len(counts) == 0 {
		return
	}
	err := r.db.WriteGrouped(ctx, func(tx database.Tx) error {
		if err := insertRows(ctx, tx, rows); err != nil {
			return err
		}
		return addCounts(ctx, tx, counts)
	})
	if err != nil { // package database logs the outage
		r.dropped.Add(float64(len(rows)))
		r.restore(counts)
		return
	}
	r.recorded.Add(float64(len(rows)))
	for i := range rows {
		r.written[rows[i].AccountID] = true
	}
}

// take returns the rows that wait to be written, and as many numbers as one transaction writes.
func (r *Recorder) take() (rows []Refusal, counts map[count]int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rows, r.rows = r.rows, nil
	counts = map[count]int64{}
	for c, n := range r.counts {
		if len(counts) == countsAtOnce {
			break
		}
		counts[c] = n
		delete(r.counts, c)
	}
	return rows, counts
}

// restore adds numbers that could not be written to those recorded since.
func (r *Recorder) restore(counts map[count]int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c, n := range counts {
		if _, known := r.counts[c]; known || len(r.counts) < maxCounts {
			r.counts[c] += n
		}
	}
}

// prune deletes what is too old or too much, once a minute.
func (r *Recorder) prune(ctx context.Context) {
	now := time.Now()
	if now.Sub(r.pruned) < pruneInterval {
		return
	}
	r.pruned = now
	if err := r.pruneAt(ctx, now); err != nil && ctx.Err() == nil {
		r.log.Warn("old refusals cannot be deleted", zap.Error(err))
	}
}
