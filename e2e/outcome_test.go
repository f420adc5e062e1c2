//go:build e2e

package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strings"
	"time"

	"github.com/tidwall/gjson"
)

// outcome is the result of one request of the chaos run, as its client saw it.
type outcome struct {
	clientResult
	kind    string // one of the constants below
	code    string // error code
	reason  string // why the response was incomplete or is ambiguous
	id      string
	tag     string    // user tag, which identifies the row if the client did not learn the ID
	gateway *instance // the gateway process that got the request
}

const (
	completeResponse = "complete response"
	completeStream   = "complete stream"
	streamError      = "stream error"
	errorResponse    = "error response"
	disconnected     = "client disconnected"
	connectionLost   = "connection lost"
	ambiguous        = "AMBIGUOUS"
)

// expectedErrors maps the error codes that the chaos run can cause to their statuses.
var expectedErrors = map[string]int{
	"budget_exceeded": http.StatusTooManyRequests, "upstream_unreachable": http.StatusBadGateway, "upstream_server_error": http.StatusBadGateway,
	"circuit_open": http.StatusServiceUnavailable, "overloaded": http.StatusServiceUnavailable,
}

// send sends a request through the client relay, waits up to timeout for its end, and classifies the outcome.
func (c *chaosRun) send(spec requestSpec, secret string, timeout time.Duration) outcome {
	clientAddr, tag := "", fmt.Sprint(c.sent.Add(1))
	spec.body = fmt.Sprintf(`{"user":%q,%s`, tag, spec.body[1:])
	ctx, cancel := context.WithTimeout(c.t.Context(), timeout)
	defer cancel()
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) { clientAddr = got.Conn.LocalAddr().String() }})
	r, err := spec.send(ctx, c.clientRelay.url(), secret)
	got := outcome{clientResult: r, tag: tag, gateway: c.clientRelay.serverBehind(clientAddr)}
	got.requestSpec = spec
	if r.header != nil {
		got.id = r.id()
	}
	if got.classify(err); got.kind == "" {
		got.classifyBroken(err, c.clientRelay.faultOn(clientAddr), timeout < longTimeout)
	}
	got.text, got.header = "", nil
	return got
}

// incomplete reports whether the client did not receive the end of the response.
func (o *outcome) incomplete() bool { return o.kind == disconnected || o.kind == connectionLost }

// longTimeout is longer than any request takes while its connection carries data.
const longTimeout = 3 * waitTimeout

// classify sets the kind if the response alone shows it.
func (o *outcome) classify(err error) {
	switch {
	case o.status == 0:
	case o.status != http.StatusOK && err == nil:
		o.setError(errorResponse, o.text)
	case o.status == http.StatusOK && o.stream:
		o.classifyStream()
	case o.status == http.StatusOK && err == nil && gjson.Get(o.text, "choices.0.finish_reason").Exists() && gjson.Get(o.text, "usage").Exists():
		o.kind = completeResponse
	}
}

// classifyStream sets the kind if the stream has one of its two valid ends: [DONE], or one error event.
func (o *outcome) classifyStream() {
	events, done := strings.CutSuffix(strings.TrimRight(o.text, "\n"), "data: [DONE]")
	before, failure, failed := strings.Cut(events, `data: {"error":`)
	all := "[" + strings.ReplaceAll(strings.ReplaceAll(strings.TrimSuffix(before, "\n\n"), "\n\n", ","), "data: ", "") + "]"
	switch {
	case !gjson.Valid(all):
	case failed && !done && strings.HasSuffix(o.text, "\n\n"):
		o.setError(streamError, `{"error":`+failure)
	case done && !failed && strings.Contains(events, `"finish_reason":"`):
		o.kind = completeStream
	}
}

