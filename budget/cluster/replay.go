package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
)

const (
	// replayAge is how long settlements are kept after the database has acknowledged them.
	replayAge = time.Minute
	// maxReplayed limits their number, and so their memory to about 30 MB.
	maxReplayed = 1 << 16
	// replayBatch is how many are written at a time.
	replayBatch = 256
)

// recentSettlements are those that the database has acknowledged during replayAge, in case it loses them.
type recentSettlements struct {
	mu   sync.Mutex
	all  []acknowledged
	next int // in all, which is a ring once it has maxReplayed elements
}

type acknowledged struct {
	settle *settlement
	at     time.Time
}

func (r *recentSettlements) add(s *settlement) {
	if s.row.admission == nil || s.row.time == 0 {
		return // the database said nothing of its row
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	a := acknowledged{s, time.Now()}
	if len(r.all) < maxReplayed {
		r.all = append(r.all, a)
		return
	}
	r.all[r.next] = a
	r.next = (r.next + 1) % maxReplayed
}

// prune forgets what is older than replayAge.
func (r *recentSettlements) prune(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	kept := make([]acknowledged, 0, len(r.all)/2)
	for i := range r.all { // the oldest is at next
		if a := r.all[(r.next+i)%len(r.all)]; now.Sub(a.at) <= replayAge {
			kept = append(kept, a)
		}
	}
	r.all, r.next = kept, 0
}

// list returns what was acknowledged during replayAge.
func (r *recentSettlements) list() []*settlement {
	r.prune(time.Now())
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]*settlement, len(r.all))
	for i, a := range r.all {
		all[i] = a.settle
	}
	return all
}

// replayedSettlement is a settlement with all that its row needs.
type replayedSettlement struct {
	*settlement

	Account  string `json:"account"`
	Key      string `json:"key"`
	Time     int64  `json:"time"`
	Model    string `json:"model"`
	Endpoint string `json:"endpoint"`
	Workload string `json:"workload"`
	Tag      string `json:"tag"`
	Stream   bool   `json:"stream"`
	Batch    string `json:"batch,omitempty"`
}

func newReplayedSettlement(s *settlement) replayedSettlement {
	a := s.row.admission
	return replayedSettlement{
		settlement: s, Account: a.Account, Key: a.Key, Time: s.row.time, Model: a.Model, Endpoint: a.Endpoint, Workload: a.Workload,
		Tag: a.Tag, Stream: a.Stream, Batch: a.Batch,
	}
}

// replay writes the settlements of the last minute again, after the database has lost commits. It is called before the
// gateway joins again, so that leases that are left are settled and not interrupted. It can be repeated.
func (l *Ledger) replay(ctx context.Context, lost *epoch) error {
	all := l.recent.list()
	var written int64
	for batch := range slices.Chunk(all, replayBatch) {
		rows := make([]replayedSettlement, len(batch))
		for i, s := range batch {
			rows[i] = newReplayedSettlement(s)
		}
		text, err := json.Marshal(rows)
		if err != nil {
			return fmt.Errorf("encode settlements: %w", err)
		}
		var n int64
		err = l.db.Pool().QueryRow(ctx, `SELECT ledger_replay_v1($1, $2, $3)`, lost.gateway, lost.number, string(text)).Scan(&n)
		if err != nil {
			return fmt.Errorf("write settlements again: %w", err)
		}
		written += n
		l.metrics.replayed.Add(float64(n))
	}
	l.log.Error("the database has lost commits that it had acknowledged, as after a failover to a standby that was behind; "+
		"the settlements of the last minute that it did not have are written again",
		zap.Int("kept", len(all)), zap.Int64("written", written))
	return nil
}
