// Package validate parses and validates the body of a request in a single pass: of a completion, of a chat completion,
// or of the tokenizer's endpoints. The body must be one unambiguous JSON object, and every field must be known and
// within its range. The package records the byte offsets of the few values that the gateway reads or edits, so that the
// body for a backend is spliced from the client's own bytes.
//
// The rules are those of the contract's field table. Keys, budgets and backends are left to other packages: the caller
// supplies each model's limits as a function, and decides which edits to make (see Request.Upstream).
package validate

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"

	apierr "basegate/errors"
)

// maxDepth limits the nesting of a body. The Python parser in vLLM fails at a depth of about a thousand.
const maxDepth = 32

// Limits are what a body is checked against besides the contract's field table.
type Limits struct {
	Model        func(id string) Model // by its short id; nil: UnknownModel
	MaxSequences int64                 // prompts × max(n, best_of) of one request; 0: no limit
	Receipts     bool                  // stream_options may have include_receipt
	Estimate     bool                  // there is the field endpoint of POST /v1/estimate
	Memory       Memory                // counts what the parser holds besides the body; nil: it is not counted
}

// Model is what a body is checked against that names a model.
type Model struct {
	MaxLogprobs      int      // of logprobs and prompt_logprobs
	DefaultMaxTokens int64    // of a chat completion without max_tokens
	XArgs            []string // the names that vllm_xargs may have

	unknown bool // so the names in vllm_xargs are not judged
}

// UnknownModel is a model that is not known, or that the client may not use.
var UnknownModel = Model{MaxLogprobs: 20, DefaultMaxTokens: DefaultChatMaxTokens, unknown: true}

// Memory counts the bytes that a request holds.
type Memory interface {
	Grow(bytes int64) error
	Shrink(bytes int64)
}

// Completion parses the body of POST /v1/completions.
//
// The error is bad_json or invalid_request, or that of Memory. Invalid JSON takes precedence over the first invalid
// field in the order of the body, then follow a missing required field and a pair of conflicting fields. With
// invalid_request, Completion also returns the Request as far as it has been parsed, because the error response carries
// its user tag. The Request retains body.
func Completion(body []byte, limits Limits) (*Request, error) {
	return parse(completion, body, limits)
}

func parse(s *schema, body []byte, limits Limits) (*Request, error) {
	p := parsers.Get().(*parser)
	defer p.release()
	p.reset(s, body, limits)
	if err := p.parse(); err != nil {
		return nil, err
	}
	model := UnknownModel
	if limits.Model != nil {
		model = limits.Model(p.request.Model)
	}
	if r := p.request; s == chat && !r.has(fieldMaxTokens) && !r.has(fieldMaxCompletionTokens) {
		r.chat.defaultMaxTokens, r.MaxTokens = true, model.DefaultMaxTokens
	}
	p.checkModelLimits(&model)
	if p.failure == nil {
		p.failure = p.request.checkFieldSet()
	}
	if p.failure == nil {
		p.failure = p.request.checkSequences(limits.MaxSequences)
	}
	p.members = p.request.members
	p.request.members = slices.Clone(p.members) // of exact length: ten thousand requests may be waiting
	return p.request, p.failure
}

// CheckDepth returns bad_json for a body of another endpoint that nests deeper than that of a completion may.
func CheckDepth(body []byte) error {
	p := parsers.Get().(*parser)
	defer p.release()
	p.reset(completion, body, Limits{})
	if err := p.skipValue(); err != nil {
		return p.syntaxError(err)
	}
	return nil
}

// parser parses one body at a time.
type parser struct {
	decoder  *jsontext.Decoder
	source   bytes.Buffer
	schema   *schema
	body     []byte
	base     int     // offset in body of the beginning of source
	rest     []byte  // backs source behind a long string: see skipTo
	scratch  []byte  // an unescaped name
	tokenIDs []int64 // of logit_bias
	request  *Request
	members  []member // backs request.members

	absent  bool     // the value that has been read means that its field is absent
	xargs   []string // the names in vllm_xargs
	failure error    // the first invalid field; nil if there is none
	limits  Limits
	grown   int64 // bytes counted in limits.Memory

	objectCounted    bool // the memory of readObject is counted
	argumentsCounted bool // the memory of readArguments is counted
	calls            callIDs
}

const (
	// maxCopied limits how much of a name, a number or a string other than a prompt is copied, in bytes.
	maxCopied = 64 << 10
	// maxPooled limits the buffers that a pooled parser keeps, in elements.
	maxPooled = 4 << 10
)

// decoderOptions accept duplicate names: to find them, the decoder would keep every name. The parser looks for them itself.
var decoderOptions = jsontext.AllowDuplicateNames(true)

