package mockvllm

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	completionsPath = "/v1/completions" // that faults apply to by default
	chatPath        = "/v1/chat/completions"
)

// Fault is a failure to simulate, and the body of POST /mock/fault.
type Fault struct {
	Kind  string `json:"kind"`            // one of faultKinds
	Path  string `json:"path,omitempty"`  // path of the requests it applies to; empty means /v1/completions, "*" every path
	Times int    `json:"times,omitempty"` // number of requests it applies to; 0 means one, -1 all until it is cleared

	AfterTokens int  `json:"after_tokens,omitempty"` // mid-stream kinds: tokens sent before it applies
	AfterEvents int  `json:"after_events,omitempty"` // mid-stream kinds: events sent before it applies
	InStream    bool `json:"in_stream,omitempty"`    // oom, engine_dead, hang: inside the stream, even before its first event

	Status  int    `json:"status,omitempty"`  // of an error response; each kind has its default
	Body    string `json:"body,omitempty"`    // error: the whole body; error_event: the JSON after "data: "; garbage: the bytes
	Message string `json:"message,omitempty"` // replaces the kind's error message

	Tokens       int    `json:"tokens,omitempty"`        // merge: tokens per event; 0 means 4
	Wording      int    `json:"wording,omitempty"`       // context_length: number of the wording, from 1; 0 means the version's
	RestartAfter string `json:"restart_after,omitempty"` // duration from exit to restart; empty means that only a clear restarts it
	Delay        string `json:"delay,omitempty"`         // slow: duration between two tokens
	Clean        bool   `json:"clean,omitempty"`         // cut, no_done: the chunked body ends properly
}

// Kinds of fault, each with its effect on the client.
const (
	faultError         = "error"          // status and body, verbatim
	faultNested        = "nested"         // {"error":{…}}
	faultFlat          = "flat"           // {"object":"error",…}
	faultText          = "text"           // text/plain
	faultOKError       = "ok_error"       // 200 with an error inside
	faultContext       = "context_length" // 400, in any version's wording
	faultOverloaded    = "overloaded"     // 503 engine busy
	faultOOM           = "oom"            // CUDA out of memory
	faultEngineDead    = "engine_dead"    // this request and all later ones fail
	faultSigterm       = "sigterm"        // the server ends: running requests are aborted, then connections refused
	faultKilled        = "killed"         // the process dies: responses are cut off, then connections refused
	faultHang          = "hang"           // no response, or a stream that stops
	faultReset         = "reset"          // reset before the response's first byte
	faultResetMid      = "reset_mid"      // reset within the response
	faultCut           = "cut"            // orderly close within the response
	faultAbort         = "abort"          // finish_reason abort under 200
	faultErrorEvent    = "error_event"    // an error event, then [DONE]
	faultNoFinish      = "no_finish"      // [DONE] without a finish_reason
	faultNoDone        = "no_done"        // finished, but no [DONE]
	faultGarbage       = "garbage"        // neither JSON nor SSE
	faultMerge         = "merge"          // several tokens per event
	faultSlow          = "slow"           // late tokens
	defaultMergeTokens = 4
	untilCleared       = -1
	anyPath            = "*"
	maxFaultBodySize   = 8 << 20
)

// faultKinds are the kinds of fault, in the order of the README's table.
var faultKinds = []string{
	faultError, faultNested, faultFlat, faultText, faultOKError, faultContext, faultOverloaded, faultOOM, faultEngineDead,
	faultSigterm, faultKilled, faultHang, faultReset, faultResetMid, faultCut, faultAbort, faultErrorEvent,
	faultNoFinish, faultNoDone, faultGarbage, faultMerge, faultSlow,
}

// restartAfter returns the time from the process's exit to its restart. 0 means that only a clear restarts it.
func (f *Fault) restartAfter() (time.Duration, error) {
	return time.ParseDuration(cmp.Or(f.RestartAfter, "0"))
}

// tokenDelay returns the time between two tokens of a slow response.
func (f *Fault) tokenDelay() (time.Duration, error) { return time.ParseDuration(cmp.Or(f.Delay, "0")) }

// validate returns an error that names the invalid field, if any.
func (f *Fault) validate() error {
	restart, err := f.restartAfter()
	delay, delayErr := f.tokenDelay()
	switch {
	case !slices.Contains(faultKinds, f.Kind):
		return fmt.Errorf("kind must be one of %s, got %q", strings.Join(faultKinds, ", "), f.Kind)
	case err != nil || restart < 0:
		return fmt.Errorf("restart_after must be a duration like \"250ms\", got %q", f.RestartAfter)
	case delayErr != nil || delay < 0 || f.Kind == faultSlow && delay == 0:
		return fmt.Errorf("delay must be a duration like \"250ms\", got %q", f.Delay)
	case f.Times < untilCleared:
		return fmt.Errorf("times must be -1 (until cleared), 0 (once) or a count, got %d", f.Times)
	case f.Path != "" && f.Path != anyPath && !strings.HasPrefix(f.Path, "/"):
		return fmt.Errorf("path must begin with / or be \"*\", got %q", f.Path)
	case f.Wording < 0 || f.Wording > len(versions().ContextMessages):
		return fmt.Errorf("wording must be between 1 and %d, or 0 for the version's, got %d", len(versions().ContextMessages), f.Wording)
	case f.Status != 0 && (f.Status < 200 || f.Status > 599):
		return fmt.Errorf("status must be between 200 and 599, got %d", f.Status)
	case min(f.AfterTokens, f.AfterEvents, f.Tokens) < 0:
		return errors.New("after_tokens, after_events and tokens must not be negative")
	}
	return nil
}

// isMidStream reports whether the fault lets a response begin first.
func (f *Fault) isMidStream() bool { return f.InStream || f.AfterTokens > 0 || f.AfterEvents > 0 }

type faultList struct {
	mu      sync.Mutex
	pending []*Fault
	cleared chan struct{} // closed and replaced by clear
}

func (l *faultList) add(f Fault) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if f.Times == 0 {
		f.Times = 1
	}
	l.pending = append(l.pending, &f)
}

// consume returns the oldest fault that matches the path and counts the use; nil if there is none. The signal is closed
// when the faults are cleared.
func (l *faultList) consume(path string) (used *Fault, cleared <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, f := range l.pending {
		if cmp.Or(f.Path, completionsPath) != path && f.Path != anyPath {
			continue
		}
		copied := *f
		if f.Times != untilCleared {
			f.Times--
		}
		if f.Times == 0 {
			l.pending = slices.Delete(l.pending, i, i+1)
		}
		return &copied, l.cleared
	}
	return nil, l.cleared
}

// list returns the pending faults with their remaining uses.
func (l *faultList) list() []Fault {
	l.mu.Lock()
	defer l.mu.Unlock()
	remaining := []Fault{}
	for _, f := range l.pending {
		remaining = append(remaining, *f)
	}
	return remaining
}

// clear removes all faults and resumes hanging requests.
func (l *faultList) clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending = nil
	close(l.cleared)
	l.cleared = make(chan struct{})
}
