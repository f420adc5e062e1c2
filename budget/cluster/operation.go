package cluster

import (
	"strings"
	"time"

	"basegate/budget"
	"basegate/budget/usage"
)

// operation is one element of a call. At most one of the pointers is set; without one, it evaluates the requests of the account that
// wait.
type operation struct {
	account, key string

	admit      *admission
	settle     *settlement
	checkpoint *checkpoint
	cancel     *cancellation

	// Guarded by the lane's lock.
	sent      bool  // a call with it has been sent
	abandoned bool  // of an admission: nobody waits any longer, so a reservation that is granted is to be canceled
	ticket    int64 // of an admission that waits

	done chan decision // capacity 1; nil if nobody waits
}

// size returns about how many bytes the operation has in a call.
func (o *operation) size() int {
	const names, number = 400, 8
	switch {
	case o.admit != nil:
		return names + len(o.admit.Tag) + len(o.admit.Details) + (len(o.admit.Prompts)+len(o.admit.Times))*number
	case o.settle != nil:
		return names + len(o.settle.Attempts) + len(o.settle.Receipt)*4/3
	default:
		return names
	}
}

// complete delivers the result, unless there is one.
func (o *operation) complete(d decision) {
	if o.done == nil {
		return
	}
	select {
	case o.done <- d:
	default:
	}
}

func failAll(all []*operation, err error) {
	for _, o := range all {
		o.complete(decision{err: err})
	}
}

// admission asks for a reservation. Its fields, and those of the next types, are read by ledger_write_v1.
type admission struct {
	ID       string `json:"id"`
	Key      string `json:"key"`
	Account  string `json:"account"`
	Epoch    *int64 `json:"epoch,omitempty"` // nil: the caller's
	Model    string `json:"model"`
	Endpoint string `json:"endpoint"`
	Workload string `json:"workload"`
	Tag      string `json:"tag,omitempty"`
	Stream   bool   `json:"stream,omitempty"`
	Batch    string `json:"batch,omitempty"`
	Run      string `json:"run,omitempty"`
	Details  string `json:"details,omitempty"` // of a request that is interrupted

	// Of one that is in flight.
	Day  int64 `json:"day,omitempty"` // since 1970
	Time int64 `json:"time,omitempty"`
	In   int64 `json:"in,omitempty"` // reserved tokens
	Out  int64 `json:"out,omitempty"`

	// Of one that waits.
	Ticket     int64   `json:"ticket,omitempty"`
	Arrived    int64   `json:"arrived,omitempty"`
	Prompt     int64   `json:"prompt,omitempty"`
	Candidates int64   `json:"candidates,omitempty"`
	Max        int64   `json:"max,omitempty"`
	Min        int64   `json:"min,omitempty"`
	Prompts    []int64 `json:"prompts,omitempty"` // lengths
	Times      []int64 `json:"times,omitempty"`   // how many prompts have each length
	Context    int64   `json:"context,omitempty"`

	// The rest is not sent.
	demand  budget.Demand
	noWait  bool
	arrived time.Time
	address string // of the client
	chain   string // budget.Request.ChainID
}

// settlement ends a request.
type settlement struct {
	ID         string      `json:"id"`
	State      usage.State `json:"state"`
	Prompt     int64       `json:"prompt"`
	Completion int64       `json:"completion"`
	Status     int         `json:"status,omitempty"`
	Code       string      `json:"code,omitempty"`
	Backend    string      `json:"backend,omitempty"`
	Queue      int64       `json:"queue,omitempty"` // durations in microseconds
	First      int64       `json:"first,omitempty"`
	Total      int64       `json:"total,omitempty"`
	Boot       int64       `json:"boot,omitempty"`
	Attempts   string      `json:"attempts,omitempty"`
	usage.Reported
	Receipt []byte `json:"receipt,omitempty"`
	Gateway int32  `json:"gateway,omitempty"` // 0: the caller's, as its epoch
	Epoch   int64  `json:"epoch,omitempty"`

	lease budget.Lease
	row   requestRow // of the request, in case its admission is lost by a failover
}

// requestRow is what the ledger knows of a request that was admitted.
type requestRow struct {
	admission *admission
	time      int64 // of the row, in microseconds
}

// checkpoint records the progress of a request in flight.
type checkpoint struct {
	ID string `json:"id"`
	budget.Progress
}

// cancellation ends a wait, or drops the reservation with which it has ended.
type cancellation struct {
	ID      string `json:"id"`
	Account string `json:"account"`
	Key     string `json:"key"`
	Ticket  int64  `json:"ticket"`
}

// escape replaces U+0000, which PostgreSQL does not store, by its symbol.
func escape(text string) string { return strings.ReplaceAll(text, "\x00", "␀") }

// unknownOwner is the kind of a decision on a request whose key or account is not on the ledger.
const unknownOwner budget.Kind = "unknown"

// decision is the result of an operation, also as it is left for another lane.
type decision struct {
	ID      string           `json:"id"`
	Gateway int32            `json:"gateway,omitempty"` // that it is left for
	Lane    int              `json:"lane,omitempty"`
	Kind    budget.Kind      `json:"kind"`
	Max     int64            `json:"max,omitempty"`
	Prompt  int64            `json:"prompt,omitempty"`
	Ticket  int64            `json:"ticket,omitempty"`
	Time    int64            `json:"time,omitempty"` // of the row
	Refusal *budget.Exceeded `json:"cap,omitempty"`

	err   error           // of the call
	ended <-chan decision // delivers the decision after a wait
}

func newDecision(id string, d *budget.Decision) decision {
	made := decision{ID: id, Kind: d.Kind, Refusal: d.Exceeded}
	if d.Kind == budget.Granted {
		made.Max, made.Prompt, made.Time = d.MaxTokens, d.Lease.Input, d.Time.UnixMicro()
	}
	return made
}

// failure returns the error of a decision that is neither a grant nor a wait.
func (d *decision) failure() error {
	if d.Kind == unknownOwner {
		return ErrUnknownOwner
	}
	return (&budget.Decision{Kind: d.Kind, Exceeded: d.Refusal}).Err()
}
