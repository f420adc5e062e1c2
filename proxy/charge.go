package proxy

import (
	"context"
	"iter"
	"strings"
	"time"
	"unicode/utf8"

	"go.uber.org/zap"

	"basegate/proxy/stream"
	"basegate/validate"
)

// chargeable returns the usage to charge: the reported one, or what the gateway counts if that is not known, and no more than was
// reserved, or a backend could make a key exceed its caps.
func (s *Server) chargeable(x *exchange, u stream.Usage) stream.Usage {
	if !u.Known {
		u = s.countUsage(x)
	}
	prompt, completion := x.reservation.Reserved()
	charged := stream.Usage{Prompt: min(u.Prompt, prompt), Completion: min(u.Completion, completion), Known: true}
	if rest := u.Prompt + u.Completion - charged.Prompt - charged.Completion; rest > 0 {
		backend := x.attempts.backend.Name
		s.metrics.unreserved.WithLabelValues(x.model.Base().ID(), backend).Add(float64(rest))
		s.deps.Log.Warn("a request used more tokens than were reserved for it",
			zap.String("request_id", x.id), zap.String("backend", backend),
			zap.Int64("prompt_tokens", u.Prompt), zap.Int64("completion_tokens", u.Completion),
			zap.Int64("reserved_prompt_tokens", prompt), zap.Int64("reserved_completion_tokens", completion))
	}
	return charged
}

// countTimeout limits the requests to /tokenize for a usage that vLLM did not report. It is shorter than what the gateway
// takes to stop after it has cancelled the requests in flight.
const countTimeout = 5 * time.Second

// countUsage counts a usage that vLLM did not report: the prompt, and what the client has received of a stream. The request
// keeps its slot meanwhile, so that a client cannot start more counts than it may run requests. If the tokenizer does not
// respond, or has too much to count, the prompt's upper bound is charged, and one token for each event.
func (s *Server) countUsage(x *exchange) stream.Usage {
	x.stopCounting()
	if x.delivery.streaming {
		x.delivery.keepalive.hold()
		x.extendWriteDeadline() // an error event is sent after this
		x.delivery.keepalive.release()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(x.r.Context()), countTimeout)
	defer cancel()
	err := errTooMany
	if x.prompt.exact || x.request.Prompts <= maxCounted {
		err = x.countPrompt(ctx)
	}
	if err != nil {
		s.deps.Log.Warn("a prompt is charged by its bytes", zap.String("request_id", x.id), zap.Error(err))
	}
	if x.charge.stream != nil {
		x.charge.choices = x.charge.stream.Choices()
	}
	usage := stream.Usage{Prompt: x.servedPrompt(), Known: true}
	for i := range x.charge.choices {
		usage.Completion += x.charge.choices[i].MinTokens()
	}
	if usage.Completion == 0 {
		return usage
	}
	completion, err := x.countCompletion(ctx)
	if err != nil {
		s.deps.Log.Warn("a stream that was cut off is charged by its events", zap.String("request_id", x.id), zap.Error(err))
		return usage
	}
	usage.Completion = completion
	return usage
}

// echoedTokens returns a function from a choice to the number of its tokens that echo the prompt: unlimited if they have
// not been counted. It returns nil for a request without echo. It must not be called while the prompt is counted.
func (x *exchange) echoedTokens() func(choice int) int64 {
	if !x.request.Echo {
		return nil
	}
	if x.prompt.each == nil && x.request.Kind == validate.Tokens && x.growEach() == nil {
		x.prompt.each = x.request.PromptLengths()
	}
	var each []int64
	if x.prompt.exact { // bounds of the prompts say nothing about their echo
		each = x.prompt.each
	}
	maxTokens := x.maxTokens()
	return func(choice int) int64 {
		if prompt := x.promptOf(choice); prompt < len(each) {
			return x.truncatedIn(x.servedContext(), each[prompt], maxTokens)
		}
		return unlimited
	}
}

// promptOf returns the index of the prompt that a choice completes. A plain response has all choices, of which emulating best_of
// takes more than n for each prompt.
func (x *exchange) promptOf(choice int) int {
	if n := len(x.charge.choices) / x.request.Prompts; !x.request.Stream && n > 0 {
		return choice / n
	}
	return choice / int(x.request.N)
}