// classifyBroken sets the kind of a response that is neither complete nor an error: either the client disconnected, or a
// fault of the connection or of its server explains it. Otherwise the outcome is ambiguous.
func (o *outcome) classifyBroken(err error, fault string, hasTimeout bool) {
	op, _ := errors.AsType[*net.OpError](err)
	switch {
	case o.disconnects && (o.stream && err == nil && o.events >= 3 || errors.Is(err, context.Canceled)):
		o.kind, o.reason = disconnected, "in the middle"
	case hasTimeout && errors.Is(err, context.DeadlineExceeded):
		o.kind, o.reason = disconnected, "after its timeout"
	case op != nil && op.Op == "dial": // only the relay can have refused it
		o.kind, o.reason = connectionLost, "before anything was sent"
	case err != nil && !errors.Is(err, context.DeadlineExceeded) && fault != "" && (fault != stopped || o.status == 0):
		o.kind, o.reason = connectionLost, fault
	default: // a gateway that stops finishes the responses that it has started
		o.kind, o.reason = ambiguous, fmt.Sprintf("%q: %d %v, %v: %q", fault, o.status, o.header, err, o.text)
	}
}

// setError sets the kind and the code if text is an expected error of the API.
func (o *outcome) setError(kind, text string) {
	var body struct {
		Error struct {
			Code, Message, Type string
			ID                  string `json:"request_id"`
		}
	}
	e := &body.Error
	if err := json.Unmarshal([]byte(text), &body); err != nil || e.Message == "" || e.Type == "" || e.ID != o.id {
		return
	}
	if status, known := expectedErrors[e.Code]; known && (kind == streamError || o.status == status) {
		o.kind, o.code = kind, e.Code
	}
}

// record adds an outcome.
func (c *chaosRun) record(o outcome) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.outcomes = append(c.outcomes, o)
}

// endedAt returns the ids of the requests that have ended at a gateway process, as their clients have seen.
func (c *chaosRun) endedAt(gateway *instance) map[string]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	ids := map[string]bool{}
	for i := range c.outcomes {
		if o := &c.outcomes[i]; o.gateway == gateway && o.id != "" && !o.incomplete() && o.kind != ambiguous {
			ids[o.id] = true
		}
	}
	return ids
}

// verify checks every outcome against the ledger and the log.
func (c *chaosRun) verify(rows []ledgerRow) {
	c.t.Helper()
	completed, count := &completedResponses{usage: map[string]gjson.Result{}}, map[string]int{}
	byTag := c.byTag(rows)
	logs, bounded := c.readLogs()
	for i := range c.outcomes {
		got := &c.outcomes[i]
		count[got.kind]++
		count[got.kind+": "+got.code+got.reason]++
		row, found := byTag[got.tag]
		c.checkRow(got, row, found, bounded[got.id])
		c.checkLog(got, logs)
		if got.usage.Exists() && (got.kind == completeResponse || got.kind == completeStream) {
			completed.usage[got.id] = got.usage
		}
		if got.status == http.StatusOK && got.applied < got.maxTokens {
			count["clamped"]++
		}
		if got.prompt == c.longRequests[0].prompt {
			count["long: "+got.kind]++
		}
		delete(byTag, got.tag)
	}
	for _, row := range byTag {
		c.t.Errorf("the ledger has a row that no client asked for: %+v", row)
	}
	_, interrupted := completed.verify(c.t, rows, c.uncappedKey)
	c.checkCaps(rows)
	c.t.Logf("%d requests, %d rows, %d interrupted", len(c.outcomes), len(rows), interrupted)
	for _, name := range slices.Sorted(maps.Keys(count)) {
		if !strings.HasSuffix(name, ": ") {
			c.t.Logf("%6d %s", count[name], name)
		}
	}
	for _, name := range []string{completeResponse, completeStream, disconnected, connectionLost, errorResponse + ": budget_exceeded"} {
		if count[name] == 0 {
			c.t.Errorf("no outcome of the kind %q: the run has not tested enough", name)
		}
	}
}

// byTag maps user tags to rows and fails the test if a request has two rows.
func (c *chaosRun) byTag(rows []ledgerRow) map[string]ledgerRow {
	c.t.Helper()
	all := map[string]ledgerRow{}
	for _, row := range rows {
		if before, twice := all[row.User]; twice {
			c.t.Errorf("one request has two rows: %+v %+v", before, row)
		}
		all[row.User] = row
	}
	return all
}

