// Package validate parses and validates the body of a completion request in a single pass. The body must be one
// unambiguous JSON object, and every field must be known and within its range. The package records the byte offsets of
// the few values that the gateway reads or edits, so that the body for a backend is spliced from the client's own
// bytes.
//
// The rules are those of the contract's field table. Keys, budgets and backends are left to other packages: the caller
// supplies each model's limit for logprobs as a function, and decides which edits to make (see Request.Upstream).
package validate

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"

	apierr "basegate/errors"
)

// maxDepth limits the nesting of a body. The Python parser in vLLM fails at a depth of about a thousand.
const maxDepth = 32

// DefaultMaxLogprobs is the limit of logprobs for an unknown model.
const DefaultMaxLogprobs = 20

// Completion parses the body of POST /v1/completions. maxLogprobs returns a model's limit for logprobs and
// prompt_logprobs by its short id, and DefaultMaxLogprobs for an unknown model.
//
// The error is bad_json or invalid_request. Invalid JSON takes precedence over the first invalid field in the order of
// the body, then follow a missing required field and a pair of conflicting fields. With invalid_request, Completion
// also returns the Request as far as it has been parsed, because the error response carries its user tag. The Request
// retains body.
func Completion(body []byte, maxLogprobs func(model string) int) (*Request, error) {
	p := parsers.Get().(*parser) //nolint:errcheck // the pool holds nothing else
	defer p.release()
	p.reset(body)
	if err := p.parse(); err != nil {
		return nil, err
	}
	p.checkModelLimits(maxLogprobs)
	if p.failure == nil {
		p.failure = p.request.checkFieldSet()
	}
	p.request.members = slices.Clone(p.request.members) // of exact length: ten thousand requests may be waiting
	return p.request, p.failure
}

// parser parses one body at a time.
type parser struct {
	decoder *jsontext.Decoder
	source  bytes.Buffer
	body    []byte
	scratch []byte // an unescaped name
	request *Request
	members [fieldCount]member // backs request.members; large enough, because the decoder rejects duplicate names

	failure  error // the first invalid field; nil if there is none
	ordinal  int   // of the member being read
	failedAt int   // ordinal of the member that failure is about
}

var parsers = sync.Pool{New: func() any { return &parser{decoder: new(jsontext.Decoder)} }}

func (p *parser) reset(body []byte) {
	p.body = body
	p.source = *bytes.NewBuffer(body) // the decoder reads a *bytes.Buffer in place, without a copy
	p.decoder.Reset(&p.source)
	p.request = newRequest(body)
	p.request.members = p.members[:0]
	p.failure, p.ordinal, p.failedAt = nil, 0, 0
}

// release returns the parser to its pool without references to the body.
func (p *parser) release() {
	p.source = bytes.Buffer{}
	p.decoder.Reset(&p.source)
	p.body, p.request, p.failure = nil, nil, nil
	parsers.Put(p)
}

// parse parses the whole body: one object and nothing after it. It returns errors of syntax only; an invalid field is
// kept in p.failure, because bad_json further on takes precedence.
func (p *parser) parse() error {
	if bytes.HasPrefix(p.body, []byte("\xef\xbb\xbf")) {
		return apierr.MalformedJSON(0, "the body begins with a byte-order mark; send plain UTF-8 without one")
	}
	start := p.valueStart()
	opening, err := p.decoder.ReadToken()
	if err != nil {
		return p.syntaxError(err)
	}
	if opening.Kind() != '{' {
		return apierr.MalformedJSON(int64(start), "the body is not a JSON object: send {\"model\": …, \"prompt\": …}")
	}
	for p.decoder.PeekKind() != '}' {
		if err := p.readMember(); err != nil {
			return p.syntaxError(err)
		}
		p.ordinal++
	}
	if _, err := p.decoder.ReadToken(); err != nil {
		return p.syntaxError(err)
	}
	return p.checkEnd()
}

// checkEnd returns an error unless only white space follows the object.
func (p *parser) checkEnd() error {
	rest := bytes.TrimLeft(p.body[p.decoder.InputOffset():], " \t\r\n")
	if len(rest) == 0 {
		return nil
	}
	return apierr.MalformedJSON(int64(len(p.body)-len(rest)), "there is more behind the JSON object; send exactly one object")
}

// readMember reads a name and its value. It returns errors of syntax only.
func (p *parser) readMember() error {
	raw, err := p.decoder.ReadValue()
	if err != nil {
		return err
	}
	m := member{ordinal: p.ordinal, name: int(p.decoder.InputOffset()) - len(raw)}
	name := p.unquote(raw)
	id, known := fieldByName[string(name)]
	if !known {
		p.fail(apierr.UnknownField(string(name), suggestField(string(name))))
		return p.skipValue()
	}
	m.field = id
	m.null = p.decoder.PeekKind() == 'n'
	m.value = p.valueStart()
	if m.null {
		err = p.readNull(id)
	} else {
		err = fields[id].read(p, &fields[id])
	}
	m.end = int(p.decoder.InputOffset())
	p.request.members = append(p.request.members, m)
	return err
}

