package budget

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"basegate/budget/usage"
	"basegate/database"
)

// Replays is the part of the ledger that records requests whose responses were repeated. It is the same for all engines, since no
// counter changes.
type Replays struct{ db *database.DB }

// NewReplays returns the Replays of a database.
func NewReplays(db *database.DB) *Replays { return &Replays{db} }

// Admit returns the Reservation of a request whose response is repeated: it holds no slot and no tokens, and costs nothing.
// saved are the tokens that the request would have cost, and maxTokens those that each candidate could have had.
func (l *Replays) Admit(p Payer, r Request, saved, maxTokens int64) Reservation {
	r.KeyID, r.AccountID = p.Key, p.Account
	return &replayed{Grant: Grant{Max: maxTokens}, ledger: l, request: r, saved: saved}
}

// replayed is the Reservation of Replays. Without an outcome it leaves no row.
type replayed struct {
	Grant

	ledger  *Replays
	request Request
	saved   int64
	once    sync.Once
}

func (r *replayed) WriteError() error { return r.ledger.db.WriteError() }

func (*replayed) Lost() context.Context { return nil }

func (r *replayed) Settle(ctx context.Context, o Outcome) (err error) {
	r.once.Do(func() {
		err = r.ledger.db.WriteGrouped(ctx, func(tx database.Tx) error { return r.write(ctx, tx, &o) })
	})
	if err != nil {
		return fmt.Errorf("insert the request's row: %w", err)
	}
	return nil
}

func (r *replayed) Prepare(o Outcome) (s Settlement) {
	r.once.Do(func() { s = &replayedSettlement{r, o} })
	return s
}

func (r *replayed) Drop() { r.once.Do(func() {}) }

func (r *replayed) Release() { r.Drop() }

// write inserts the row, once.
func (r *replayed) write(ctx context.Context, tx database.Tx, o *Outcome) error {
	q := r.request
	text, tag := insertReplayed, q.User
	if r.ledger.db.Postgres() != nil { // gateways may change the ledger only by its functions
		text, tag = `SELECT ledger_replay_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)`, strings.ReplaceAll(tag, "\x00", "␀")
	}
	err := database.Exec(ctx, tx, text, q.ID, q.Time.UnixMicro(), q.KeyID, q.AccountID, q.Model, q.Endpoint, q.Workload, tag, q.Stream,
		o.Total.Microseconds(), q.Batch, r.saved, q.Run)
	if err != nil || o.Receipt == nil {
		return err
	}
	return InsertReceipt(ctx, tx, q.KeyID, o.Receipt)
}

// replayedSettlement is the Settlement of a replayed request, which holds nothing.
type replayedSettlement struct {
	*replayed

	outcome Outcome
}

func (s *replayedSettlement) Write(ctx context.Context, tx database.Tx) error {
	return s.write(ctx, tx, &s.outcome)
}

func (*replayedSettlement) Commit() {}

func (*replayedSettlement) Abandon() {}

// insertReplayed is ledger_replay_v1 on SQLite.
const insertReplayed = `
	INSERT INTO requests (request_id, time, key_id, account_id, model, backend, endpoint, workload, user_tag, stream, status, code,
		state, prompt_tokens, completion_tokens, queue_us, first_token_us, total_us, batch_id, saved_tokens, run)
	VALUES ($1, $2, $3, $4, $5, '', $6, $7, $8, $9, 200, '', '` + string(usage.Replayed) + `', 0, 0, 0, 0, $10, nullif($11, ''), $12, $13)
	ON CONFLICT DO NOTHING`
