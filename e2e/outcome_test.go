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

// outcome is what a client of the ordeal got, in as many words as are needed later.
type outcome struct {
	receipt
	kind string // one of those below
	code string // of an error
	why  string // of what was cut off, or is in doubt
	id   string
	tag  string // by which the ledger knows it, too, where the client does not know the id
	at   time.Time
	life *life // of the gateway that was asked
}

const (
	wholeAnswer = "whole answer"
	wholeStream = "whole stream"
	brokenOff   = "stream with an error event"
	refusal     = "refusal"
	leaving     = "left"
	cutOff      = "cut off"
	inDoubt     = "IN DOUBT"
)

// refusals are the codes that the ordeal can bring about, and their statuses.
var refusals = map[string]int{
	"budget_exceeded": http.StatusTooManyRequests, "upstream_unreachable": http.StatusBadGateway, "upstream_server_error": http.StatusBadGateway,
	"circuit_open": http.StatusServiceUnavailable, "overloaded": http.StatusServiceUnavailable,
}

// outcomeOf places an order, waits for its end as long as stay, and finds out what became of it.
func (o *ordeal) outcomeOf(some order, secret string, stay time.Duration) outcome {
	address, tag := "", fmt.Sprint(o.asked.Add(1))
	some.body = fmt.Sprintf(`{"user":%q,%s`, tag, some.body[1:])
	ctx, stop := context.WithTimeout(o.t.Context(), stay)
	defer stop()
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) { address = got.Conn.LocalAddr().String() }})
	r, err := some.place(ctx, o.front.url(), secret)
	got := outcome{receipt: r, tag: tag, at: time.Now(), life: o.front.behind(address)}
	got.order = some
	if r.header != nil {
		got.id = r.id()
	}
	if got.classify(err); got.kind == "" {
		got.excuse(err, o.front.explanation(address), stay < forever)
	}
	got.text, got.header = "", nil
	return got
}

// forever is longer than any request takes whose connection carries anything.
const forever = 3 * patience

// classify finds the kind where what came says so by itself.
func (got *outcome) classify(err error) {
	switch {
	case got.status == 0:
	case got.status != http.StatusOK && err == nil:
		got.fail(refusal, got.text)
	case got.status == http.StatusOK && got.stream:
		got.classifyStream()
	case got.status == http.StatusOK && err == nil && gjson.Get(got.text, "choices.0.finish_reason").Exists() && gjson.Get(got.text, "usage").Exists():
		got.kind = wholeAnswer
	}
}

// classifyStream looks whether a stream has one of the two ends that it may have.
func (got *outcome) classifyStream() {
	events, done := strings.CutSuffix(strings.TrimRight(got.text, "\n"), "data: [DONE]")
	before, failure, failed := strings.Cut(events, `data: {"error":`)
	all := "[" + strings.ReplaceAll(strings.ReplaceAll(strings.TrimSuffix(before, "\n\n"), "\n\n", ","), "data: ", "") + "]"
	switch {
	case !gjson.Valid(all):
	case failed && !done && strings.HasSuffix(got.text, "\n\n"):
		got.fail(brokenOff, `{"error":`+failure)
	case done && !failed && strings.Contains(events, `"finish_reason":"`):
		got.kind = wholeStream
	}
}

// excuse finds out why there was neither a whole answer nor an error: the client has left, or what has befallen the
// connection, or its server, may have broken it. Otherwise the client is in doubt, and nothing excuses it.
func (got *outcome) excuse(err error, harm string, impatient bool) {
	op, _ := errors.AsType[*net.OpError](err)
	switch {
	case got.leaves && (got.stream && err == nil && got.events >= 3 || errors.Is(err, context.Canceled)):
		got.kind, got.why = leaving, "in the middle"
	case impatient && errors.Is(err, context.DeadlineExceeded):
		got.kind, got.why = leaving, "after waiting for long"
	case op != nil && op.Op == "dial": // nobody but the relay can have refused it
		got.kind, got.why = cutOff, "before anything was sent"
	case err != nil && !errors.Is(err, context.DeadlineExceeded) && harm != "" && (harm != stopped || got.status == 0):
		got.kind, got.why = cutOff, harm
	default: // a stop lets nobody down who has an answer begun
		got.kind, got.why = inDoubt, fmt.Sprintf("%q: %d %v, %v: %q", harm, got.status, got.header, err, got.text)
	}
}

// fail takes an error of the API, where it is one that can come.
func (got *outcome) fail(kind, text string) {
	var body struct {
		Error struct {
			Code, Message, Type string
			ID                  string `json:"request_id"`
		}
	}
	e := &body.Error
	if err := json.Unmarshal([]byte(text), &body); err != nil || e.Message == "" || e.Type == "" || e.ID != got.id {
		return
	}
	if status, known := refusals[e.Code]; known && (kind == brokenOff || got.status == status) {
		got.kind, got.code = kind, e.Code
	}
}

func (o *ordeal) note(got outcome) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.outcomes = append(o.outcomes, got)
}

