// Package validate reads the body of a completion request once: is it one unambiguous JSON object, is every field
// known and within its range, and where in the bytes stand the few values that the gateway needs or edits.
//
// What it says of a field is the contract's field table. It knows nothing of keys, budgets or backends: a model's
// limits come in as a function, and the edits to make are the caller's decision (see Request.Upstream).
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

// maxDepth is how deep a body may nest. Python's parser on the other side gives up at about a thousand.
const maxDepth = 32

// DefaultMaxLogprobs is the limit of logprobs for a model that is not known.
const DefaultMaxLogprobs = 20

// Completion reads the body of POST /v1/completions. maxLogprobs gives a model's limit for logprobs and
// prompt_logprobs by its short id, and DefaultMaxLogprobs for a model that it does not know.
//
// The error is bad_json or invalid_request: the first offending field in the order of the body, then a required
// field that is missing, then two fields that contradict each other. With invalid_request comes what was read of the
// Request, for the tag that its answer bears. The Request keeps hold of body.
func Completion(body []byte, maxLogprobs func(model string) int) (*Request, error) {
	p := passes.Get().(*pass) //nolint:errcheck // the pool holds nothing else
	defer p.release()
	p.begin(body)
	if err := p.object(); err != nil {
		return nil, err
	}
	p.modelLimits(maxLogprobs)
	if p.failure == nil {
		p.failure = p.request.contradiction()
	}
	p.request.members = slices.Clone(p.request.members) // only as many as there are: ten thousand requests may wait
	return p.request, p.failure
}

// pass is one reading of one body.
type pass struct {
	decoder *jsontext.Decoder
	source  bytes.Buffer
	body    []byte
	scratch []byte // an unescaped name
	request *Request
	members [fieldCount]member // room for the request's, as the decoder refuses a name that stands twice

	failure error // the first offending field
	at      int   // the ordinal of the member being read
	failed  int   // the ordinal of the member that failure is about
}

var passes = sync.Pool{New: func() any { return &pass{decoder: new(jsontext.Decoder)} }}

func (p *pass) begin(body []byte) {
	p.body = body
	p.source = *bytes.NewBuffer(body) // a *bytes.Buffer is read in place, without a copy
	p.decoder.Reset(&p.source)
	p.request = newRequest(body)
	p.request.members = p.members[:0]
	p.failure, p.at, p.failed = nil, 0, 0
}

// release lets go of the body before the pass goes back to the pool.
func (p *pass) release() {
	p.source = bytes.Buffer{}
	p.decoder.Reset(&p.source)
	p.body, p.request, p.failure = nil, nil, nil
	passes.Put(p)
}

// object reads the whole body: one object and nothing behind it. Field errors are kept in p.failure, since a body
// that is not JSON further on is bad_json first.
func (p *pass) object() error {
	if bytes.HasPrefix(p.body, []byte("\xef\xbb\xbf")) {
		return apierr.MalformedJSON(0, "the body begins with a byte-order mark; send plain UTF-8 without one")
	}
	start := p.valueStart()
	opening, err := p.decoder.ReadToken()
	if err != nil {
		return p.syntax(err)
	}
	if opening.Kind() != '{' {
		return apierr.MalformedJSON(int64(start), "the body is not a JSON object: send {\"model\": …, \"prompt\": …}")
	}
	for p.decoder.PeekKind() != '}' {
		if err := p.member(); err != nil {
			return p.syntax(err)
		}
		p.at++
	}
	if _, err := p.decoder.ReadToken(); err != nil {
		return p.syntax(err)
	}
	p.request.end = int(p.decoder.InputOffset()) - 1
	return p.nothingBehind()
}

func (p *pass) nothingBehind() error {
	rest := bytes.TrimLeft(p.body[p.decoder.InputOffset():], " \t\r\n")
	if len(rest) == 0 {
		return nil
	}
	return apierr.MalformedJSON(int64(len(p.body)-len(rest)), "there is more behind the JSON object; send exactly one object")
}

