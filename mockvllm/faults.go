package mockvllm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
)

// completionsPath is where faults strike unless they say otherwise.
const completionsPath = "/v1/completions"

// A Fault is something that goes wrong on purpose. Its JSON is the body of POST /mock/fault, with the names below in
// snake case and durations as strings ("250ms").
type Fault struct {
	Kind  string // one of FaultKinds
	Path  string // which requests it hits: /v1/completions when empty, "*" for all
	Times int    // how many requests it hits; 0 is one, -1 all until it is cleared

	Delay       time.Duration // slow: between two writes; every other kind: before the answer begins
	AfterTokens int           // mid-stream kinds: how many tokens go out first
	AfterEvents int           // mid-stream kinds: how many events go out first
	AfterBytes  int           // reset_mid, cut: how many bytes of the body go out first
	InStream    bool          // oom, engine_dead, hang: strike inside the stream, even before its first event

	Status      int    // of an error answer; each kind has its default
	Body        string // error: the whole body; error_event: the JSON after "data: "; garbage: what is sent
	ContentType string // of Body
	Message     string // the error's message, in place of the kind's own

	Slice        int           // slow: bytes a write; 0 is whole events
	Bytes        int           // big_event: length of the line; 0 is 1 MiB
	Tokens       int           // merge: tokens an event; 0 is 4
	Wording      int           // context_length: which of the historic wordings, from 1; 0 is the version's
	Version      string        // context_length: whose wording
	ExitAfter    time.Duration // engine_dead: after this connections are refused; 0 keeps the zombie answering
	RestartAfter time.Duration // engine_dead: so long after its exit the process is back; 0 leaves that to a clear
	Clean        bool          // cut, no_done: the chunked body is ended properly
}

// Names of the kinds of fault, each with what a client sees.
const (
	faultError           = "error"          // status and body, verbatim
	faultNested          = "nested"         // {"error":{…}}
	faultFlat            = "flat"           // {"object":"error",…}
	faultString          = "string"         // {"error":"…"}
	faultDetail          = "detail"         // {"detail":"…"}
	faultEmpty           = "empty"          // no body
	faultText            = "text"           // text/plain
	faultOKError         = "ok_error"       // 200 with an error inside
	faultContext         = "context_length" // 400, in any version's words
	faultOverloaded      = "overloaded"     // 503 engine busy
	faultOOM             = "oom"            // CUDA out of memory
	faultEngineDead      = "engine_dead"    // this request and all after it
	faultRefuse          = "refuse"         // reset before anything is read
	faultHang            = "hang"           // never answers, or stops within the stream
	faultReset           = "reset"          // reset before the answer's first byte
	faultResetMid        = "reset_mid"      // reset within the answer
	faultCut             = "cut"            // orderly close within the answer
	faultAbort           = "abort"          // finish_reason abort under 200
	faultErrorEvent      = "error_event"    // an error event, then [DONE]
	faultNoFinish        = "no_finish"      // [DONE] without a finish_reason
	faultNoDone          = "no_done"        // finished, but no [DONE]
	faultSlow            = "slow"           // dripping
	faultGarbage         = "garbage"        // neither JSON nor SSE
	faultBigEvent        = "big_event"      // one very long line
	faultMerge           = "merge"          // several tokens an event
	faultBurst           = "burst"          // all events in one write
	defaultBigEventBytes = 1 << 20
	defaultMergeTokens   = 4
	untilCleared         = -1
	anyPath              = "*"
	maxFaultBodySize     = 8 << 20
)

// FaultKinds are the kinds of fault, in the order of the README's table.
func FaultKinds() []string {
	return []string{
		faultError, faultNested, faultFlat, faultString, faultDetail, faultEmpty, faultText, faultOKError,
		faultContext, faultOverloaded, faultOOM, faultEngineDead, faultRefuse, faultHang, faultReset, faultResetMid,
		faultCut, faultAbort, faultErrorEvent, faultNoFinish, faultNoDone, faultSlow, faultGarbage, faultBigEvent,
		faultMerge, faultBurst,
	}
}

// faultJSON is a Fault on the wire.
type faultJSON struct {
	Kind         string `json:"kind"`
	Path         string `json:"path,omitempty"`
	Times        int    `json:"times,omitempty"`
	Delay        string `json:"delay,omitempty"`
	AfterTokens  int    `json:"after_tokens,omitempty"`
	AfterEvents  int    `json:"after_events,omitempty"`
	AfterBytes   int    `json:"after_bytes,omitempty"`
	InStream     bool   `json:"in_stream,omitempty"`
	Status       int    `json:"status,omitempty"`
	Body         string `json:"body,omitempty"`
	ContentType  string `json:"content_type,omitempty"`
	Message      string `json:"message,omitempty"`
	Slice        int    `json:"slice,omitempty"`
	Bytes        int    `json:"bytes,omitempty"`
	Tokens       int    `json:"tokens,omitempty"`
	Wording      int    `json:"wording,omitempty"`
	Version      string `json:"version,omitempty"`
	ExitAfter    string `json:"exit_after,omitempty"`
	RestartAfter string `json:"restart_after,omitempty"`
	Clean        bool   `json:"clean,omitempty"`
}

