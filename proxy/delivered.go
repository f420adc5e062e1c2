package proxy

import (
	"context"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/tidwall/gjson"

	"basegate/validate"
)

// delivered is what of one choice has gone to the client. vLLM tells a stream's price only at its end, so this is what
// a stream costs that never comes there. One event may hold several tokens; which, only its text can tell.
type delivered struct {
	finished bool
	events   int64  // that had text
	scored   int64  // tokens whose log-probabilities were sent
	echoed   int64  // tokens of the prompt, which an echo sends first
	text     []byte // as it stood in the JSON, escapes and all
}

// take notes a choice of an event, or of a plain answer.
func (d *delivered) take(c *choice) {
	if c.hasText() {
		d.events++
		d.text = append(d.text, c.text[1:len(c.text)-1]...)
	}
	if len(c.logprobs) > 0 && c.logprobs[0] == '{' {
		d.scored += gjson.GetBytes(c.logprobs, "tokens.#").Int()
	}
}

// least is what the choice has cost at the least.
func (d *delivered) least() int64 { return max(d.events, d.scored-d.echoed) }

// countDelivered counts the tokens of all that has gone to the client. Never fewer than events with text, and more
// where an event held several; never more than were reserved.
func (x *exchange) countDelivered(ctx context.Context) (int64, error) {
	r := x.request
	var prompts []string
	if r.Echo {
		prompts = x.texts()
	}
	if echoed := x.echoes(); echoed != nil {
		for i := range x.delivered {
			x.delivered[i].echoed = echoed(i)
		}
	}
	tokens := make([]int64, len(x.delivered))
	var texts []string
	var at []int
	for i := range x.delivered {
		d := &x.delivered[i]
		tokens[i] = d.least()
		if d.scored > 0 || len(d.text) == 0 {
			continue
		}
		texts, at = append(texts, d.generated(prompts, i/int(r.N))), append(at, i)
	}
	counts, err := countTexts(ctx, x.model, texts, withoutSpecial)
	if err != nil {
		return 0, err
	}
	for j, i := range at {
		n := counts[j]
		if r.Echo && r.Kind == validate.Tokens {
			n -= x.delivered[i].echoed
		}
		tokens[i] = max(tokens[i], n)
	}
	var sum int64
	for _, n := range tokens {
		sum += min(n, x.reservation.MaxTokens())
	}
	return sum, nil
}

// generated is the choice's text less the prompt that it echoes.
func (d *delivered) generated(prompts []string, prompt int) string {
	quoted := make([]byte, 0, len(d.text)+2)
	quoted = append(append(append(quoted, '"'), d.text...), '"')
	text, err := jsontext.AppendUnquote(nil, quoted)
	if err != nil {
		return string(d.text) // a lone surrogate of vLLM's
	}
	if prompt < len(prompts) {
		return strings.TrimPrefix(string(text), prompts[prompt])
	}
	return string(text)
}
