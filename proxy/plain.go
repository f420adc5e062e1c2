package proxy

import (
	"cmp"
	"errors"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/tidwall/gjson"

	"basegate/breaker"
	"basegate/budget/admission"
	apierr "basegate/errors"
	"basegate/proxy/stream"
	"basegate/validate"
)

var errIncomplete = errors.New("the response lacks a choice, or a choice that has finished")

// freePlain is the largest buffer that is not counted, in bytes: a running request may always hold as much.
const freePlain = initialBuffer

// readPlain reads the whole body of a plain response. Its error is stream.ErrTooLarge, admission.ErrFull, or the backend's.
func (p *response) readPlain(x *exchange) error {
	limit := x.settings.MaxAnswerBytes
	if p.ContentLength > limit {
		return stream.ErrTooLarge
	}
	p.plain = buffer{source: p.Body, size: p.ContentLength, trusted: limit, free: freePlain, memory: &x.memory}
	err := p.plain.readAll(limit)
	if err == nil && int64(len(p.plain.bytes)) > limit {
		err = stream.ErrTooLarge
	}
	return err
}

// receivePlain reads a whole plain response and checks it before its status is sent to the client: vLLM sends some errors
// with status 200, and a body can break off.
func (p *response) receivePlain(x *exchange) (outcome breaker.Outcome) {
	if err := p.readPlain(x); err != nil {
		return p.failure(x, err)
	}
	x.timings.upstream = time.Since(x.timings.sent)
	if c := x.tokenizer(); c != nil {
		return c.check(p.plain.bytes)
	}
	choices := x.request.Choices()
	if p.bestOf == validate.EmulateBestOf {
		choices = x.request.Prompts * int(x.request.Candidates())
		if err := p.plain.hold(int64(len(p.plain.bytes)) + candidateBytes*int64(choices)); err != nil { // for chooseBest
			return p.failure(x, err)
		}
	}
	p.usage, outcome = x.checkPlain(p.plain.bytes, choices)
	if outcome.Class == breaker.Success && p.bestOf == validate.EmulateBestOf && !hasLogprobs(p.plain.bytes) {
		p.lease.SetLacksLogprobs()
		return breaker.Outcome{
			Class: breaker.ClientError, Status: http.StatusOK, Param: "best_of", Message: apierr.BestOfUnsupportedText(x.model.ID()),
		}
	}
	return outcome
}

// checkPlain classifies a plain body that came with status 200, and returns its usage. If the backend reported none, the
// exchange keeps the choices to count them. choices is the number of them that were asked for.
func (x *exchange) checkPlain(body []byte, choices int) (stream.Usage, breaker.Outcome) {
	completion := stream.NewObject(stream.Limits{Choices: choices, Memory: &x.memory})
	failed := func(class breaker.Class, cause error) (stream.Usage, breaker.Outcome) {
		completion.Release()
		return stream.Usage{}, breaker.Outcome{Class: class, Status: http.StatusOK, Cause: cause}
	}
	if err := completion.Parse(body); err != nil {
		if errors.Is(err, admission.ErrFull) {
			return failed(breaker.LocalFault, err)
		}
		return failed(breaker.Malformed, err)
	}
	switch {
	case completion.IsError():
		completion.Release()
		return stream.Usage{}, breaker.Classify(http.StatusOK, body)
	case completion.Aborted():
		return failed(breaker.Aborted, nil)
	case !completion.IsComplete(choices):
		return failed(breaker.Malformed, errIncomplete)
	}
	usage := completion.Usage()
	x.charge.reports = parseReported(completion.Details())
	if x.trace.sampled() || x.receipt != nil {
		x.charge.reasons = completion.FinishReasons()
	}
	if !usage.Known {
		x.charge.choices = completion.ChoiceUsage() // which takes the memory that completion has counted
		return usage, breaker.Outcome{}
	}
	completion.Release()
	return usage, breaker.Outcome{}
}

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
