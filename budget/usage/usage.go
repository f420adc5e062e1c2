// Package usage sums up the requests that have ended and reads them: by request, or in groups such as models and days.
//
// The rows of the table requests are the truth. Sums over them are kept in rollups: by hour and by day for each series,
// which is an account, key, model, endpoint, workload and run, with histograms of latency; and by day and by month for each
// key and user tag. A rollup goroutine, which the gateway starts, adds new rows once a second. Rows are inserted in the
// order of their sequence number, whatever their times are, so the rollups include exactly the rows up to a watermark,
// which is stored in the same transaction. Groups reads the rollups, the rows after the watermark, and the rows of hours
// that its range cuts, in one snapshot: its figures are exact and current, whether the rollup goroutine runs or not.
//
// Clients choose user tags. Each key has rollups of its own for the first 10,000 tags of a day and of a month; requests
// with further tags are summed up as OtherTags. So are those of further runs of a key, as OtherRuns.
//
// Everything here may take long, so it is read by database.DB.Report. Requests are read in pages of 1,000, each in a
// snapshot of its own, so that a client that reads them slowly holds none. Inserting the rows, and what they mean for
// budgets, belongs to package budget.
package usage

import (
	"context"
	"time"

	"go.uber.org/zap"

	"basegate/database"
	"basegate/internal/wait"
)

// Store reads the usage of a database. It is safe for concurrent use.
type Store struct {
	db      *database.DB
	dialect *dialect
	log     *zap.Logger

	rollups rollups
	loop    wait.Loop
}

// New returns a Store. It reads complete figures before Start too, but slowly if many rows are not in the rollups yet.
func New(db *database.DB, log *zap.Logger) *Store {
	s := &Store{db: db, dialect: dialectOf(db), log: log}
	s.rollups.rows, _ = s.dialect.batchRows()
	return s
}

// Start starts to add new rows to the rollups, until Close. Only one Store of a database may be started. Rows that it has not
// added are added after the next Start.
func (s *Store) Start(ctx context.Context) {
	s.loop.Start(ctx, func(ctx context.Context) {
		wait.Every(ctx, rollupInterval, func(ctx context.Context) { s.logOutage(ctx, s.addAll(ctx)) })
	})
}

// Close ends what Start has started.
func (s *Store) Close() { s.loop.Close() }

// State is the state of a request that has ended.
type State string

// The states.
const (
	Settled     State = "settled"     // ended regularly, successfully or not
	Interrupted State = "interrupted" // ended by a crash, or released without an outcome
	Replayed    State = "replayed"    // received the response of an earlier request, and cost nothing
)

// Grouping is what requests have in common that are summed up in one row.
type Grouping string

// The groupings.
const (
	ByRequest  Grouping = "request" // one row per request
	ByKey      Grouping = "key"
	ByAccount  Grouping = "account"
	ByModel    Grouping = "model"
	ByDay      Grouping = "day"  // UTC
	ByHour     Grouping = "hour" // UTC
	ByWorkload Grouping = "workload"
	ByUser     Grouping = "user"  // the user tag of the request
	ByMonth    Grouping = "month" // UTC
	ByEndpoint Grouping = "endpoint"
	ByRun      Grouping = "run" // the experiment that the request is part of
)

// Over returns the grouping by an interval, which is ByHour, ByDay or ByMonth, and something else: ByKey, ByAccount, ByModel,
// ByWorkload, ByEndpoint or ByRun.
func Over(interval, by Grouping) Grouping { return interval + "-" + by }

// OtherTags stands for the user tags that have no rollups of their own.
const OtherTags = "(other tags)"

// OtherRuns stands for the runs of a key that have no rollups of their own.
const OtherRuns = "(other runs)"

// Filter selects requests. The zero value selects all.
type Filter struct {
	// Reader is on whose behalf the requests are read: at most one query of each reader runs at a time. If empty, there
	// is no such limit.
	Reader string

	Wait    time.Duration // how long Groups waits until it may read; 0 means 2 seconds
	Since   time.Time     // inclusive; zero means no lower bound
	Until   time.Time     // exclusive; zero means no upper bound
	Account string        // id
	Key     string        // id
	Model   string
	Run     string
	Failed  bool   // only requests that ended with an error code or were interrupted
	Search  string // only requests whose id or code starts with it, or whose user, workload or backend contains it
	Limit   int    // maximum number of rows, the first in order; 0 means all
	Latency bool   // read the latencies of groups too
}

// Row is one request, or the sum of the requests of one group. Fields that the requests of a group do not share are
// zero.
type Row struct {
	Requests         int64 // 1 if grouped by request
	Errors           int64 // requests that ended with an error code or were interrupted
	Streams          int64 // requests for a stream
	PromptTokens     int64
	CompletionTokens int64
	SavedTokens      int64    // of the responses that were replayed
	CachedTokens     int64    // prompt tokens that backends had cached
	KnownTokens      int64    // prompt tokens of the requests whose backends report that; 0: it is not known
	Latency          *Latency // of groups, if Filter.Latency is set; nil if not

	Time      time.Time // UTC; by request: when it arrived; by hour, day or month: its start
	KeyID     string    // by request or key
	AccountID string    // by request, key, account or run
	Model     string    // by request or model
	Workload  string    // by request or workload
	Endpoint  string    // by request or endpoint
	User      string    // by request or user
	Run       string    // by request or run; empty if it has none

	// The fields below are set only if grouped by request.

	RequestID  string
	Backend    string
	Stream     bool
	Status     int
	Code       string
	State      State
	Queue      time.Duration
	FirstToken time.Duration
	Total      time.Duration
	Reported   Reported
	ChainID    string // of EternalAI's form; empty if the client sent none
}