// checkRow checks the row of a request against what its client received. isBounded says that the backend was gone before it had
// reported the usage or counted the prompt, which was then charged by its bytes.
func (c *chaosRun) checkRow(got *outcome, row ledgerRow, found, isBounded bool) {
	c.t.Helper()
	settledOK := row.State == "settled" && row.Status == http.StatusOK && row.Code == ""
	mismatch := func(problem string) {
		c.t.Helper()
		c.t.Errorf("%s: %s, request %s: %s, %d events; row %+v", problem, got.kind+" "+got.code+got.reason, got.id, got.body, got.events, row)
	}
	switch got.kind {
	case completeResponse, completeStream:
		isCharged := row.Prompt == got.prompt || isBounded && row.Prompt > got.prompt
		if !settledOK || row.ID != got.id || !isCharged || row.Completion < got.events || row.Completion > got.n*got.applied {
			mismatch("the row differs from the complete response")
		}
	case streamError:
		if row.Code != got.code || row.Status != http.StatusOK || row.Completion < got.events {
			mismatch("the row differs from the error event")
		}
	case errorResponse:
		if found && (row.Code != got.code || row.Status != got.status || row.Prompt+row.Completion != 0) {
			mismatch("the row differs from the error response")
		}
	case disconnected, connectionLost:
		if found && got.reason == stopped {
			mismatch("a stopping gateway must finish the requests that it has accepted")
		}
		if !found && got.gateway.wasKilled() {
			return // a request under a second old has no row yet
		}
		partial := got.events > 0 && row.State != "interrupted" // an interrupted row may lack the last second
		if partial && (row.Prompt < got.prompt || row.Completion < got.events || row.Completion > got.n*got.applied) {
			mismatch("the row charges less or more than the client received")
		}
	default:
		mismatch("ambiguous")
	}
}

// checkCaps verifies that the usage under each cap adds up to no more than its limit.
func (c *chaosRun) checkCaps(rows []ledgerRow) {
	c.t.Helper()
	for _, limited := range c.caps {
		used := int64(0)
		for _, row := range rows {
			if slices.ContainsFunc(limited.secrets, func(secret string) bool { return strings.HasPrefix(secret, row.Key) }) {
				used += limited.kind.count(row.Prompt, row.Completion)
			}
		}
		c.t.Logf("%d of %d %s tokens of the %s are used", used, limited.limit, limited.kind.meter, limited.kind.window)
		if used > limited.limit {
			c.t.Errorf("%d tokens are used, over the cap of %d", used, limited.limit)
		}
	}
}

// logLine is a request's line in the gateway's log.
type logLine struct {
	ID     string `json:"request_id"`
	Msg    string
	Status int
	Code   string
	Cause  string
	text   string
}

// readLogs reads the lines of all requests from the logs of all gateway processes, and whose prompts were charged by their bytes.
func (c *chaosRun) readLogs() (all map[string]logLine, bounded map[string]bool) {
	c.t.Helper()
	all, bounded = map[string]logLine{}, map[string]bool{}
	for _, gw := range c.gateways {
		for text := range strings.Lines(gw.stderr.String()) {
			line := logLine{text: text}
			if json.Unmarshal([]byte(text), &line) != nil { // a kill can truncate the last line
				continue
			}
			if line.Msg == "a prompt is charged by its bytes" {
				bounded[line.ID] = true
			}
			if line.Msg != "request" {
				continue
			}
			if before, twice := all[line.ID]; twice {
				c.t.Errorf("one request has two log lines: %s%s", before.text, text)
			}
			all[line.ID] = line
		}
	}
	return all, bounded
}

// checkLog checks that the log line of a request has the status and code that the client received, and a cause if a
// backend failed.
func (c *chaosRun) checkLog(got *outcome, logs map[string]logLine) {
	c.t.Helper()
	if got.id == "" {
		return // the client did not learn the request ID
	}
	line, found := logs[got.id]
	switch {
	case !found:
		// The gateway writes the line after the response, or when it notices a disconnect. A kill can come in between.
		if end := got.gateway.exit.Load(); end == nil || end.how != killed || end.logged[got.id] {
			c.t.Errorf("no log line for request %s (%s %s)", got.id, got.kind, got.code)
		}
	case got.incomplete(): // the gateway may have recorded another outcome
	case line.Status != got.status || line.Code != got.code:
		c.t.Errorf("the client received %d %s, the log line is %s", got.status, got.code, line.text)
	case strings.HasPrefix(got.code, "upstream_") && line.Cause == "":
		c.t.Errorf("the log line has no cause: %s", line.text)
	}
}
