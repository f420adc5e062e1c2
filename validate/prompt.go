package validate

import (
	"fmt"
	"math"
	"strconv"
)

// readPrompt reads a prompt in one of its four forms. The first element of an array decides which form it has.
func readPrompt(p *parser, f *field) error {
	if p.decoder.PeekKind() != '[' {
		if _, err := p.readScalar(f, '"'); err != nil {
			return err
		}
		p.request.Kind, p.request.Prompts = Text, 1
		return nil
	}
	if _, err := p.decoder.ReadToken(); err != nil {
		return err
	}
	var err error
	kind := byte(p.decoder.PeekKind())
	p.request.promptArray = kind == '"' || kind == '['
	switch kind {
	case ']':
		err = p.invalid(f, "an empty array")
	case '"':
		err = p.readTextPrompts(f)
	case '0':
		var n int64
		n, err = p.readTokenIDs(f, "prompt")
		p.request.addTokens(n)
	case '[':
		err = p.readTokenPrompts(f)
	default:
		err = p.invalidElement(f, 0, "a string, a token id or an array of token ids")
	}
	if err != nil {
		return err
	}
	_, err = p.decoder.ReadToken() // the closing bracket
	return err
}

// addTokens adds a prompt of n token ids.
func (r *Request) addTokens(n int64) {
	r.Kind = Tokens
	r.Prompts++
	r.PromptTokens += n
	r.longestPrompt = max(r.longestPrompt, n)
}

// TextPrompts reads a prompt that is a string or an array of strings.
func TextPrompts(p *parser, f *field) error {
	if p.decoder.PeekKind() != '[' {
		return readPrompt(p, f)
	}
	p.request.promptArray = true
	if _, err := p.decoder.ReadToken(); err != nil {
		return err
	}
	if p.decoder.PeekKind() == ']' {
		return p.invalid(f, "an empty array")
	}
	if err := p.readTextPrompts(f); err != nil {
		return err
	}
	_, err := p.decoder.ReadToken() // the closing bracket
	return err
}

// invalidElement skips an element of the wrong kind and records it.
func (p *parser) invalidElement(f *field, index int, want string) error {
	value, err := p.skipInvalid()
	if err != nil {
		return err
	}
	return p.invalid(f, fmt.Sprintf("%s as element %d, where %s was expected", describe(value), index, want))
}

func (p *parser) readTextPrompts(f *field) error {
	p.request.Kind = Text
	want := "a string"
	for p.decoder.PeekKind() != ']' {
		if p.decoder.PeekKind() != '"' {
			return p.invalidElement(f, p.request.Prompts, want)
		}
		if _, err := p.readString(); err != nil {
			return err
		}
		p.request.Prompts++
		want = "a string, like the ones before it,"
	}
	return nil
}

func (p *parser) readTokenPrompts(f *field) error {
	for p.decoder.PeekKind() != ']' {
		index := p.request.Prompts
		if p.decoder.PeekKind() != '[' {
			return p.invalidElement(f, index, "an array of token ids, like the ones before it,")
		}
		if _, err := p.decoder.ReadToken(); err != nil {
			return err
		}
		n, err := p.readTokenIDs(f, "prompt "+strconv.Itoa(index))
		if err != nil {
			return err
		}
		if n == 0 {
			return p.invalid(f, "an empty array as element "+strconv.Itoa(index))
		}
		p.request.addTokens(n)
		if _, err := p.decoder.ReadToken(); err != nil {
			return err
		}
	}
	return nil
}

// readTokenIDs reads the ids of the array whose opening bracket has been read, up to its closing bracket, and counts
// them. where names the array in error messages.
func (p *parser) readTokenIDs(f *field, where string) (int64, error) {
	var n int64
	for ; p.decoder.PeekKind() != ']'; n++ {
		if p.decoder.PeekKind() != '0' {
			return n, p.invalidElement(f, int(n), "a token id")
		}
		raw, err := p.decoder.ReadValue()
		if err != nil {
			return n, err
		}
		if !isTokenID(raw) {
			return n, p.invalid(f, fmt.Sprintf("%s as element %d of %s, where a token id (an integer from 0 to 2147483647) was expected", describe(raw), n, where))
		}
	}
	return n, nil
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

// tokenIDArray returns a reader of a field that is an array of 1 to most token ids.
func tokenIDArray(most int) Reader {
	return func(p *parser, f *field) error {
		if p.decoder.PeekKind() != '[' {
			return p.invalidKind(f, "")
		}
		if _, err := p.decoder.ReadToken(); err != nil {
			return err
		}
		n, err := p.readTokenIDs(f, f.name)
		if err != nil {
			return err
		}
		if n == 0 || n > int64(most) {
			return p.invalid(f, fmt.Sprintf("an array of %d token ids", n))
		}
		_, err = p.decoder.ReadToken()
		return err
	}
}