// judge checks every outcome against the ledger and the log.
func (o *ordeal) judge(rows []ledgerRow) {
	o.t.Helper()
	seen, count := &receipts{seen: map[string]gjson.Result{}}, map[string]int{}
	byTag := o.byTag(rows)
	logs := o.readLogs()
	for i := range o.outcomes {
		got := &o.outcomes[i]
		count[got.kind]++
		count[got.kind+": "+got.code+got.why]++
		row, found := byTag[got.tag]
		o.checkRow(got, row, found)
		o.checkLog(got, logs)
		if got.usage.Exists() && (got.kind == wholeAnswer || got.kind == wholeStream) {
			seen.seen[got.id] = got.usage
		}
		if got.status == http.StatusOK && got.applied < got.maxTokens {
			count["clamped"]++
		}
		if got.prompt == o.long[0].prompt {
			count["long: "+got.kind]++
		}
		delete(byTag, got.tag)
	}
	for _, row := range byTag {
		o.t.Errorf("nobody has asked for %+v", row)
	}
	_, interrupted := seen.check(o.t, rows, o.free)
	o.checkCaps(rows)
	o.t.Logf("%d requests, %d rows, %d interrupted", len(o.outcomes), len(rows), interrupted)
	for _, name := range slices.Sorted(maps.Keys(count)) {
		if !strings.HasSuffix(name, ": ") {
			o.t.Logf("%6d %s", count[name], name)
		}
	}
	for _, name := range []string{wholeAnswer, wholeStream, leaving, cutOff, refusal + ": budget_exceeded"} {
		if count[name] == 0 {
			o.t.Errorf("%s: there was none, so this has shown too little", name)
		}
	}
}

// byTag finds each request's row, of which there must not be two.
func (o *ordeal) byTag(rows []ledgerRow) map[string]ledgerRow {
	o.t.Helper()
	all := map[string]ledgerRow{}
	for _, row := range rows {
		if before, twice := all[row.User]; twice {
			o.t.Errorf("one request is on the ledger twice: %+v %+v", before, row)
		}
		all[row.User] = row
	}
	return all
}

// checkRow checks what the ledger says of a request, if anything.
func (o *ordeal) checkRow(got *outcome, row ledgerRow, found bool) {
	o.t.Helper()
	whole := row.State == "settled" && row.Status == http.StatusOK && row.Code == ""
	complain := func(what string) {
		o.t.Helper()
		o.t.Errorf("%s: %s, request %s of %s, %d events; the ledger says %+v", what, got.kind+" "+got.code+got.why, got.id, got.body, got.events, row)
	}
	switch got.kind {
	case wholeAnswer, wholeStream:
		if !whole || row.ID != got.id || row.Prompt != got.prompt || row.Completion < got.events || row.Completion > got.n*got.applied {
			complain("not what the client has seen")
		}
	case brokenOff:
		if row.Code != got.code || row.Status != http.StatusOK || row.Completion < got.events {
			complain("not what the client was told")
		}
	case refusal:
		if found && (row.Code != got.code || row.Status != got.status || row.Prompt+row.Completion != 0) {
			complain("not what the client was told")
		}
	case leaving, cutOff:
		if found && got.why == stopped {
			complain("a stop is to answer what it has begun")
		}
		begun := got.events > 0 && row.State != "interrupted" // of which a second's worth may be lost
		if begun && (row.Prompt < got.prompt || row.Completion < got.events || row.Completion > got.n*got.applied) {
			complain("not what the client has had")
		}
	default:
		complain("in doubt")
	}
}

// checkCaps adds up what each cap has seen used.
func (o *ordeal) checkCaps(rows []ledgerRow) {
	o.t.Helper()
	for _, c := range o.caps {
		used := int64(0)
		for _, row := range rows {
			if slices.ContainsFunc(c.secrets, func(secret string) bool { return strings.HasPrefix(secret, row.Key) }) {
				used += c.meter.count(row.Prompt, row.Completion)
			}
		}
		o.t.Logf("%d of %d tokens are used of a %s's %s", used, c.most, c.meter.window, c.meter.name)
		if used > c.most {
			o.t.Errorf("%d tokens are used of %d", used, c.most)
		}
	}
}

// logLine is what the gateway's log says of a request.
type logLine struct {
	ID     string `json:"request_id"`
	Msg    string
	Status int
	Code   string
	Cause  string
	text   string
}

// readLogs reads the lines of all requests, of every life of the gateway.
func (o *ordeal) readLogs() map[string]logLine {
	o.t.Helper()
	all := map[string]logLine{}
	for _, g := range o.lives {
		for text := range strings.Lines(g.stderr.String()) {
			line := logLine{text: text}
			if json.Unmarshal([]byte(text), &line) != nil || line.Msg != "request" { // a kill can cut the last one off
				continue
			}
			if before, twice := all[line.ID]; twice {
				o.t.Errorf("the log has two lines of one request: %s%s", before.text, text)
			}
			all[line.ID] = line
		}
	}
	return all
}

// checkLog checks that the log says the same as the client was told, and in more words where it was a failure.
func (o *ordeal) checkLog(got *outcome, logs map[string]logLine) {
	o.t.Helper()
	if got.id == "" {
		return // nothing has told the client which request it was
	}
	line, found := logs[got.id]
	away := got.kind == leaving || got.kind == cutOff
	switch {
	case !found:
		// The line is written behind the answer, and when the gateway learns that a client is away: a kill can come between.
		if end := got.life.death.Load(); end == nil || end.how != killed || !away && got.at.Before(end.at.Add(-logDelay)) {
			o.t.Errorf("the log says nothing of %s (%s %s)", got.id, got.kind, got.code)
		}
	case away: // the gateway may have seen it otherwise
	case line.Status != got.status || line.Code != got.code:
		o.t.Errorf("the client was told %d %s, and the log says %s", got.status, got.code, line.text)
	case strings.HasPrefix(got.code, "upstream_") && line.Cause == "":
		o.t.Errorf("the log gives no cause: %s", line.text)
	}
}

// logDelay is more than passes between an answer and its line in the log.
const logDelay = 2 * time.Second