// MarshalJSON writes the fault as POST /mock/fault takes it.
func (f Fault) MarshalJSON() ([]byte, error) {
	return json.Marshal(faultJSON{
		Kind: f.Kind, Path: f.Path, Times: f.Times, Delay: formatDuration(f.Delay), AfterTokens: f.AfterTokens,
		AfterEvents: f.AfterEvents, AfterBytes: f.AfterBytes, InStream: f.InStream, Status: f.Status, Body: f.Body,
		ContentType: f.ContentType, Message: f.Message, Slice: f.Slice, Bytes: f.Bytes, Tokens: f.Tokens,
		Wording: f.Wording, Version: f.Version, ExitAfter: formatDuration(f.ExitAfter),
		RestartAfter: formatDuration(f.RestartAfter), Clean: f.Clean,
	})
}

func formatDuration(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return d.String()
}

// UnmarshalJSON reads a fault strictly: an unknown field, a kind that does not exist or a bad duration is an error.
func (f *Fault) UnmarshalJSON(data []byte) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	var raw faultJSON
	if err := decoder.Decode(&raw); err != nil {
		return fmt.Errorf("read fault: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("read fault: one JSON object, nothing after it")
	}
	var spans [3]time.Duration
	for i, field := range [3][2]string{
		{"delay", raw.Delay}, {"exit_after", raw.ExitAfter}, {"restart_after", raw.RestartAfter},
	} {
		span, err := parseDuration(field[0], field[1])
		if err != nil {
			return err
		}
		spans[i] = span
	}
	*f = Fault{
		Kind: raw.Kind, Path: raw.Path, Times: raw.Times, Delay: spans[0], AfterTokens: raw.AfterTokens,
		AfterEvents: raw.AfterEvents, AfterBytes: raw.AfterBytes, InStream: raw.InStream, Status: raw.Status,
		Body: raw.Body, ContentType: raw.ContentType, Message: raw.Message, Slice: raw.Slice, Bytes: raw.Bytes,
		Tokens: raw.Tokens, Wording: raw.Wording, Version: raw.Version, ExitAfter: spans[1],
		RestartAfter: spans[2], Clean: raw.Clean,
	}
	return f.validate()
}

func parseDuration(name, text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%s must be a duration like \"250ms\", got %q", name, text)
	}
	return d, nil
}

// validate names what is wrong with the fault.
func (f *Fault) validate() error {
	switch {
	case !slices.Contains(FaultKinds(), f.Kind):
		return fmt.Errorf("kind must be one of %s, got %q", strings.Join(FaultKinds(), ", "), f.Kind)
	case f.Times < untilCleared:
		return fmt.Errorf("times must be -1 (until cleared), 0 (once) or a count, got %d", f.Times)
	case f.Path != "" && f.Path != anyPath && !strings.HasPrefix(f.Path, "/"):
		return fmt.Errorf("path must begin with / or be \"*\", got %q", f.Path)
	case f.Wording < 0 || f.Wording > len(contextMessages):
		return fmt.Errorf("wording must be between 1 and %d, or 0 for the version's, got %d", len(contextMessages), f.Wording)
	case f.Status != 0 && (f.Status < 200 || f.Status > 599):
		return fmt.Errorf("status must be between 200 and 599, got %d", f.Status)
	case min(f.AfterTokens, f.AfterEvents, f.AfterBytes, f.Slice, f.Bytes, f.Tokens) < 0:
		return errors.New("after_tokens, after_events, after_bytes, slice, bytes and tokens must not be negative")
	}
	return nil
}

// isMidStream tells whether the fault lets an answer begin first.
func (f *Fault) isMidStream() bool { return f.InStream || f.AfterTokens > 0 || f.AfterEvents > 0 }

// faultList holds the faults that are still to strike.
type faultList struct {
	mu      sync.Mutex
	pending []*Fault
	cleared chan struct{} // closed and replaced by clear
}

func newFaultList() *faultList { return &faultList{cleared: make(chan struct{})} }

func (l *faultList) add(f Fault) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if f.Times == 0 {
		f.Times = 1
	}
	l.pending = append(l.pending, &f)
}

// consume gives the oldest fault that hits the path and counts the hit. Connection faults are those that strike before
// a request is read.
func (l *faultList) consume(path string, connection bool) *Fault {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, f := range l.pending {
		if (f.Kind == faultRefuse) != connection || !f.matches(path) {
			continue
		}
		struck := *f
		if f.Times != untilCleared {
			f.Times--
		}
		if f.Times == 0 {
			l.pending = slices.Delete(l.pending, i, i+1)
		}
		return &struck
	}
	return nil
}

func (f *Fault) matches(path string) bool {
	switch {
	case f.Path == anyPath || path == anyPath:
		return true
	case f.Path == "":
		return path == completionsPath
	}
	return f.Path == path
}

// list is what is still to strike, with the hits that are left.
func (l *faultList) list() []Fault {
	l.mu.Lock()
	defer l.mu.Unlock()
	remaining := []Fault{}
	for _, f := range l.pending {
		remaining = append(remaining, *f)
	}
	return remaining
}

// clear drops all faults and frees the requests that hang.
func (l *faultList) clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending = nil
	close(l.cleared)
	l.cleared = make(chan struct{})
}

// clearedSignal is closed with the next clear.
func (l *faultList) clearedSignal() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cleared
}
