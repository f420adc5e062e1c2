// Package ledgertest reads the cases of the ledger's rules, which budget/testdata/README.md explains, and plays them on an
// implementation. It knows none of the rules: each case holds the replies. It is imported by tests only.
package ledgertest

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"basegate/budget"
	"basegate/budget/quota"
)

// Case is a sequence of operations. It begins with empty counters at the time Start, and no request in flight.
type Case struct {
	Name     string    `json:"name"` // its family and seed
	Start    time.Time `json:"start"`
	Accounts []Owner   `json:"accounts"`
	Keys     []Owner   `json:"keys"`
	Steps    []Step    `json:"steps"`
	Rows     []Row     `json:"rows"` // at the end, by request
}

// Owner is a key or an account.
type Owner struct {
	ID       string     `json:"id"`
	Account  string     `json:"account,omitempty"` // of a key
	Parent   string     `json:"parent,omitempty"`  // of a key: the one that has made it
	Slots    int        `json:"slots,omitempty"`   // 0 is unbounded
	Disabled bool       `json:"disabled,omitempty"`
	Caps     quota.Caps `json:"caps"`
}

// Op is an operation.
type Op string

// The operations.
const (
	Admit      Op = "admit"
	Settle     Op = "settle"
	Checkpoint Op = "checkpoint"
	Interrupt  Op = "interrupt"
	Cancel     Op = "cancel"
	Clock      Op = "clock"
	Change     Op = "change"
)

// Step is an operation, with what it returns and causes.
type Step struct {
	Op         Op         `json:"op"`
	Request    string     `json:"request,omitempty"`
	Key        string     `json:"key"` // of the request; of Clock and Change any, whose totals are in the reply
	Line       bool       `json:"line,omitempty"`
	Demand     *Demand    `json:"demand,omitempty"`
	Prompt     int64      `json:"prompt,omitempty"`
	Completion int64      `json:"completion,omitempty"`
	Time       *time.Time `json:"time,omitempty"`
	Owner      *Owner     `json:"owner,omitempty"`
	Reply      Reply      `json:"reply"`
}

// Demand is a budget.Demand.
type Demand struct {
	PromptTokens int64   `json:"prompt_tokens"`
	Exact        bool    `json:"exact,omitempty"`
	Candidates   int64   `json:"candidates"`
	MaxTokens    int64   `json:"max_tokens"`
	MinTokens    int64   `json:"min_tokens,omitempty"`
	Prompts      []int64 `json:"prompts,omitempty"`
	Context      int64   `json:"context,omitempty"`
	SlotOnly     bool    `json:"slot_only,omitempty"`
}

// Reply is what an operation returns, and what it causes.
type Reply struct {
	Decision *Decision           `json:"decision,omitempty"` // of Admit
	Decided  map[string]Decision `json:"decided,omitempty"`  // requests that have waited, and that this operation decided
	Key      Totals              `json:"key"`                // of the step's key, after the operation
	Parent   *Totals             `json:"parent,omitempty"`   // of its parent, if it has one
	Account  Totals              `json:"account"`            // of its account
}

// Kind is the kind of a decision.
type Kind string

// The kinds of decisions.
const (
	Granted  Kind = "granted"
	Refused  Kind = "refused"
	Wait     Kind = "wait"
	Reserved Kind = "reserved"
	Count    Kind = "count"
	Disabled Kind = "disabled"
)

// Decision is the decision on a request.
type Decision struct {
	Kind      Kind     `json:"kind"`
	MaxTokens int64    `json:"max_tokens,omitempty"` // of each candidate, if it is granted
	Refusal   *Refusal `json:"refusal,omitempty"`
}

// Refusal is a budget.Exceeded.
type Refusal struct {
	Scope    budget.Scope `json:"scope"`
	Window   quota.Window `json:"window"`
	Meter    quota.Meter  `json:"meter"`
	Limit    int64        `json:"limit"`
	Used     int64        `json:"used"`
	Reserved int64        `json:"reserved"`
	ResetsAt time.Time    `json:"resets_at,omitzero"`
}

// RefusedBy returns the refusal by a cap.
func RefusedBy(e *budget.Exceeded) Decision {
	refusal := Refusal(*e)
	return Decision{Kind: Refused, Refusal: &refusal}
}

// Totals are the tokens that an owner has used in the current windows, and those reserved by requests that were admitted this
// month, and by all.
type Totals struct {
	LifeInput    int64 `json:"life_input,omitempty"`
	LifeOutput   int64 `json:"life_output,omitempty"`
	MonthInput   int64 `json:"month_input,omitempty"`
	MonthOutput  int64 `json:"month_output,omitempty"`
	Day          int64 `json:"day,omitempty"`
	Reserved     int64 `json:"reserved,omitempty"`
	ReservedEver int64 `json:"reserved_life,omitempty"`
}

// Row is the row of a request that has ended.
type Row struct {
	Request    string `json:"request"`
	Key        string `json:"key"`
	State      string `json:"state"` // settled or interrupted
	Date       string `json:"date"`  // in UTC, such as 2027-11-30
	Prompt     int64  `json:"prompt"`
	Completion int64  `json:"completion"`
}

// Engine is an implementation of the rules, in the state that a case begins with.
type Engine interface {
	// Apply does one operation and returns its reply.
	Apply(s *Step) Reply
	// Rows returns the rows of all ended requests, by request.
	Rows() []Row
}

// Play runs a case on an engine. It stops at the first reply that is not the case's, and returns the difference.
func Play(c *Case, e Engine) error {
	for i := range c.Steps {
		s := &c.Steps[i]
		if diff := cmp.Diff(s.Reply, e.Apply(s)); diff != "" {
			return fmt.Errorf("%s: step %d: %s: reply (-want +got):\n%s", c.Name, i+1, Text(s), diff)
		}
	}
	if diff := cmp.Diff(c.Rows, e.Rows()); diff != "" {
		return fmt.Errorf("%s: rows (-want +got):\n%s", c.Name, diff)
	}
	return nil
}

// Text returns a value as JSON.
func Text(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(err)
	}
	return string(text)
}

// Path returns the file of the cases, seen from the folder of a test: the one that the environment names, or path.
func Path(path string) string {
	if other := os.Getenv("BASEGATE_LEDGER_CASES"); other != "" {
		return other
	}
	return path
}

// Read returns the cases of a file.
func Read(tb testing.TB, path string) (all []Case) {
	tb.Helper()
	content, err := os.ReadFile(Path(path))
	if err != nil {
		tb.Fatal(err)
	}
	lines, err := gzip.NewReader(bytes.NewReader(content))
	if err != nil {
		tb.Fatal(err)
	}
	for decoder := json.NewDecoder(lines); ; {
		var c Case
		if err := decoder.Decode(&c); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			tb.Fatal(err)
		}
		all = append(all, c)
	}
}
