package validate

import (
	"fmt"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// readPrompt takes the four forms of a prompt. The first element says which form an array has.
func readPrompt(p *pass, f *field) error {
	if p.decoder.PeekKind() != '[' {
		raw, err := p.scalar(f, '"')
		if raw != nil {
			p.request.Kind, p.request.Prompts = Text, 1
		}
		return err
	}
	if _, err := p.decoder.ReadToken(); err != nil {
		return err
	}
	var err error
	switch byte(p.decoder.PeekKind()) {
	case ']':
		p.wrong(f, "an empty array")
	case '"':
		err = p.textPrompts(f)
	case '0':
		var n int64
		n, err = p.tokenIDs(f, "prompt")
		p.request.addTokens(n)
	case '[':
		err = p.tokenPrompts(f)
	default:
		err = p.eachElement(func() error { return p.element(f, 0, "a string, a token id or an array of token ids") })
	}
	if err != nil {
		return err
	}
	_, err = p.decoder.ReadToken() // the closing bracket
	return err
}

func (r *Request) addTokens(n int64) {
	r.Kind = Tokens
	r.Prompts++
	r.PromptTokens += n
	r.longestPrompt = max(r.longestPrompt, n)
}

// eachElement calls read for each element of the array that the decoder stands in, up to its closing bracket.
func (p *pass) eachElement(read func() error) error {
	for p.decoder.PeekKind() != ']' {
		if err := read(); err != nil {
			return err
		}
	}
	return nil
}

// element records an element of the wrong kind and reads over it.
func (p *pass) element(f *field, index int, want string) error {
	start := p.valueStart()
	if err := p.skip(); err != nil {
		return err
	}
	p.wrong(f, fmt.Sprintf("%s as element %d, where %s was expected", describe(p.body[start:p.decoder.InputOffset()]), index, want))
	return nil
}

func (p *pass) textPrompts(f *field) error {
	p.request.Kind = Text
	return p.eachElement(func() error {
		index := p.request.Prompts
		p.request.Prompts++
		if p.decoder.PeekKind() != '"' {
			return p.element(f, index, "a string, like the ones before it,")
		}
		_, err := p.decoder.ReadValue()
		return err
	})
}

func (p *pass) tokenPrompts(f *field) error {
	return p.eachElement(func() error {
		index := p.request.Prompts
		if p.decoder.PeekKind() != '[' {
			p.request.Prompts++
			return p.element(f, index, "an array of token ids, like the ones before it,")
		}
		if _, err := p.decoder.ReadToken(); err != nil {
			return err
		}
		n, err := p.tokenIDs(f, "prompt "+strconv.Itoa(index))
		if err != nil {
			return err
		}
		if n == 0 {
			p.wrong(f, "an empty array as element "+strconv.Itoa(index))
		}
		p.request.addTokens(n)
		_, err = p.decoder.ReadToken()
		return err
	})
}

// tokenIDs reads the ids of the array that the decoder stands in, up to its closing bracket, and counts them.
func (p *pass) tokenIDs(f *field, where string) (int64, error) {
	var n int64
	for p.decoder.PeekKind() != ']' {
		if p.decoder.PeekKind() != '0' {
			if err := p.element(f, int(n), "a token id"); err != nil {
				return n, err
			}
			n++
			continue
		}
		raw, err := p.decoder.ReadValue()
		if err != nil {
			return n, err
		}
		if !isID(raw) {
			p.wrong(f, fmt.Sprintf("%s as element %d of %s, where a token id (an integer of at least 0) was expected", describe(raw), n, where))
		}
		n++
	}
	return n, nil
}

// isID takes a number that is written as an integer of at least 0 and fits 63 bits.
func isID(raw jsontext.Value) bool {
	if len(raw) > 18 {
		return false
	}
	for _, c := range raw {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}
