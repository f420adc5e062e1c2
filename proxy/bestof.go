package proxy

import (
	"cmp"
	"math"
	"slices"
	"strconv"

	"github.com/tidwall/gjson"

	"basegate/validate"
)

// candidate is one of the best_of choices of a prompt.
type candidate struct {
	raw   string  // the choice as vLLM sent it
	score float64 // mean log-probability per generated token
}

// chooseBest does what vLLM's engine no longer does: of the best_of choices of every prompt it keeps the n with the
// highest mean log-probability per token, re-indexed, without the logprobs that the client did not ask for. What is
// beside the choices stays as it came; usage counts them all, and so does the charge.
func chooseBest(body []byte, r *validate.Request) []byte {
	choices := gjson.GetBytes(body, "choices")
	groups := make([][]candidate, r.Prompts)
	choices.ForEach(func(_, c gjson.Result) bool {
		if prompt := int(c.Get("index").Int() / r.BestOf); prompt >= 0 && prompt < len(groups) {
			groups[prompt] = append(groups[prompt], candidate{c.Raw, meanLogprob(c, r.Echo)})
		}
		return true
	})
	out := append(make([]byte, 0, len(body)), body[:choices.Index]...)
	out = append(out, '[')
	index := 0
	for _, group := range groups {
		slices.SortStableFunc(group, func(a, b candidate) int { return cmp.Compare(b.score, a.score) })
		for _, c := range group[:min(int(r.N), len(group))] {
			if index > 0 {
				out = append(out, ',')
			}
			out = appendChoice(out, c.raw, index, r)
			index++
		}
	}
	out = append(out, ']')
	return append(out, body[choices.Index+len(choices.Raw):]...)
}

// appendChoice appends a choice under its new index, in the shape that the client asked for.
func appendChoice(out []byte, raw string, index int, r *validate.Request) []byte {
	replaced := map[string]string{"index": strconv.Itoa(index)}
	if r.Logprobs == validate.Absent {
		replaced["logprobs"] = "null"
		if r.PromptLogprobs == validate.Absent {
			replaced["prompt_logprobs"] = "null" // echo with logprobs brings them along
		}
	}
	copied := 0
	gjson.Parse(raw).ForEach(func(name, value gjson.Result) bool {
		if text, ok := replaced[name.Str]; ok {
			out = append(out, raw[copied:value.Index]...)
			out = append(out, text...)
			copied = value.Index + len(value.Raw)
		}
		return true
	})
	return append(out, raw[copied:]...)
}

// meanLogprob is the mean log-probability of a choice's generated tokens. With echo the prompt's come first; they are
// as many as the prompt_logprobs, which vLLM then sends too.
func meanLogprob(choice gjson.Result, echo bool) float64 {
	prompt := 0
	if echo {
		prompt = len(choice.Get("prompt_logprobs").Array())
	}
	sum, n := 0.0, 0
	for i, v := range choice.Get("logprobs.token_logprobs").Array() {
		if i >= prompt && v.Type == gjson.Number {
			sum += v.Num
			n++
		}
	}
	if n == 0 {
		return math.Inf(-1)
	}
	return sum / float64(n)
}
