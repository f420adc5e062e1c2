package validate

import (
	"bytes"
	"math"
	"strconv"

	apierr "basegate/errors"
)

// fieldID is a field's place in the table.
type fieldID uint8

const (
	fieldModel fieldID = iota
	fieldPrompt
	fieldMaxTokens
	fieldTemperature
	fieldTopP
	fieldTopK
	fieldMinP
	fieldPresencePenalty
	fieldFrequencyPenalty
	fieldRepetitionPenalty
	fieldSeed
	fieldN
	fieldBestOf
	fieldStop
	fieldLogprobs
	fieldPromptLogprobs
	fieldEcho
	fieldStream
	fieldStreamOptions
	fieldLogitBias
	fieldUser
	fieldCount
)

// field is a row of the contract's table. read takes exactly one value that is not null; a value that the field
// does not take is p.fail's, and only bad syntax is read's error.
type field struct {
	name string
	want string
	read func(*pass, *field) error
}

var fields [fieldCount]field

// fieldByName finds a field in a body; its keys are the names of fields.
var fieldByName map[string]fieldID

func init() { //nolint:gochecknoinits // the table's readers refer to the table
	fields = [fieldCount]field{
		fieldModel:             {"model", "a string, the short id of a model from GET /v1/models", readModel},
		fieldPrompt:            {"prompt", "a string, an array of strings, an array of token ids or an array of such arrays, none of the arrays empty", readPrompt},
		fieldMaxTokens:         {"max_tokens", "an integer of at least 1", integer(atLeast(1), func(r *Request, v int64) { r.MaxTokens = v })},
		fieldTemperature:       {"temperature", "a number from 0 to 2", number(within(0, 2))},
		fieldTopP:              {"top_p", "a number over 0, up to 1", number(above(0, 1))},
		fieldTopK:              {"top_k", "-1 (off) or an integer of at least 1", integer(func(v int64) bool { return v == -1 || v >= 1 }, nil)},
		fieldMinP:              {"min_p", "a number from 0 to 1", number(within(0, 1))},
		fieldPresencePenalty:   {"presence_penalty", "a number from -2 to 2", number(within(-2, 2))},
		fieldFrequencyPenalty:  {"frequency_penalty", "a number from -2 to 2", number(within(-2, 2))},
		fieldRepetitionPenalty: {"repetition_penalty", "a number over 0, up to 2", number(above(0, 2))},
		fieldSeed:              {"seed", "an integer within 64 bits, signed", integer(atLeast(math.MinInt64), nil)},
		fieldN:                 {"n", "an integer from 1 to 16", integer(between(1, 16), func(r *Request, v int64) { r.N = v })},
		fieldBestOf:            {"best_of", "an integer from 1 to 16", integer(between(1, 16), func(r *Request, v int64) { r.BestOf = v })},
		fieldStop:              {"stop", "a string or 1 to 4 strings, none empty", readStop},
		fieldLogprobs:          {"logprobs", "an integer from 0 to the model's limit (20 unless configured)", integer(atLeast(0), func(r *Request, v int64) { r.Logprobs = clampInt(v) })},
		fieldPromptLogprobs:    {"prompt_logprobs", "an integer from 0 to the model's limit (20 unless configured)", integer(atLeast(0), func(r *Request, v int64) { r.PromptLogprobs = clampInt(v) })},
		fieldEcho:              {"echo", "true or false", boolean(func(r *Request, v bool) { r.Echo = v })},
		fieldStream:            {"stream", "true or false", boolean(func(r *Request, v bool) { r.Stream = v })},
		fieldStreamOptions:     {"stream_options", "an object with at the most include_usage (true or false)", readStreamOptions},
		fieldLogitBias:         {"logit_bias", "an object of token ids in decimal digits, each with a number from -100 to 100", readLogitBias},
		fieldUser:              {"user", "a string of up to 512 bytes", readUser},
	}
	fieldByName = make(map[string]fieldID, len(fields))
	for id, f := range fields {
		fieldByName[f.name] = fieldID(id)
	}
}

func within(lo, hi float64) func(float64) bool {
	return func(v float64) bool { return v >= lo && v <= hi }
}

func above(lo, hi float64) func(float64) bool {
	return func(v float64) bool { return v > lo && v <= hi }
}

func between(lo, hi int64) func(int64) bool {
	return func(v int64) bool { return v >= lo && v <= hi }
}

func atLeast(lo int64) func(int64) bool { return func(v int64) bool { return v >= lo } }

func clampInt(v int64) int { return int(min(v, math.MaxInt32)) }

// number reads a field that is any JSON number within a range.
func number(ok func(float64) bool) func(*pass, *field) error {
	return func(p *pass, f *field) error {
		raw, err := p.scalar(f, '0')
		if raw == nil || err != nil {
			return err
		}
		v, err := strconv.ParseFloat(string(raw), 64)
		if err != nil {
			p.wrong(f, describe(raw)+", which no 64-bit float holds")
		} else if !ok(v) {
			p.wrong(f, describe(raw))
		}
		return nil
	}
}

// integer reads a field that is an integer literal within a range: no fraction, no exponent. keep may be nil.
func integer(ok func(int64) bool, keep func(*Request, int64)) func(*pass, *field) error {
	return func(p *pass, f *field) error {
		raw, err := p.scalar(f, '0')
		if raw == nil || err != nil {
			return err
		}
		v, err := strconv.ParseInt(string(raw), 10, 64)
		switch {
		case bytes.ContainsAny(raw, ".eE"):
			p.wrong(f, describe(raw)+", which is not written as an integer")
		case err != nil:
			p.wrong(f, describe(raw)+", which does not fit 64 bits")
		case !ok(v):
			p.wrong(f, describe(raw))
		case keep != nil:
			keep(p.request, v)
		}
		return nil
	}
}