// member reads one name and its value. Its error is one of syntax.
func (p *pass) member() error {
	raw, err := p.decoder.ReadValue()
	if err != nil {
		return err
	}
	m := member{at: p.at, name: int(p.decoder.InputOffset()) - len(raw)}
	name := p.unquote(raw)
	id, known := fieldByName[string(name)]
	if !known {
		p.fail(apierr.UnknownField(string(name), suggestField(string(name))))
		return p.skip()
	}
	m.field = id
	m.null = p.decoder.PeekKind() == 'n'
	m.value = p.valueStart()
	if m.null {
		err = p.null(id)
	} else {
		err = fields[id].read(p, &fields[id])
	}
	m.end = int(p.decoder.InputOffset())
	p.request.members = append(p.request.members, m)
	return err
}

// null accepts null for an optional field, for which it means that the field is absent.
func (p *pass) null(id fieldID) error {
	if id == fieldModel || id == fieldPrompt {
		p.wrong(&fields[id], "null")
	}
	return p.skip()
}

// valueStart is where the value after a name begins; the decoder stands behind the name.
func (p *pass) valueStart() int {
	i := int(p.decoder.InputOffset())
	for i < len(p.body) && strings.IndexByte(" \t\r\n:,", p.body[i]) >= 0 {
		i++
	}
	return i
}

// fail keeps the first field error.
func (p *pass) fail(err error) {
	if p.failure == nil {
		p.failure, p.failed = err, p.at
	}
}

// wrong records that the member's value is not what its field takes.
func (p *pass) wrong(f *field, got string) {
	p.fail(apierr.InvalidField(f.name, f.name+": got "+got+"; expected "+f.want))
}

// skip reads one value of any kind, however it nests, without recursion.
func (p *pass) skip() error {
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

// syntax turns what the decoder says into bad_json, but for a repeated name: that is a field error, kept in
// p.failure, and syntax returns nil for it.
func (p *pass) syntax(err error) error {
	if errors.Is(err, jsontext.ErrDuplicateName) {
		return p.repeated(err)
	}
	if _, ours := errors.AsType[*apierr.Error](err); ours {
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

// repeated records a name that stands twice in one object. The decoder stops there, so the body is read a second
// time without that check, since bad_json further on goes first. Cold: no valid request comes here.
func (p *pass) repeated(found error) error {
	if p.failure == nil {
		name := "?"
		if bad, ok := errors.AsType[*jsontext.SyntacticError](found); ok {
			name = bad.JSONPointer.LastToken()
		}
		p.fail(apierr.InvalidField(name, "the name \""+apierr.Clip(name)+"\" stands twice in one object; send it once"))
	}
	if err := p.again(); err != nil {
		return p.syntax(err)
	}
	return p.nothingBehind()
}

// again reads the whole body with repeated names allowed: for its syntax, and for the model, by whose limits the
// fields before the repetition are judged.
func (p *pass) again() error {
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
			err = p.skip()
		}
		if err != nil {
			return err
		}
	}
	_, err := p.decoder.ReadToken()
	return err
}

// unquote is the name without its quotes and escapes; it is good until the next call.
func (p *pass) unquote(raw []byte) []byte {
	if inner := raw[1 : len(raw)-1]; bytes.IndexByte(inner, '\\') < 0 {
		return inner
	}
	out, err := jsontext.AppendUnquote(p.scratch[:0], raw)
	if err != nil { // cannot be: the decoder has passed it
		return raw
	}
	p.scratch = out
	return out
}

// modelLimits judges the fields whose range is the model's, in their place among the other errors.
func (p *pass) modelLimits(maxLogprobs func(string) int) {
	r := p.request
	limit := maxLogprobs(r.Model)
	for i := range r.members {
		m := &r.members[i]
		if p.failure != nil && p.failed <= m.at {
			return
		}
		if over := r.logprobsOf(m.field); over > limit {
			p.failure = apierr.InvalidField(fields[m.field].name, overLogprobs(fields[m.field].name, p.body[m.value:m.end], limit))
			return
		}
	}
}