var parsers = sync.Pool{New: func() any { return &parser{decoder: new(jsontext.Decoder)} }}

func (p *parser) reset(s *schema, body []byte, limits Limits) {
	p.schema, p.body, p.limits = s, body, limits
	p.base = 0
	p.source = *bytes.NewBuffer(body) // the decoder reads a *bytes.Buffer in place, without a copy
	p.decoder.Reset(&p.source, decoderOptions)
	p.request = newRequest(s, body)
	p.request.members = p.members[:0]
	p.failure = nil
}

// release returns the parser to its pool without references to the body.
func (p *parser) release() {
	p.source = bytes.Buffer{}
	p.decoder.Reset(&p.source)
	if p.grown > 0 {
		p.limits.Memory.Shrink(p.grown)
	}
	p.schema, p.body, p.request, p.failure, p.limits, p.grown = nil, nil, nil, nil, Limits{}, 0
	p.objectCounted, p.argumentsCounted = false, false
	p.calls, p.xargs = callIDs{}, nil
	if cap(p.scratch) > maxPooled {
		p.scratch = nil
	}
	if cap(p.tokenIDs) > maxPooled {
		p.tokenIDs = nil
	}
	parsers.Put(p)
}

// errInvalid is returned by the reader of a field after it has recorded an invalid value in parser.failure. The rest of
// the body is then checked for its syntax only.
var errInvalid = errors.New("a field is invalid")

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
		return apierr.MalformedJSON(int64(start), "the body is not a JSON object: send "+p.schema.example)
	}
	err = p.readMembers()
	if errors.Is(err, errInvalid) {
		err = p.skipRest()
	}
	if err != nil {
		return p.syntaxError(err)
	}
	if rest := bytes.TrimLeft(p.body[p.offset():], " \t\r\n"); len(rest) > 0 {
		return apierr.MalformedJSON(int64(len(p.body)-len(rest)), "there is more behind the JSON object; send exactly one object")
	}
	return nil
}

// readMembers reads the members of the body and its closing bracket. It stops at the first invalid field.
func (p *parser) readMembers() error {
	for p.decoder.PeekKind() != '}' {
		if err := p.readMember(); err != nil {
			return err
		}
	}
	_, err := p.decoder.ReadToken()
	return err
}

func (p *parser) readMember() error {
	raw, err := p.decoder.ReadValue()
	if err != nil {
		return err
	}
	m := member{name: p.offset() - len(raw)}
	name := p.unquote(raw)
	id, known := p.schema.byName[string(name)]
	if !known && p.limits.Estimate && string(name) == fields[fieldEndpoint].name {
		id, known = fieldEndpoint, true
	}
	if !known {
		return p.fail(p.schema.unknownField(name))
	}
	if p.request.find(id) != nil {
		return p.duplicate(p.schema.table[id].name)
	}
	m.field = id
	m.null = p.decoder.PeekKind() == 'n'
	m.value = p.valueStart()
	switch f := &p.schema.table[id]; {
	case !m.null:
		err = f.read(p, f)
	case slices.Contains(p.schema.required, id):
		err = p.invalidKind(f, "")
	default: // an optional field that is null is absent
		err = p.skipValue()
	}
	if err != nil {
		return err
	}
	m.end = p.offset()
	m.null = m.null || p.absent
	p.absent = false
	p.request.members = append(p.request.members, m)
	return nil
}

// skipRest checks the syntax of the body after an invalid field. Of the fields there, it reads the model, whose limits
// apply to the fields before the invalid one, and the user tag, which the error response carries.
func (p *parser) skipRest() error {
	for p.decoder.StackDepth() > 1 {
		if err := p.skipToken(); err != nil {
			return err
		}
	}
	if _, read := p.decoder.StackIndex(1); read%2 == 1 { // names and values: the last name has no value yet
		if err := p.skipValue(); err != nil {
			return err
		}
	}
	for p.decoder.PeekKind() != '}' {
		raw, err := p.decoder.ReadValue()
		if err != nil {
			return err
		}
		if err := p.readTag(p.schema.byName[string(p.unquote(raw))]); err != nil {
			return err
		}
	}
	_, err := p.decoder.ReadToken()
	return err
}

// readTag reads the value of the model or of the user tag, if it is valid and none has been read, and skips all others.
func (p *parser) readTag(id fieldID) error {
	wanted := id == fieldModel && p.request.Model == "" || id == fieldUser && !p.request.HasUser
	if !wanted || p.decoder.PeekKind() != '"' {
		return p.skipValue()
	}
	f := &p.schema.table[id]
	if err := f.read(p, f); !errors.Is(err, errInvalid) {
		return err
	}
	return nil
}