// readNull reads null, which means that an optional field is absent.
func (p *parser) readNull(id fieldID) error {
	if id == fieldModel || id == fieldPrompt {
		p.invalid(&fields[id], "null")
	}
	return p.skipValue()
}

// valueStart returns the offset of the value that follows; the decoder has read the name before it.
func (p *parser) valueStart() int {
	i := int(p.decoder.InputOffset())
	for i < len(p.body) && strings.IndexByte(" \t\r\n:,", p.body[i]) >= 0 {
		i++
	}
	return i
}

// fail keeps the first error of a field.
func (p *parser) fail(err error) {
	if p.failure == nil {
		p.failure, p.failedAt = err, p.ordinal
	}
}

// invalid records that the member's value is not valid for its field.
func (p *parser) invalid(f *field, got string) {
	p.fail(apierr.InvalidField(f.name, f.name+": got "+got+"; expected "+f.expected))
}

// skipValue reads a value of any kind and depth, without recursion.
func (p *parser) skipValue() error {
	outside := p.decoder.StackDepth()
	for {
		if _, err := p.decoder.ReadToken(); err != nil {
			return err
		}
		depth := p.decoder.StackDepth()
		if depth > maxDepth {
			return apierr.MalformedJSON(p.decoder.InputOffset()-1, "the body nests deeper than 32 levels")
		}
		if depth == outside {
			return nil
		}
	}
}

// syntaxError converts an error of the decoder to bad_json. A duplicate name is an error of a field instead: it is kept
// in p.failure, and syntaxError returns nil if the rest of the body is valid JSON.
func (p *parser) syntaxError(err error) error {
	if errors.Is(err, jsontext.ErrDuplicateName) {
		return p.duplicateName(err)
	}
	if _, converted := errors.AsType[*apierr.Error](err); converted {
		return err
	}
	var bad *jsontext.SyntacticError
	switch {
	case errors.Is(err, io.EOF) && len(bytes.TrimSpace(p.body)) == 0:
		return apierr.MalformedJSON(0, "the body is empty; send a JSON object")
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return apierr.MalformedJSON(int64(len(p.body)), "the body ends in the middle of the JSON object")
	case errors.As(err, &bad):
		return apierr.MalformedJSON(bad.ByteOffset, "the body is not valid JSON: "+strings.TrimPrefix(bad.Err.Error(), "jsontext: "))
	default:
		return apierr.MalformedJSON(p.decoder.InputOffset(), "the body is not valid JSON: "+err.Error())
	}
}

// duplicateName records a name that occurs twice in one object. The decoder stops there, so the body is parsed a second
// time without that check: bad_json further on takes precedence. This path is cold, because no valid request takes it.
func (p *parser) duplicateName(found error) error {
	if p.failure == nil {
		name := "?"
		if bad, ok := errors.AsType[*jsontext.SyntacticError](found); ok {
			name = bad.JSONPointer.LastToken()
		}
		p.fail(apierr.InvalidField(name, "the name \""+apierr.Clip(name)+"\" stands twice in one object; send it once"))
	}
	if err := p.reparse(); err != nil {
		return p.syntaxError(err)
	}
	return p.checkEnd()
}

// reparse parses the whole body with duplicate names allowed. It checks the syntax and finds the model, whose limits
// apply to the fields before the duplicate.
func (p *parser) reparse() error {
	p.source = *bytes.NewBuffer(p.body)
	p.decoder.Reset(&p.source, jsontext.AllowDuplicateNames(true))
	if _, err := p.decoder.ReadToken(); err != nil {
		return err
	}
	for p.decoder.PeekKind() != '}' {
		name, err := p.decoder.ReadValue()
		if err != nil {
			return err
		}
		if string(p.unquote(name)) == "model" && p.request.Model == "" && p.decoder.PeekKind() == '"' {
			err = readModel(p, &fields[fieldModel])
		} else {
			err = p.skipValue()
		}
		if err != nil {
			return err
		}
	}
	_, err := p.decoder.ReadToken()
	return err
}

// unquote returns a string without its quotes and escapes. The bytes are valid until the next call.
func (p *parser) unquote(raw []byte) []byte {
	if inner := raw[1 : len(raw)-1]; bytes.IndexByte(inner, '\\') < 0 {
		return inner
	}
	out, err := jsontext.AppendUnquote(p.scratch[:0], raw)
	if err != nil { // impossible: the decoder has accepted the string
		return raw
	}
	p.scratch = out
	return out
}

// checkModelLimits checks the fields whose range depends on the model. The model may follow them in the body, so this
// happens after parsing; an error replaces p.failure if its field comes first.
func (p *parser) checkModelLimits(maxLogprobs func(string) int) {
	r := p.request
	limit := maxLogprobs(r.Model)
	for i := range r.members {
		m := &r.members[i]
		if p.failure != nil && p.failedAt <= m.ordinal {
			return
		}
		if r.logprobsOf(m.field) > limit {
			name := fields[m.field].name
			p.failure = apierr.InvalidField(name, logprobsTooLarge(name, p.body[m.value:m.end], limit))
			return
		}
	}
}
