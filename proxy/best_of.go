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

// candidateBytes is what chooseBest needs for each choice, in bytes.
const candidateBytes = 64

// chooseBest implements best_of, which vLLM's V1 engine dropped: of the best_of choices of each prompt it keeps the n with
// the highest mean log-probability per token, re-indexed, without logprobs that the client did not ask for. Everything
// beside the choices stays as received; usage counts all choices, and so does the charge.
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

// hasLogprobs reports whether every choice has what chooseBest needs. Servers other than vLLM have no such log-probabilities.
func hasLogprobs(body []byte) bool {
	for _, choice := range gjson.GetBytes(body, "choices").Array() {
		if !choice.Get("logprobs.token_logprobs").IsArray() {
			return false
		}
	}
	return true
}

// appendChoice appends a choice with its new index, without the members that the client did not ask for.
func appendChoice(out []byte, raw string, index int, r *validate.Request) []byte {
	replaced := map[string]string{"index": strconv.Itoa(index)}
	if r.Logprobs == validate.Absent {
		replaced["logprobs"] = "null"
		if r.PromptLogprobs == validate.Absent {
			replaced["prompt_logprobs"] = "null" // echo with logprobs implies them
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

// meanLogprob returns the mean log-probability of a choice's generated tokens. With echo, the prompt's tokens come first;
// there are as many as prompt_logprobs, which vLLM then sends too.
func meanLogprob(choice gjson.Result, echo bool) float64 {
	prompt := 0
	if echo {
		prompt = int(choice.Get("prompt_logprobs.#").Int())
	}
	sum, n, position := 0.0, 0, 0
	choice.Get("logprobs.token_logprobs").ForEach(func(_, v gjson.Result) bool {
		if position >= prompt && v.Type == gjson.Number {
			sum += v.Num
			n++
		}
		position++
		return true
	})
	if n == 0 {
		return math.Inf(-1)
	}
	return sum / float64(n)
}
