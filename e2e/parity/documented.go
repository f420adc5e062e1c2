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
	members   string // of the edited request
	remarks   []string
	transform []func(*observation)
}

// document returns the documented edits of a request. Without any, members equals the request's and there are no remarks.
// guided says that the backends have the fields of vLLM before 0.11 for structured output.
func document(r *request, guided bool) documented {
	body := r.asJSON
	d := documented{}
	edits := map[string]string{} // an empty value removes the member
	body.ForEach(func(name, value gjson.Result) bool {
		if value.Type == gjson.Null {
			edits[name.Str] = ""
		}
		return true
	})
	if len(edits) > 0 {
		d.remarks = append(d.remarks, "members that are null are left out")
	}
	extra := d.documentBestOf(r, body, edits)
	extra = append(extra, d.documentUsage(r, body, edits)...)
	if guided {
		extra = append(extra, d.documentGuided(body, edits)...)
	}
	if user := body.Get("user"); user.Type == gjson.String && !r.stream {
		d.remarks = append(d.remarks, "the response ends with user")
		d.transform = append(d.transform, func(o *observation) { o.appendMember(`"user":` + user.Raw) })
	}
	d.members = editMembers(body, edits, extra)
	return d
}

// documentBestOf edits best_of as the gateway does for engines without it: n becomes best_of, and the n choices of
// highest mean log-probability are kept.
func (d *documented) documentBestOf(r *request, body gjson.Result, edits map[string]string) (extra []string) {
	bestOf, n := body.Get("best_of").Int(), max(1, body.Get("n").Int())
	if bestOf == 0 {
		return nil
	}
	edits["best_of"] = ""
	if bestOf == n {
		d.remarks = append(d.remarks, "best_of equals n and is left out")
		return nil
	}
	d.remarks = append(d.remarks, "best_of is emulated")
	edits["n"] = ""
	extra = append(extra, `"n": `+strconv.FormatInt(bestOf, 10))
	hasLogprobs := body.Get("logprobs").Type == gjson.Number
	if !hasLogprobs {
		extra = append(extra, `"logprobs": 0`)
	}
	d.transform = append(d.transform, func(o *observation) {
		o.parts[0] = chooseBest(o.parts[0], bestOf, n, r.prompt.count, hasLogprobs, body.Get("echo").Bool())
	})
	return extra
}

// documentGuided edits structured output as the gateway does for vLLM before 0.11.
func (d *documented) documentGuided(body gjson.Result, edits map[string]string) (extra []string) {
	body.Get("structured_outputs").ForEach(func(name, value gjson.Result) bool {
		edits["structured_outputs"] = ""
		extra = append(extra, encode("guided_"+name.Str)+": "+value.Raw)
		return true
	})
	if schema := body.Get("response_format.json_schema.schema"); schema.Exists() {
		edits["response_format"] = ""
		extra = append(extra, `"guided_json": `+schema.Raw)
	}
	if len(extra) > 0 {
		d.remarks = append(d.remarks, "structured output is sent in the fields of vLLM before 0.11")
	}
	return extra
}

// documentUsage edits stream_options: the gateway needs the usage of every stream, and leaves the event with it out if the
// client did not ask for it.
func (d *documented) documentUsage(r *request, body gjson.Result, edits map[string]string) (extra []string) {
	if !r.stream || body.Get("stream_options.include_usage").Bool() {
		return nil
	}
	edits["stream_options"] = ""
	d.remarks = append(d.remarks, "include_usage is added, and the event with the usage left out")
	d.transform = append(d.transform, (*observation).dropUsageEvent)
	return []string{`"stream_options": {"include_usage": true}`}
}

// editMembers returns the members after model and prompt with edits and extra members.
func editMembers(body gjson.Result, edits map[string]string, extra []string) string {
	var members []string
	body.ForEach(func(name, value gjson.Result) bool {
		if _, removed := edits[name.Str]; !removed && name.Str != "model" && name.Str != "prompt" {
			members = append(members, encode(name.Str)+": "+value.Raw)
		}
		return true
	})
	return strings.Join(append(members, extra...), ", ")
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