// countCompletion counts the completion tokens in what has been received of each choice, never more than was reserved. If
// the events do not say how many tokens they hold, each event with text is one, unless the text as a whole has more tokens
// than events: then events hold several, and countEvents counts each by itself.
func (x *exchange) countCompletion(ctx context.Context) (int64, error) {
	choices := x.charge.choices
	if len(choices) > maxCounted {
		return 0, errTooMany
	}
	prompts, err := x.echoedTexts()
	if err != nil {
		return 0, err
	}
	most := x.reservation.MaxTokens()
	if echoed := x.echoedTokens(); echoed != nil {
		for i := range choices {
			choices[i].Echoed = echoed(choices[i].Index)
		}
	}
	received := make([]receivedChoice, len(choices))
	counter := newTextCounter(ctx, x, withoutSpecial)
	defer counter.stop()
	for i := range choices {
		c := &received[i]
		c.ChoiceUsage, c.prompt = &choices[i], x.echoedText(&choices[i], prompts)
		if x.request.Echo && prompts == nil { // the first event may begin with the prompt's own tokens
			c.echoed = choices[i].Echoed
		}
		c.tokens, c.limit = c.MinTokens(), int(min(most+c.echoed, unlimited/maxTokenBytes)*maxTokenBytes)
		if c.IsCounted() || c.TextBytes() == 0 || c.tokens >= most {
			continue
		}
		counter.add(min(c.TextBytes(), c.limit), c.whole, func(n int64) { c.several = n-c.echoed > c.tokens })
	}
	if err := counter.wait(); err != nil {
		return 0, err
	}
	if err := x.countEvents(ctx, received); err != nil {
		return 0, err
	}
	var sum int64
	for i := range received {
		sum += min(received[i].tokens, most)
	}
	return sum, nil
}

// receivedChoice is what has been received of a choice while it is counted.
type receivedChoice struct {
	*stream.ChoiceUsage
	prompt  string // that the text begins with
	echoed  int64  // tokens of the prompt that are counted with the first event
	limit   int    // bytes of text in which there are as many tokens as can be charged
	several bool   // some of its events hold several tokens
	tokens  int64
}

// maxTokenBytes is longer than any token of a vocabulary, in bytes. The longest ones are runs of spaces.
const maxTokenBytes = 1 << 10

// texts calls yield with the text of each event, without the prompt, as far as it can make a difference to the charge.
func (c *receivedChoice) texts(yield func(string) bool) {
	left := c.limit
	for text := range c.Texts(c.prompt) {
		if len(text) > left {
			text = strings.ToValidUTF8(text[:left], "")
		}
		left -= len(text)
		if !yield(text) || left == 0 {
			return
		}
	}
}

func (c *receivedChoice) whole() string {
	var all strings.Builder
	for text := range c.texts {
		all.WriteString(text)
	}
	return all.String()
}

// eventBytes is about what countEvents holds for an event besides its text, in bytes.
const eventBytes = 128

// countEvents counts the tokens of each event of the choices whose events hold several. The text of an event is counted by
// itself, because the tokenizer would join or split the tokens of random text differently. Equal texts are counted once.
func (x *exchange) countEvents(ctx context.Context, received []receivedChoice) error {
	positions := make(map[string]int) // of each text in counts
	for i := range received {
		c := &received[i]
		if !c.several {
			continue
		}
		if err := x.memory.Grow(2*int64(c.TextBytes()) + eventBytes*c.Events); err != nil {
			return err
		}
		for text := range c.texts {
			for piece := range validPieces(text) {
				if _, found := positions[piece]; !found {
					positions[piece] = len(positions)
				}
			}
		}
	}
	counts := make([]int64, len(positions))
	counter := newTextCounter(ctx, x, withoutSpecial)
	defer counter.stop()
	for text, i := range positions {
		counter.add(len(text), func() string { return text }, func(n int64) { counts[i] = n })
	}
	if err := counter.wait(); err != nil {
		return err
	}
	for i := range received {
		if c := &received[i]; c.several {
			c.sumEvents(func(text string) int64 { return counts[positions[text]] })
		}
	}
	return nil
}

// sumEvents adds up the tokens of the events, of which each holds at least one. count is for a text without U+FFFD.
func (c *receivedChoice) sumEvents(count func(text string) int64) {
	var sum int64
	echoed := c.echoed
	for text := range c.texts {
		n := int64(strings.Count(text, invalidText))
		for piece := range validPieces(text) {
			n += count(piece)
		}
		sum += max(1, n-echoed)
		echoed = 0
	}
	c.tokens = max(c.tokens, sum)
}

// invalidText stands for bytes that are no text, such as a part of a character. It counts as one token: the tokenizer, which
// does not know the bytes, would encode the three bytes of U+FFFD itself.
const invalidText = string(utf8.RuneError)

// validPieces returns the parts of a text between its U+FFFD.
func validPieces(text string) iter.Seq[string] {
	return strings.FieldsFuncSeq(text, func(c rune) bool { return c == utf8.RuneError })
}

// echoedTexts returns the text prompts if the choices begin with them as the client sent them.
func (x *exchange) echoedTexts() ([]string, error) {
	r := x.request
	if !r.Echo || r.Kind != validate.Text || r.Truncate != 0 {
		return nil, nil
	}
	if r.Prompts > maxCounted {
		return nil, errTooMany
	}
	if err := x.memory.Grow(2 * int64(len(r.PromptJSON()))); err != nil { // the texts, and their last one without escapes
		return nil, err
	}
	all := make([]string, 0, r.Prompts)
	r.EachText(func(text []byte) bool {
		all = append(all, string(text))
		return true
	})
	return all, nil
}

func (x *exchange) echoedText(c *stream.ChoiceUsage, prompts []string) string {
	if p := x.promptOf(c.Index); p < len(prompts) {
		return prompts[p]
	}
	return ""
}
