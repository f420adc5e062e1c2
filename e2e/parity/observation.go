package parity

import (
	"net/http"
	"slices"
	"strings"

	"github.com/tidwall/gjson"
)

// observation is a response to one request, as it was received.
type observation struct {
	status      int
	contentType string
	body        string
}

const (
	eventPrefix = "data: "
	eventEnd    = "\n\n"
	doneEvent   = "data: [DONE]"
)

// events returns the parts of a stream that end with a blank line, without it. The text after the last one is a part too.
func (o *observation) events() []string {
	return strings.Split(strings.TrimSuffix(o.body, eventEnd), eventEnd)
}

// eventData returns the JSON of an event; "" if it has none.
func eventData(event string) string {
	data, ok := strings.CutPrefix(event, eventPrefix)
	if !ok || !gjson.Valid(data) {
		return ""
	}
	return data
}

// failed reports whether the response is an error: by its status, as a body or as an event of a stream.
func (o *observation) failed() bool { return o.status != http.StatusOK || o.errorObject().Exists() }

// errorObject returns the error that the response carries. Some versions send it without the member error around it.
func (o *observation) errorObject() gjson.Result {
	documents := []string{o.body}
	if o.isStream() {
		documents = o.events()
		for i, event := range documents {
			documents[i] = eventData(event)
		}
	}
	for _, text := range documents {
		document := gjson.Parse(text)
		if e := document.Get("error"); e.Exists() && e.Type != gjson.Null {
			return e
		}
		if document.Get("object").Str == "error" {
			return document
		}
	}
	return gjson.Result{}
}

func (o *observation) isStream() bool { return strings.HasPrefix(o.contentType, "text/event-stream") }

// complete reports whether a stream ends as it must.
func (o *observation) complete() bool {
	return !o.isStream() || strings.HasSuffix(o.body, eventEnd+doneEvent+eventEnd)
}

// usage returns the total of the response's last usage, and whether it has one.
func (o *observation) usage() (int64, bool) {
	documents := []string{o.body}
	if o.isStream() {
		documents = o.events()
		for i, event := range documents {
			documents[i] = eventData(event)
		}
	}
	for _, text := range slices.Backward(documents) {
		if gjson.Get(text, "choices.0").Exists() && o.isStream() {
			continue // usage of one choice only
		}
		if total := gjson.Get(text, "usage.total_tokens"); total.Exists() {
			return total.Int(), true
		}
	}
	return 0, false
}

// normalized are the members that differ between two responses to one request: vLLM makes a new id and takes the time.
var normalized = map[string]string{"id": `"ID"`, "created": "0"}

// normalize replaces what must differ: id and created, in a plain response and in each event of a stream.
func (o observation) normalize() observation {
	if !o.isStream() {
		if gjson.Valid(o.body) {
			o.body = replaceMembers(o.body, normalized)
		}
		return o
	}
	events := strings.SplitAfter(o.body, eventEnd)
	for i, event := range events {
		if data := eventData(strings.TrimSuffix(event, eventEnd)); strings.HasPrefix(data, "{") {
			events[i] = eventPrefix + replaceMembers(data, normalized) + event[len(eventPrefix)+len(data):]
		}
	}
	o.body = strings.Join(events, "")
	return o
}

// groupChoices sorts the events of a normalized stream by choice, stably: vLLM sends the events of several choices in any
// order.
func (o observation) groupChoices() observation {
	if !o.isStream() {
		return o
	}
	events := strings.SplitAfter(o.body, eventEnd)
	order := func(event string) int64 {
		index := gjson.Get(eventData(strings.TrimSuffix(event, eventEnd)), "choices.0.index")
		if !index.Exists() {
			return 1 << 32 // usage, [DONE]
		}
		return index.Int()
	}
	slices.SortStableFunc(events, func(a, b string) int { return int(order(a) - order(b)) })
	o.body = strings.Join(events, "")
	return o
}

// appendMember appends a member to a plain response.
func (o *observation) appendMember(member string) {
	if end := strings.LastIndexByte(o.body, '}'); end >= 0 {
		o.body = o.body[:end] + "," + member + o.body[end:]
	}
}

// dropUsageEvent removes the last event without choices from a stream.
func (o *observation) dropUsageEvent() {
	events := strings.SplitAfter(o.body, eventEnd)
	for i, event := range slices.Backward(events) {
		data := eventData(strings.TrimSuffix(event, eventEnd))
		if list := gjson.Get(data, "choices"); list.IsArray() && len(list.Array()) == 0 {
			o.body = strings.Join(slices.Delete(events, i, i+1), "")
			return
		}
	}
}

// merge returns what a normalized stream says about each choice, however its tokens are split into events: vLLM puts
// several tokens in an event if they are ready together.
func (o observation) merge() string {
	var out strings.Builder
	texts, order := map[string]string{}, []string{}
	add := func(path, text string) {
		if _, ok := texts[path]; !ok {
			order = append(order, path)
		}
		texts[path] += text
	}
	for _, event := range o.events() {
		data := gjson.Parse(eventData(event))
		for _, choice := range data.Get("choices").Array() {
			index := choice.Get("index").Raw
			add(index+".text", choice.Get("text").String())
			for _, name := range []string{"finish_reason", "stop_reason"} {
				if v := choice.Get(name); v.Type != gjson.Null {
					add(index+"."+name, v.Raw)
				}
			}
			choice.Get("logprobs").ForEach(func(name, values gjson.Result) bool {
				for _, v := range values.Array() {
					add(index+"."+name.Str, v.Raw+" ")
				}
				return true
			})
		}
		if len(data.Get("choices").Array()) == 0 {
			add("usage", data.Get("usage").Raw)
		}
	}
	slices.Sort(order)
	for _, path := range order {
		out.WriteString(path + "=" + texts[path] + "\n")
	}
	return out.String()
}
