package validate

import (
	"fmt"
	"math"
	"strconv"
)

// readPrompt reads a prompt in one of its four forms. The first element of an array decides which form it has.
func readPrompt(p *parser, f *field) error { return p.readPrompts(f, 0) }

// TextPrompts reads a prompt that is a string or an array of strings.
func TextPrompts(p *parser, f *field) error { return p.readPrompts(f, '"') }

// readPrompts reads a prompt whose elements are of one kind, if it is an array: 0 for any.
func (p *parser) readPrompts(f *field, kind byte) error {
	if p.decoder.PeekKind() != '[' {
		_, err := p.readScalar(f, '"')
		p.request.Kind, p.request.Prompts = Text, 1
		return err
	}
	n, err := p.readArray(f, func(i int) error {
		if kind == 0 {
			kind = byte(p.decoder.PeekKind())
		}
		switch kind {
		case '"':
			_, err := p.readTextPrompt(f, i)
			return err
		case '[':
			return p.readTokenPrompt(f, i)
		case '0':
			return p.readTokenID(f, i, "prompt")
		default:
			return p.invalidElement(f, 0, "a string, a token id or an array of token ids")
		}
	})
	switch {
	case err != nil:
		return err
	case n == 0:
		return p.invalid(f, "an empty array")
	case kind == '0':
		p.request.addTokens(n)
	default:
		p.request.promptArray = true
	}
	return nil
}

func (r *Request) addTokens(n int) {
	r.Kind = Tokens
	r.Prompts++
	r.PromptTokens += int64(n)
	r.LongestPrompt = max(r.LongestPrompt, int64(n))
}

// invalidElement skips an element of the wrong kind and records it.
func (p *parser) invalidElement(f *field, index int, want string) error {
	value, err := p.skipInvalid()
	if err != nil {
		return err
	}
	return p.invalid(f, fmt.Sprintf("%s as element %d, where %s was expected", Describe(value), index, want))
}

func (p *parser) readTextPrompt(f *field, i int) (raw []byte, err error) {
	if p.decoder.PeekKind() != '"' {
		want := "a string"
		if i > 0 {
			want = "a string, like the ones before it,"
		}
		return nil, p.invalidElement(f, i, want)
	}
	p.request.Kind = Text
	p.request.Prompts++
	return p.readString()
}

func (p *parser) readTokenPrompt(f *field, i int) error {
	if p.decoder.PeekKind() != '[' {
		return p.invalidElement(f, i, "an array of token ids, like the ones before it,")
	}
	n, err := p.readTokenIDs(f, f.name+" "+strconv.Itoa(i))
	switch {
	case err != nil:
		return err
	case n == 0:
		return p.invalid(f, "an empty array as element "+strconv.Itoa(i))
	}
	p.request.addTokens(n)
	return nil
}

// readTokenIDs reads an array of token ids and counts them. where names the array in error messages.
func (p *parser) readTokenIDs(f *field, where string) (int, error) {
	return p.readArray(f, func(i int) error { return p.readTokenID(f, i, where) })
}

func (p *parser) readTokenID(f *field, i int, where string) error {
	if p.decoder.PeekKind() != '0' {
		return p.invalidElement(f, i, "a token id")
	}
	raw, err := p.decoder.ReadValue()
	if err == nil && !isTokenID(raw) {
		return p.invalid(f, fmt.Sprintf("%s as element %d of %s, where a token id (an integer from 0 to 2147483647) was expected", Describe(raw), i, where))
	}
	return err
}

// maxTokenID is the largest token id: vLLM keeps ids as signed 32-bit integers.
const maxTokenID = math.MaxInt32

// isTokenID reports whether text is a token id: a decimal integer up to maxTokenID. Leading zeros are not allowed,
// because vLLM reads "7" and "07" as the same token, and two biases for one token would be ambiguous.
func isTokenID(text []byte) bool {
	if len(text) == 0 || len(text) > len("2147483647") || (text[0] == '0' && len(text) > 1) {
		return false
	}
	id := 0
	for _, c := range text {
		if c < '0' || c > '9' {
			return false
		}
		id = 10*id + int(c-'0')
	}
	return id <= maxTokenID
}

// distinctTokenIDs returns a reader of a field that is an array of 1 to most different token ids.
func distinctTokenIDs(most int) Reader {
	return func(p *parser, f *field) error {
		seen := make(map[string]bool)
		return p.readSome(f, 1, most, "token ids", func(i int) error {
			start := p.valueStart()
			if err := p.readTokenID(f, i, f.name); err != nil || i >= most {
				return err
			}
			id := string(p.body[start:p.offset()])
			if seen[id] {
				return p.invalid(f, "the token id "+id+" twice")
			}
			seen[id] = true
			return nil
		})
	}
}

// tokenIDs returns a reader of a field that is an array of least to most token ids.
func tokenIDs(least, most int) Reader {
	return func(p *parser, f *field) error {
		return p.readSome(f, least, most, "token ids", func(i int) error { return p.readTokenID(f, i, f.name) })
	}
}
