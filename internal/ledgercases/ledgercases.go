// Package ledgercases is an executable specification of the token ledger, with a generator of test cases: sequences of
// operations on keys and accounts with small caps and few slots. Every engine of the ledger runs the cases of the same
// seeds, and each of its replies must be one that the rules allow. The rules determine every reply but for three things, which
// the contract leaves to the engine: see rules. Package ledgercases is imported by tests only.
package ledgercases

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// Case is one sequence of operations. It begins with empty counters at the time Start, and no request in flight.
type Case struct {
	Start    time.Time
	Accounts []Account
	Keys     []Key
	Steps    []Step `json:"-"`
}

// Account is an account, its slots and its caps at the start.
type Account struct {
	ID    string
	Slots int `json:",omitempty"` // of all its keys; 0 means so many that no request waits for one
	Caps  Caps
}

// Key is a key, its caps and its slots at the start.
type Key struct {
	ID      string
	Account string
	Slots   int // 0 means so many that no request waits for one
	Caps    Caps
}

// Caps are the caps of an owner, in tokens; nil means unbounded.
type Caps struct {
	MonthTotal  *int64 `json:",omitempty"`
	DayTotal    *int64 `json:",omitempty"`
	MonthInput  *int64 `json:",omitempty"`
	MonthOutput *int64 `json:",omitempty"`
}

// any reports whether a cap is set.
func (c *Caps) any() bool { return *c != Caps{} }

// Op is an operation.
type Op string

// The operations. All but Clock and SetCaps are about one request.
const (
	// Admit asks for a slot and a reservation: Request, Key, Demand.
	Admit Op = "admit"
	// Settle ends a request with the tokens of Prompt and Completion. It may come again for a request that has ended, and
	// has no effect then.
	Settle Op = "settle"
	// Checkpoint records the tokens of Prompt and Completion for a request that runs.
	Checkpoint Op = "checkpoint"
	// Interrupt ends a request that runs, with the tokens of its last checkpoint or none, as the recovery of a crash does.
	Interrupt Op = "interrupt"
	// Cancel removes a request that waits. It has no row.
	Cancel Op = "cancel"
	// Clock sets the clock to Time, which is later than before. Requests that wait are evaluated again.
	Clock Op = "clock"
	// SetCaps sets Caps and Slots of the account Owner, or Caps, Slots and Disabled of the key Owner. Requests that wait are evaluated
	// again.
	SetCaps Op = "caps"
)

// Step is an operation.
type Step struct {
	Op         Op
	Request    string     `json:",omitempty"`
	Key        string     `json:",omitempty"` // of the request; of any key for Clock and SetCaps, whose totals are in the reply
	Demand     *Demand    `json:",omitempty"`
	Prompt     int64      `json:",omitempty"`
	Completion int64      `json:",omitempty"`
	Time       *time.Time `json:",omitempty"`
	Owner      string     `json:",omitempty"`
	Caps       *Caps      `json:",omitempty"`
	Slots      int        `json:",omitempty"`
	Disabled   bool       `json:",omitempty"`
}

// Demand is the most that a request can cost; see budget.Demand.
type Demand struct {
	PromptTokens int64
	Exact        bool `json:",omitempty"`
	Candidates   int64
	MaxTokens    int64
	MinTokens    int64 `json:",omitempty"`
	// If Context is not 0, the request truncates its prompts to fit: beside a lower max_tokens m, PromptTokens is the sum
	// over Prompts of min(tokens, max(Context − m, 0)). It is the sum for MaxTokens as well.
	Context int64   `json:",omitempty"`
	Prompts []int64 `json:",omitempty"`
}

// PromptAt returns the tokens of all prompts beside a max_tokens.
func (d *Demand) PromptAt(maxTokens int64) int64 {
	if d.Context == 0 {
		return d.PromptTokens
	}
	var sum int64
	for _, n := range d.Prompts {
		sum += min(n, max(d.Context-maxTokens, 0))
	}
	return sum
}

// Reply is what an operation returns, and what it causes.
type Reply struct {
	Decision *Decision           `json:",omitempty"` // of Admit
	Decided  map[string]Decision `json:",omitempty"` // of requests that have waited and that this operation decided
	Totals   Totals              // of the step's key and of its account, after the operation
}

// Kind is the kind of a decision.
type Kind string

// The kinds of decisions.
const (
	Granted  Kind = "granted"  // with MaxTokens of each candidate
	Refused  Kind = "refused"  // by Refusal
	Count    Kind = "count"    // the prompt must be counted first; nothing is stored
	Wait     Kind = "wait"     // the request is in the queue
	Disabled Kind = "disabled" // the key may not be used
)

// Decision is the decision on a request.
type Decision struct {
	Kind      Kind
	MaxTokens int64    `json:",omitempty"`
	Refusal   *Refusal `json:",omitempty"`
}

// Refusal is the cap that refuses a request; see budget.Exceeded.
type Refusal struct {
	Scope, Window, Meter  string
	Limit, Used, Reserved int64
	ResetsAt              time.Time
}

// Totals are the counters of a key and its account in the current windows.
type Totals struct{ Key, Account Counters }

// Counters are the tokens that an owner has used in the current windows, and those reserved by requests that were admitted
// this month.
type Counters struct {
	MonthInput  int64 `json:",omitempty"`
	MonthOutput int64 `json:",omitempty"`
	Day         int64 `json:",omitempty"`
	Reserved    int64 `json:",omitempty"`
}

// Row is the row of a request that has ended.
type Row struct {
	Request, Key, State string // the state is settled or interrupted
	Date                string // in UTC, such as 2027-11-30
	Prompt, Completion  int64
}

// Engine is a ledger that a case runs on, in the state that the case begins with.
type Engine interface {
	// Apply does one operation and returns its reply.
	Apply(s Step) Reply
	// Rows returns the rows of all ended requests, by request.
	Rows() []Row
}

// String returns the operation as JSON.
func (s Step) String() string { return encode(s) }

// String returns the case as JSON, one step a line.
func (c *Case) String() string {
	var b strings.Builder
	b.WriteString(encode(c))
	for _, s := range c.Steps {
		b.WriteString("\n" + s.String())
	}
	return b.String()
}

func encode(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(err)
	}
	return string(text)
}
