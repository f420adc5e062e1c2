package validate

import (
	"slices"
	"strconv"

	apierr "basegate/errors"
)

// continuousUsage is the value of continuous_usage_stats in stream_options.
type continuousUsage uint8

const (
	continuousAbsent continuousUsage = iota
	continuousNull
	continuousFalse
	continuousTrue
)

var continuousUsageOf = map[byte]continuousUsage{'n': continuousNull, 'f': continuousFalse, 't': continuousTrue}

// optionsWithReceipt describes stream_options where receipts are on.
var optionsWithReceipt = field{
	name:     "stream_options",
	expected: "an object with at the most include_receipt, include_usage and, beside that, continuous_usage_stats (true or false)",
}

func readStreamOptions(p *parser, f *field) error {
	if p.receipts {
		f = &optionsWithReceipt
	}
	if p.decoder.PeekKind() != '{' {
		return p.invalidKind(f, "")
	}
	p.request.hasStreamOptions = true
	if _, err := p.decoder.ReadToken(); err != nil {
		return err
	}
	for p.decoder.PeekKind() != '}' {
		if err := p.readStreamOption(f); err != nil {
			return err
		}
	}
	if err := p.checkContinuousUsage(f); err != nil {
		return err
	}
	_, err := p.decoder.ReadToken()
	return err
}

// readStreamOption reads one member of stream_options.
func (p *parser) readStreamOption(f *field) error {
	raw, err := p.decoder.ReadValue()
	if err != nil {
		return err
	}
	r := p.request
	switch name := p.unquote(raw); string(name) {
	case "include_usage":
		if r.includeUsage.end > 0 {
			return p.duplicate("include_usage")
		}
		kind, at, err := p.readOption(f, "include_usage")
		r.includeUsage, r.IncludeUsage = at, kind == 't'
		return err
	case "continuous_usage_stats":
		if r.continuousUsage != continuousAbsent {
			return p.duplicate("continuous_usage_stats")
		}
		kind, _, err := p.readOption(f, "continuous_usage_stats")
		r.continuousUsage = continuousUsageOf[kind]
		return err
	default:
		return p.readLocalOption(f, string(name))
	}
}

// readLocalOption reads a member of stream_options that is not for vLLM: include_receipt, or one that is null.
func (p *parser) readLocalOption(f *field, name string) error {
	switch {
	case slices.Contains(p.foreign, name):
		return p.duplicate(name)
	case name == "include_receipt" && p.receipts, p.decoder.PeekKind() == 'n' && len(p.foreign) < maxForeign:
		p.foreign = append(p.foreign, name)
		kind, _, err := p.readOption(f, name)
		p.request.localOption, p.request.IncludeReceipt = true, p.request.IncludeReceipt || kind == 't'
		return err
	default:
		return p.invalid(f, strconv.Quote(apierr.Clip(name))+" in it")
	}
}

// readOption reads the value of an option, which is true, false or null, and returns its first byte and its span.
func (p *parser) readOption(f *field, name string) (kind byte, at span, err error) {
	kind = byte(p.decoder.PeekKind())
	if kind != 't' && kind != 'f' && kind != 'n' {
		value, err := p.skipInvalid()
		if err != nil {
			return kind, at, err
		}
		return kind, at, p.invalid(f, name+" with "+describe(value))
	}
	start := p.valueStart()
	if err := p.skipValue(); err != nil {
		return kind, at, err
	}
	return kind, span{start, p.offset()}, nil
}

// checkContinuousUsage refuses continuous_usage_stats without include_usage, because vLLM ignores it then.
func (p *parser) checkContinuousUsage(f *field) error {
	r := p.request
	present := r.includeUsage.end > 0 && p.body[r.includeUsage.start] != 'n'
	switch {
	case r.continuousUsage == continuousTrue && !r.IncludeUsage, r.continuousUsage == continuousFalse && !present:
		return p.invalid(f, "continuous_usage_stats without include_usage: true")
	default:
		return nil
	}
}