func boolean(keep func(*Request, bool)) func(*pass, *field) error {
	return func(p *pass, f *field) error {
		kind := p.decoder.PeekKind()
		if kind != 't' && kind != 'f' {
			return p.mistaken(f)
		}
		if err := p.skip(); err != nil {
			return err
		}
		keep(p.request, kind == 't')
		return nil
	}
}

// scalar reads a value of the kind that the field takes ('0' for a number, '"' for a string). Where it is of
// another kind that is recorded, the value read over, and nil returned.
func (p *pass) scalar(f *field, kind byte) ([]byte, error) {
	if byte(p.decoder.PeekKind()) != kind {
		return nil, p.mistaken(f)
	}
	return p.decoder.ReadValue()
}

// mistaken records a value of the wrong kind and reads over it.
func (p *pass) mistaken(f *field) error {
	start := p.valueStart()
	if err := p.skip(); err != nil {
		return err
	}
	got := p.body[start:p.decoder.InputOffset()]
	suffix := ""
	if got[0] == '"' && f.takesNumber() {
		suffix = " (a number must not stand in quotes)"
	}
	p.wrong(f, describe(got)+suffix)
	return nil
}

func (f *field) takesNumber() bool {
	id := fieldByName[f.name]
	return id != fieldStop && id != fieldStreamOptions && id != fieldLogitBias && id != fieldEcho && id != fieldStream
}

func readModel(p *pass, f *field) error {
	raw, err := p.scalar(f, '"')
	if raw == nil || err != nil {
		return err
	}
	p.request.Model = string(p.unquote(raw))
	return nil
}

func readUser(p *pass, f *field) error {
	raw, err := p.scalar(f, '"')
	if raw == nil || err != nil {
		return err
	}
	text := p.unquote(raw)
	if len(text) > 512 {
		p.wrong(f, "a string of "+strconv.Itoa(len(text))+" bytes")
		return nil
	}
	p.request.User, p.request.HasUser = string(text), true
	return nil
}

func readStop(p *pass, f *field) error {
	if p.decoder.PeekKind() != '[' {
		raw, err := p.scalar(f, '"')
		if err == nil && len(raw) == len(`""`) {
			p.wrong(f, "an empty string")
		}
		return err
	}
	if _, err := p.decoder.ReadToken(); err != nil {
		return err
	}
	count := 0
	for ; p.decoder.PeekKind() != ']'; count++ {
		raw, err := p.scalar(f, '"')
		if err != nil {
			return err
		}
		if len(raw) == len(`""`) {
			p.wrong(f, "an empty string among them")
		}
	}
	if count == 0 || count > 4 {
		p.wrong(f, "an array of "+strconv.Itoa(count)+" strings")
	}
	_, err := p.decoder.ReadToken()
	return err
}

func readStreamOptions(p *pass, f *field) error {
	if p.decoder.PeekKind() != '{' {
		return p.mistaken(f)
	}
	p.request.streamOptionsIn = true
	if _, err := p.decoder.ReadToken(); err != nil {
		return err
	}
	for p.decoder.PeekKind() != '}' {
		raw, err := p.decoder.ReadValue()
		if err != nil {
			return err
		}
		if name := p.unquote(raw); string(name) != "include_usage" {
			p.wrong(f, strconv.Quote(clip(name))+" in it")
			if err := p.skip(); err != nil {
				return err
			}
			continue
		}
		if err := p.includeUsage(f); err != nil {
			return err
		}
	}
	_, err := p.decoder.ReadToken()
	return err
}

func (p *pass) includeUsage(f *field) error {
	start := p.valueStart()
	kind := p.decoder.PeekKind()
	if err := p.skip(); err != nil {
		return err
	}
	p.request.usageValue = span{start, int(p.decoder.InputOffset())}
	if kind == 't' || kind == 'f' || kind == 'n' {
		p.request.IncludeUsage = kind == 't'
	} else {
		p.wrong(f, "include_usage with "+describe(p.body[start:p.decoder.InputOffset()]))
	}
	return nil
}

func readLogitBias(p *pass, f *field) error {
	if p.decoder.PeekKind() != '{' {
		return p.mistaken(f)
	}
	if _, err := p.decoder.ReadToken(); err != nil {
		return err
	}
	for p.decoder.PeekKind() != '}' {
		raw, err := p.decoder.ReadValue()
		if err != nil {
			return err
		}
		if name := p.unquote(raw); !isTokenID(name) {
			p.wrong(f, "the name "+strconv.Quote(clip(name))+", which is not a token id")
		}
		raw, err = p.scalar(f, '0')
		if err != nil {
			return err
		}
		if raw == nil {
			continue
		}
		if v, err := strconv.ParseFloat(string(raw), 64); err != nil || !within(-100, 100)(v) {
			p.wrong(f, "the bias "+describe(raw))
		}
	}
	_, err := p.decoder.ReadToken()
	return err
}

// isTokenID accepts one way of writing an id only: vLLM reads "7" and "07" as the same token, and two biases for one
// token would be ambiguous.
func isTokenID(name []byte) bool {
	if len(name) == 0 || len(name) > 18 || (name[0] == '0' && len(name) > 1) {
		return false
	}
	for _, c := range name {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}

func clip(b []byte) string { return apierr.Clip(string(b[:min(len(b), 100)])) }
