package parity

import (
	"fmt"
	"iter"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"
)

// observation is a response to one request, as it was received.
type observation struct {
	status      int
	contentType string
	stream      bool
	parts       []string // the events of a stream, each with the blank line that ends it; the body of a plain response
}

const (
	eventPrefix = "data: "
	eventEnd    = "\n\n"
	doneEvent   = "data: [DONE]\n\n"
)

func observe(status int, contentType, body string) observation {
	o := observation{status: status, contentType: contentType, parts: []string{body}}
	if o.stream = strings.HasPrefix(contentType, "text/event-stream"); o.stream {
		o.parts = strings.SplitAfter(body, eventEnd)
	}
	return o
}

// document returns the JSON of a part; "" if it has none.
func (o *observation) document(part string) string {
	if o.stream {
		var ok bool
		if part, ok = strings.CutPrefix(strings.TrimSuffix(part, eventEnd), eventPrefix); !ok {
			return ""
		}
	}
	if !gjson.Valid(part) {
		return ""
	}
	return part
}

// documents returns the JSON of the response, or of each event of a stream.
func (o *observation) documents() (all []gjson.Result) {
	for _, part := range o.parts {
		all = append(all, gjson.Parse(o.document(part)))
	}
	return all
}

// failed reports whether the response is an error: by its status, as a body or as an event of a stream.
func (o *observation) failed() bool { return o.status != http.StatusOK || o.errorObject().Exists() }

// errorObject returns the error that the response carries. Some versions send it without the member error around it.
func (o *observation) errorObject() gjson.Result {
	for _, document := range o.documents() {
		if e := document.Get("error"); e.Exists() && e.Type != gjson.Null {
			return e
		}
		if document.Get("object").Str == "error" {
			return document
		}
	}
	return gjson.Result{}
}

// complete reports whether a stream ends as it must.
func (o *observation) complete() bool {
	n := len(o.parts)
	return !o.stream || n >= 2 && o.parts[n-1] == "" && o.parts[n-2] == doneEvent
}

// usage returns the total of the response's last usage, and whether it has one.
func (o *observation) usage() (int64, bool) {
	for _, document := range slices.Backward(o.documents()) {
		if o.stream && document.Get("choices.0").Exists() {
			continue // usage of one choice only
		}
		if total := document.Get("usage.total_tokens"); total.Exists() {
			return total.Int(), true
		}
	}
	return 0, false
}

// normalize replaces what differs between two responses to one request: vLLM makes a new id and takes the time.
func (o *observation) normalize() {
	for i, part := range o.parts {
		if text := o.document(part); strings.HasPrefix(text, "{") {
			o.parts[i] = strings.Replace(part, text, replaceMembers(text, map[string]string{"id": `"ID"`, "created": "0"}), 1)
		}
	}
}

func (o *observation) appendMember(member string) {
	if end := strings.LastIndexByte(o.parts[0], '}'); end >= 0 {
		o.parts[0] = o.parts[0][:end] + "," + member + o.parts[0][end:]
	}
}

// dropUsageEvent removes the last event without choices from a stream.
func (o *observation) dropUsageEvent() {
	for i, document := range slices.Backward(o.documents()) {
		if list := document.Get("choices"); list.IsArray() && len(list.Array()) == 0 {
			o.parts = slices.Delete(o.parts, i, i+1)
			return
		}
	}
}

// byChoice returns the parts sorted by choice, stably: vLLM sends the events of several choices in any order.
func (o *observation) byChoice() []string {
	sorted := slices.Clone(o.parts)
	order := func(part string) int64 {
		if index := gjson.Get(o.document(part), "choices.0.index"); index.Exists() && o.stream {
			return index.Int()
		}
		return 1 << 32 // usage, [DONE]
	}
	slices.SortStableFunc(sorted, func(a, b string) int { return int(order(a) - order(b)) })
	return sorted
}

// shape returns the paths of all members of a response, without indexes. Two responses of a backend that samples at random
// differ in values, and not in shape.
func (o *observation) shape() map[string]bool {
	paths := map[string]bool{}
	for _, document := range o.documents() {
		for path := range nodes(document) {
			paths[withoutIndexes(redact(path))] = true
		}
	}
	return paths
}

// nodes returns the members and elements of a JSON value, at all depths, by their paths.
func nodes(v gjson.Result) iter.Seq2[string, gjson.Result] {
	return func(yield func(string, gjson.Result) bool) { walk("", v, yield) }
}

func walk(prefix string, v gjson.Result, yield func(string, gjson.Result) bool) bool {
	i, more := 0, true
	if !v.IsObject() && !v.IsArray() {
		return true
	}
	v.ForEach(func(name, value gjson.Result) bool {
		path := prefix + name.Str
		if v.IsArray() {
			path = prefix + strconv.Itoa(i)
			i++
		}
		more = yield(path, value) && walk(path+".", value, yield)
		return more
	})
	return more
}

var (
	indexes    = regexp.MustCompile(`\.\d+(\.|$)`)
	tokenNames = regexp.MustCompile(`((?:top|prompt)_logprobs\.\d+)\..*`)
)

func withoutIndexes(path string) string { return indexes.ReplaceAllString(path, "[]$1") }

// redact returns a path without the names of members that are texts of tokens.
func redact(path string) string { return tokenNames.ReplaceAllString(path, "$1.TOKEN") }

// equal reports whether a client cannot tell two normalized responses apart. Events of different choices may come in any
// order.
func equal(a, b *observation) bool {
	return a.status == b.status && a.contentType == b.contentType && a.complete() == b.complete() &&
		slices.Equal(a.byChoice(), b.byChoice())
}

// difference describes where the gateway's response differs from a backend's. It shows no text of either.
func difference(direct, gateway *observation) string {
	switch {
	case direct.status != gateway.status:
		return fmt.Sprintf("status %d, directly %d", gateway.status, direct.status) + describeCode(gateway)
	case gateway.failed() && !direct.failed():
		return "an error, directly none" + describeCode(gateway)
	case direct.contentType != gateway.contentType:
		return fmt.Sprintf("Content-Type %s, directly %s", gateway.contentType, direct.contentType)
	case direct.complete() != gateway.complete():
		return "the stream does not end with [DONE], directly it does"
	}
	directly, through := direct.byChoice(), gateway.byChoice()
	for i := range min(len(directly), len(through)) {
		if directly[i] == through[i] {
			continue
		}
		where := firstDifference(gjson.Parse(direct.document(directly[i])), gjson.Parse(gateway.document(through[i])))
		if direct.stream {
			where = fmt.Sprintf("event %d of %d: %s", i+1, len(directly), where)
		}
		return where
	}
	return fmt.Sprintf("%d events, directly %d", len(through), len(directly))
}

func describeCode(o *observation) string {
	if code := o.errorObject().Get("code").Str; code != "" {
		return " (" + code + ")"
	}
	return ""
}

// firstDifference describes the first difference between two JSON values.
func firstDifference(direct, gateway gjson.Result) string {
	directly, through := maps.Collect(nodes(direct)), maps.Collect(nodes(gateway))
	for path, v := range nodes(direct) {
		switch other, found := through[path]; {
		case !found:
			return redact(path) + " is missing"
		case v.Type != other.Type || v.IsArray() != other.IsArray():
			return redact(path) + " has another type"
		case v.Type != gjson.JSON && v.Value() != other.Value():
			return redact(path) + " has another value"
		}
	}
	for path := range nodes(gateway) {
		if _, found := directly[path]; !found {
			return redact(path) + " is additional"
		}
	}
	return "its members are in another order or spelled in other bytes"
}
