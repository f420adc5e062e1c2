package parity

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"
)

// documented is what the gateway documents to do to a request and its response. A backend's response to the edited
// request, transformed, is what a client must receive.
type documented struct {
	edits     map[string]string // values of members; empty: the member is removed
	remarks   []string
	transform []func(*observation)
}

// document returns the documented edits of a request. guided says that the backends have the fields of vLLM before 0.11 for
// structured output.
func document(r *request, guided bool) documented {
	body := r.asJSON
	d := documented{edits: map[string]string{}}
	body.ForEach(func(name, value gjson.Result) bool {
		if value.Type == gjson.Null {
			d.edits[name.Str] = ""
		}
		return true
	})
	if len(d.edits) > 0 {
		d.remarks = append(d.remarks, "members that are null are left out")
	}
	if body.Get("best_of").Int() > 0 {
		d.documentBestOf(r, body)
	}
	if r.stream && !body.Get("stream_options.include_usage").Bool() {
		// The gateway needs the usage of every stream.
		d.edits["stream_options"] = `{"include_usage": true}`
		d.remarks = append(d.remarks, "include_usage is added, and the event with the usage left out")
		d.transform = append(d.transform, (*observation).dropUsageEvent)
	}
	if guided {
		d.documentGuided(body)
	}
	if user := body.Get("user"); user.Type == gjson.String && !r.stream {
		d.remarks = append(d.remarks, "the response ends with user")
		d.transform = append(d.transform, func(o *observation) { o.appendMember(`"user":` + user.Raw) })
	}
	return d
}

// documentBestOf edits best_of as the gateway does for engines without it: n becomes best_of, and the n choices of
// highest mean log-probability are kept.
func (d *documented) documentBestOf(r *request, body gjson.Result) {
	bestOf, n := body.Get("best_of").Int(), max(1, body.Get("n").Int())
	d.edits["best_of"] = ""
	if bestOf == n {
		d.remarks = append(d.remarks, "best_of equals n and is left out")
		return
	}
	d.remarks = append(d.remarks, "best_of is emulated")
	d.edits["n"] = strconv.FormatInt(bestOf, 10)
	hasLogprobs := body.Get("logprobs").Type == gjson.Number
	if !hasLogprobs {
		d.edits["logprobs"] = "0"
	}
	d.transform = append(d.transform, func(o *observation) {
		o.parts[0] = chooseBest(o.parts[0], bestOf, n, r.prompt.count, hasLogprobs, body.Get("echo").Bool())
	})
}

// documentGuided edits structured output as the gateway does for vLLM before 0.11.
func (d *documented) documentGuided(body gjson.Result) {
	before := len(d.edits)
	body.Get("structured_outputs").ForEach(func(name, value gjson.Result) bool {
		d.edits["structured_outputs"], d.edits["guided_"+name.Str] = "", value.Raw
		return true
	})
	if schema := body.Get("response_format.json_schema.schema"); schema.Exists() {
		d.edits["response_format"], d.edits["guided_json"] = "", schema.Raw
	}
	if len(d.edits) > before {
		d.remarks = append(d.remarks, "structured output is sent in the fields of vLLM before 0.11")
	}
}

// members returns the members of the edited request after model and prompt.
func (d *documented) members(body gjson.Result) string {
	var members []string
	body.ForEach(func(name, value gjson.Result) bool {
		if _, edited := d.edits[name.Str]; !edited && name.Str != "model" && name.Str != "prompt" {
			members = append(members, encode(name.Str)+": "+value.Raw)
		}
		return true
	})
	for name, value := range d.edits {
		if value != "" {
			members = append(members, encode(name)+": "+value)
		}
	}
	return strings.Join(members, ", ")
}

// chooseBest keeps the n best of the bestOf choices of each prompt.
func chooseBest(body string, bestOf, n, prompts int64, keepLogprobs, echo bool) string {
	all := gjson.Get(body, "choices")
	groups := make([][]gjson.Result, prompts)
	for _, c := range all.Array() {
		if i := c.Get("index").Int() / bestOf; i >= 0 && i < prompts {
			groups[i] = append(groups[i], c)
		}
	}
	var kept []string
	for _, group := range groups {
		slices.SortStableFunc(group, func(a, b gjson.Result) int {
			return cmp.Compare(meanLogprob(b, echo), meanLogprob(a, echo))
		})
		for _, c := range group[:min(int(n), len(group))] {
			edits := map[string]string{"index": strconv.Itoa(len(kept))}
			if !keepLogprobs {
				edits["logprobs"], edits["prompt_logprobs"] = "null", "null"
			}
			kept = append(kept, replaceMembers(c.Raw, edits))
		}
	}
	return body[:all.Index] + "[" + strings.Join(kept, ",") + "]" + body[all.Index+len(all.Raw):]
}

// meanLogprob returns the mean log-probability of the generated tokens of a choice.
func meanLogprob(choice gjson.Result, echo bool) float64 {
	values := choice.Get("logprobs.token_logprobs").Array()
	if echo {
		values = values[min(len(values), len(choice.Get("prompt_logprobs").Array())):]
	}
	if len(values) == 0 {
		return math.Inf(-1)
	}
	sum := 0.0
	for _, v := range values {
		sum += v.Num
	}
	return sum / float64(len(values))
}

// replaceMembers replaces the values of members of one JSON object and leaves every other byte.
func replaceMembers(object string, values map[string]string) string {
	var out strings.Builder
	copied := 0
	gjson.Parse(object).ForEach(func(name, value gjson.Result) bool {
		if text, ok := values[name.Str]; ok {
			out.WriteString(object[copied:value.Index])
			out.WriteString(text)
			copied = value.Index + len(value.Raw)
		}
		return true
	})
	out.WriteString(object[copied:])
	return out.String()
}