// offset returns the offset in the body of the end of what the decoder has read.
func (p *parser) offset() int { return p.base + int(p.decoder.InputOffset()) }

// valueStart returns the offset of the value that follows; the decoder has read the name before it.
func (p *parser) valueStart() int {
	i := p.offset()
	for i < len(p.body) && strings.IndexByte(" \t\r\n:,", p.body[i]) >= 0 {
		i++
	}
	return i
}

// fail records the first error of a field and returns errInvalid.
func (p *parser) fail(err error) error {
	if p.failure == nil {
		p.failure = err
	}
	return errInvalid
}

// invalid records that the member's value is not valid for its field.
func (p *parser) invalid(f *field, got string) error {
	return p.fail(apierr.InvalidField(f.name, f.name+": got "+got+"; expected "+f.expected))
}

// duplicate records a name that occurs twice in one object.
func (p *parser) duplicate(name string) error {
	return p.fail(apierr.InvalidField(name, "the name \""+apierr.Clip(name)+"\" stands twice in one object; send it once"))
}

// skipValue reads a value of any kind and depth, without recursion.
func (p *parser) skipValue() error {
	outside := p.decoder.StackDepth()
	for {
		if err := p.skipToken(); err != nil {
			return err
		}
		if p.decoder.StackDepth() == outside {
			return nil
		}
	}
}

// skipToken reads a token and checks the depth of the nesting.
func (p *parser) skipToken() error {
	if _, err := p.decoder.ReadToken(); err != nil {
		return err
	}
	if p.decoder.StackDepth() > maxDepth {
		return apierr.MalformedJSON(int64(p.offset()-1), "the body nests deeper than 32 levels")
	}
	return nil
}

// grow counts memory that the parser holds until release.
func (p *parser) grow(bytes int64) error {
	if p.limits.Memory == nil {
		return nil
	}
	if err := p.limits.Memory.Grow(bytes); err != nil {
		return err
	}
	p.grown += bytes
	return nil
}

// syntaxError converts an error of the decoder to bad_json, and returns other errors unchanged.
func (p *parser) syntaxError(err error) error {
	var bad *jsontext.SyntacticError
	switch {
	case errors.Is(err, io.EOF) && len(bytes.TrimSpace(p.body)) == 0:
		return apierr.MalformedJSON(0, "the body is empty; send a JSON object")
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return apierr.MalformedJSON(int64(len(p.body)), "the body ends in the middle of the JSON object")
	case errors.As(err, &bad):
		return apierr.MalformedJSON(int64(p.base)+bad.ByteOffset, "the body is not valid JSON: "+strings.TrimPrefix(bad.Err.Error(), "jsontext: "))
	default: // of Limits.Memory, or converted
		return err
	}
}

// maxCompared limits the size of a value of the wrong kind in which duplicate names are looked for, in bytes.
const maxCompared = 64 << 10

// duplicateName returns the first name that occurs twice in an object of a valid value, unless it is longer than most.
func duplicateName(value []byte, most int) (name string, found bool) {
	if len(value) > most || (value[0] != '{' && value[0] != '[') {
		return "", false
	}
	_, err := jsontext.NewDecoder(bytes.NewReader(value)).ReadValue()
	if bad, ok := errors.AsType[*jsontext.SyntacticError](err); ok && errors.Is(bad, jsontext.ErrDuplicateName) {
		return bad.JSONPointer.LastToken(), true
	}
	return "", false
}

// unquote returns a string without its quotes and escapes; of one that is longer than maxCopied, only the beginning. The
// bytes are valid until the next call.
func (p *parser) unquote(raw []byte) []byte {
	if len(raw) > maxCopied {
		raw = raw[:maxCopied]
	} else if inner := raw[1 : len(raw)-1]; bytes.IndexByte(inner, '\\') < 0 {
		return inner
	}
	p.scratch, _ = jsontext.AppendUnquote(p.scratch[:0], raw) // the decoder has accepted the string, so only a cut is an error
	return p.scratch
}

// checkModelLimits checks the fields whose range depends on the model. The model may follow them in the body, so this
// happens after parsing. All fields that have been read come before the invalid one, so an error here replaces it.
func (p *parser) checkModelLimits(model *Model) {
	r := p.request
	for i := range r.members {
		m := &r.members[i]
		name := p.schema.table[m.field].name
		switch {
		case r.logprobsOf(m.field) > model.MaxLogprobs:
			p.failure = apierr.InvalidField(name, fmt.Sprintf("%s: got %s; expected an integer from 0 to %d, the limit of this model",
				name, Describe(p.body[m.value:m.end]), model.MaxLogprobs))
			return
		case m.field == fieldXArgs:
			if err := p.checkXArgs(model); err != nil {
				p.failure = err
				return
			}
		}
	}
}
