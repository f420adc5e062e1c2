package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"basegate/budget"
	"basegate/budget/usage"
	"basegate/database"
)

// operation is one element of a call. Exactly one of the pointers is set.
type operation struct {
	account, key string

	admit      *admission
	settle     *settlement
	checkpoint *checkpoint
	cancel     *cancellation

	chain string        // of an admission: budget.Request.ChainID
	sent  bool          // a call with it has been sent; guarded by the lane's lock
	done  chan decision // capacity 1; nil if nobody waits
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

// admission asks for a reservation. Its fields, and those of the next types, are read by ledger_v1.
type admission struct {
	ID         string  `json:"id"`
	Key        string  `json:"key"`
	Account    string  `json:"account"`
	Prompt     int64   `json:"prompt"`
	Candidates int64   `json:"candidates"`
	Max        int64   `json:"max"`
	Min        int64   `json:"min,omitempty"`
	Output     int64   `json:"output"` // of all candidates
	Exact      bool    `json:"exact,omitempty"`
	NoWait     bool    `json:"no_wait,omitempty"`
	Prompts    []int64 `json:"prompts,omitempty"` // lengths
	Times      []int64 `json:"times,omitempty"`   // how many prompts have each length
	Context    int64   `json:"context,omitempty"`
	Age        int64   `json:"age"` // microseconds since the request arrived
	Model      string  `json:"model"`
	Endpoint   string  `json:"endpoint"`
	Workload   string  `json:"workload"`
	Tag        string  `json:"tag,omitempty"`
	Stream     bool    `json:"stream,omitempty"`
	Batch      string  `json:"batch,omitempty"`
	Details    string  `json:"details,omitempty"` // of a request that is interrupted

	// The rest is not sent; guarded by the lane's lock.
	abandoned bool  // nobody waits any longer: a reservation that is granted is to be canceled
	ticket    int64 // of the wait, if it waits
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
	Receipt    []byte      `json:"receipt,omitempty"`
	Time       int64       `json:"time,omitempty"` // of the row, if it may have been written already

	row requestRow // of the request, in case its admission is lost by a failover
}

// requestRow is what the ledger knows of a request that was admitted.
type requestRow struct {
	admission *admission
	time      int64  // of the row, in microseconds
	chain     string // budget.Request.ChainID
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

// The kinds of decisions, as ledger_v1 names them.
const (
	kindGranted   = "granted"
	kindRefused   = "refused"
	kindWait      = "wait"
	kindCount     = "count"
	kindReserved  = "reserved"
	kindDuplicate = "duplicate"
	kindUnknown   = "unknown"
	kindDisabled  = "disabled"
)

// decision is the result of an operation.
type decision struct {
	ID      string  `json:"id"`
	Kind    string  `json:"kind"`
	Max     int64   `json:"max"`
	Prompt  int64   `json:"prompt"`
	Ticket  int64   `json:"ticket"`
	Time    int64   `json:"time"` // of the row
	Refusal refusal `json:"cap"`

	err   error           // of the call
	ended <-chan decision // delivers the decision after a wait
}

// failure returns the error of a decision that is neither a grant nor a wait.
func (d *decision) failure() error {
	switch d.Kind {
	case kindRefused:
		return (*budget.Exceeded)(&d.Refusal)
	case kindReserved:
		return budget.ErrReserved
	case kindDuplicate:
		return budget.ErrDuplicate
	case kindUnknown:
		return ErrUnknownOwner
	case kindDisabled:
		return budget.ErrKeyDisabled
	}
	return fmt.Errorf("%w: an unknown decision: %q", database.ErrUnavailable, d.Kind)
}

// refusal is a budget.Exceeded in the encoding of ledger_evaluate.
type refusal budget.Exceeded

// UnmarshalJSON reads scope, window, meter, limit, used, reserved and the end of the window.
func (r *refusal) UnmarshalJSON(text []byte) error {
	var fields []json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return fmt.Errorf("read a refusal: %w", err)
	}
	var resets int64
	targets := []any{&r.Scope, &r.Window, &r.Meter, &r.Limit, &r.Used, &r.Reserved, &resets}
	if len(fields) != len(targets) {
		return errors.New("read a refusal: wrong number of fields")
	}
	for i, target := range targets {
		if err := json.Unmarshal(fields[i], target); err != nil {
			return fmt.Errorf("read a refusal: %w", err)
		}
	}
	r.ResetsAt = time.UnixMicro(resets).UTC()
	return nil
}
