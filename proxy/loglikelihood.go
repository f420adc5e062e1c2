package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/go-json-experiment/json"
	"golang.org/x/sync/errgroup"

	"basegate/budget"
	"basegate/budget/admission"
	apierr "basegate/errors"
	"basegate/fleet"
	"basegate/proxy/loglikelihood"
	"basegate/proxy/stream"
	"basegate/validate"
)

// scoring is the state of an exchange that serves a log-likelihood: as soon as its texts have been tokenized, it is served by a
// completion like any other.
type scoring struct {
	asked    *validate.Request // as the client sent it
	question loglikelihood.Question
	pairs    loglikelihood.Pairs
	method   string // empty before the texts have been tokenized
	covered  bool   // the reservation covers loglikelihood.Scored too
	refused  error  // why it does not
	results  []loglikelihood.Result
}

// beginScoring makes a request of token ids the completion that serves it. Texts are tokenized later, by tokenizePairs.
func (x *exchange) beginScoring() error {
	if x.request.Kind != validate.Pairs {
		return nil
	}
	body := x.request.Body()
	if err := x.memory.Grow(int64(len(body))); err != nil {
		return bufferFull(err)
	}
	question, err := x.request.Question()
	if err != nil {
		return apierr.Unexpected(err)
	}
	x.scoring = &scoring{asked: x.request, question: question}
	if !question.IsTokenized() {
		return nil
	}
	if err := x.encodePairs(x.r.Context()); err != nil {
		return err
	}
	return x.chooseMethod()
}

// tokenizePairs tokenizes the texts of a log-likelihood and makes it the completion that serves it. An estimate for a model that
// does not run stays as it is.
func (x *exchange) tokenizePairs() error {
	if x.scoring == nil || x.scoring.method != "" {
		return nil
	}
	err := x.inTurn(x.r.Context(), x.encodePairs)
	var refused *apierr.Error
	switch {
	case err == nil:
	case x.cancelled():
		return x.cancelErr()
	case errors.As(err, &refused):
		return err
	case errors.Is(err, fleet.ErrNoFirstToken):
		return apierr.InvalidField("context", "context: got none, and the first special token of "+x.model.ID()+
			" is not known here; send a context, or that token's id as the context")
	case errors.Is(err, fleet.ErrNoOtherBackend) && x.endpoint == estimateEndpoint:
		return nil
	default:
		return x.uncountable(err)
	}
	usable := x.attempts.usable
	if err := x.chooseMethod(); err != nil {
		return err
	}
	if l := x.caller.line; l != nil && l.place != nil { // whose attempts are limited to it
		if !x.attempts.usable(l.place.Backend) {
			return &lineWaitsError{reason: WaitsForCapacity}
		}
		x.attempts.usable = usable
	}
	return x.checkPairs()
}

// encodePairs tokenizes what is text. The context comes first: a long one that does not fit is not tokenized once more with each
// continuation.
func (x *exchange) encodePairs(ctx context.Context) (err error) {
	c := x.scoring
	texts := c.question.Texts()
	encode := func(texts []loglikelihood.Text, set func(i int, ids []int64)) error {
		counter := newTextCounter(ctx, x, withoutSpecial)
		defer counter.stop()
		for i, text := range texts {
			if text.IDs != nil {
				set(i, text.IDs)
				continue
			}
			whole := func() string { return text.Before + text.Text }
			counter.query(len(text.Before)+len(text.Text), whole, func(b *fleet.Backend, whole string) error {
				ids, err := b.TokenIDs(counter.ctx, whole, text.Special)
				if err == nil {
					set(i, ids)
				}
				return err
			})
		}
		return counter.wait()
	}
	var first int64
	var ids []int64
	if !c.question.HasContext() {
		err = x.model.QueryReady(func(b *fleet.Backend) (err error) {
			first, err = b.FirstToken(ctx)
			return err
		})
	}
	if err == nil {
		err = encode(texts[:1], func(_ int, context []int64) { ids = context })
	}
	if err != nil {
		return err
	}
	if c.pairs, err = c.question.Pairs(ids, first); err != nil {
		return apierr.InvalidField("context", "context: got white space alone, which moves to the continuations, and "+
			"no special token stands before it; send a text, remove it, or send boundary: separate")
	}
	if !c.question.IsTokenized() {
		if err := x.checkPairLength(int64(len(ids)), 1); err != nil {
			return err
		}
	}
	return encode(texts[1:], c.pairs.Set)
}

// chooseMethod makes the request the completion that serves it with the fewest tokens.
func (x *exchange) chooseMethod() error {
	c := x.scoring
	if err := x.memory.Grow(8 * c.pairs.Size()); err != nil {
		return bufferFull(err)
	}
	c.method = loglikelihood.Scored
	if c.pairs.TakesNextToken(x.model.MaxLogprobs()) {
		c.method = loglikelihood.NextToken
	}
	return x.applyMethod()
}

// idBytes is about what a token id takes in a body, in bytes.
const idBytes = 7

func (x *exchange) applyMethod() (err error) {
	c := x.scoring
	_, tokens := c.pairs.Prompts()
	if err := x.memory.Grow(2 * idBytes * tokens); err != nil { // the members, and the body with them
		return bufferFull(err)
	}
	members := make([]byte, 0, idBytes*tokens)
	if c.method == loglikelihood.NextToken {
		members = c.pairs.AppendNextBody(members, x.model.MaxLogprobs())
	} else {
		members = c.pairs.AppendScoredBody(members)
	}
	if x.request, err = c.asked.Completion(members, x.longPart(), &x.memory); err != nil {
		x.request = c.asked
		return err
	}
	return x.checkServers()
}

// longPart returns the field to shorten if a log-likelihood does not fit.
func (x *exchange) longPart() string {
	if c := x.scoring; int64(len(c.pairs.Context)) < c.pairs.Longest() {
		return "continuations"
	}
	return "context"
}

// checkPairs refuses a log-likelihood that does not fit the model's context, as far as its tokens are known.
func (x *exchange) checkPairs() error {
	switch c := x.scoring; {
	case c == nil:
		return nil
	case c.method == "":
		return x.checkPairLength(c.asked.KnownTokens())
	default:
		return x.checkPairLength(int64(len(c.pairs.Context)), c.pairs.Longest())
	}
}

// checkPairLength refuses a context and a continuation of that many tokens that do not fit the model's context, beside the one
// token that vLLM generates.
func (x *exchange) checkPairLength(context, continuation int64) error {
	limit := x.model.MaxModelLen()
	if limit == 0 || context+continuation < limit {
		return nil
	}
	field := "context"
	if context < continuation {
		field = "continuations"
	}
	return apierr.PairTooLong(field, context+continuation, limit)
}

// boundPairs sets an upper bound of the tokens of texts that cannot be tokenized, since the model does not run.
func (x *exchange) boundPairs() {
	r := x.scoring.asked
	context := textBound(x.r.Context(), r.Value("context")) + x.model.SpecialTokens()
	x.prompt.tokens = int64(r.Prompts)*context + textBound(x.r.Context(), r.PromptJSON())
}

// demand returns the most that the results can cost if they are asked for as scored prompts.
func (c *scoring) demand() budget.Demand {
	n, tokens := c.pairs.Prompts()
	return budget.Demand{PromptTokens: tokens, Exact: true, Candidates: n, MaxTokens: 1}
}

// namesFor returns the tokens that the backend is to name in place of the likeliest ones, or nil.
func (c *scoring) namesFor(b *fleet.Backend) []byte {
	if c.method != loglikelihood.NextToken || !c.pairs.TakesNames() || !b.TakesLogprobTokenIDs() {
		return nil
	}
	return c.pairs.AppendNames(nil)
}

// readScores reads the results from a response. If the next tokens do not include all continuations, it asks for scored prompts.
// The response that it returns is the one that is charged.
func (s *Server) readScores(x *exchange, p *response) (*response, error) {
	c := x.scoring
	err := x.readResults(p)
	if errors.Is(err, loglikelihood.ErrMissing) {
		p.close()
		if c.refused != nil {
			return nil, c.refused
		}
		c.method = loglikelihood.Scored
		if err := x.applyMethod(); err != nil {
			return nil, err
		}
		if err := x.checkLength(); err != nil {
			return nil, err
		}
		if p, err = s.forward(x); err != nil {
			return nil, err
		}
		err = x.readResults(p)
	}
	switch {
	case err == nil:
		return p, nil
	case errors.Is(err, admission.ErrFull):
		err = bufferFull(err)
	default:
		message := fmt.Sprintf("the server of %s returned no usable log-probabilities: %v", x.model.ID(), err)
		err = apierr.UpstreamFailed(apierr.UpstreamServerError, message, http.StatusOK, x.attempts.count, err)
	}
	p.close()
	return nil, err
}

func (x *exchange) readResults(p *response) (err error) {
	if err := p.plain.hold(int64(len(p.plain.bytes))); err != nil { // for the copy that is read
		return err
	}
	c := x.scoring
	if c.method == loglikelihood.Scored {
		c.results, err = c.pairs.ReadScored(p.plain.bytes)
		return err
	}
	if c.results, err = c.pairs.ReadNext(p.plain.bytes); err == nil {
		x.nameTokens(p.lease.Backend)
	}
	return err
}

// nameTokens sets the texts of the tokens, which next tokens come without. What a backend does not tell stays empty: ids decide.
func (x *exchange) nameTokens(b *fleet.Backend) {
	texts := map[int64]*string{}
	loglikelihood.EachToken(x.scoring.results, func(t *loglikelihood.Token) { texts[t.ID] = new(string) })
	ctx, cancel := context.WithTimeout(x.r.Context(), tokenizeTimeout)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(tokenizeConcurrency)
	for id, text := range texts {
		group.Go(func() (err error) {
			*text, err = b.Detokenize(ctx, []int64{id})
			return err
		})
	}
	_ = group.Wait()
	loglikelihood.EachToken(x.scoring.results, func(t *loglikelihood.Token) { t.Text = *texts[t.ID] })
}

// loglikelihoodObject is the response to POST /v1/loglikelihood. Counts are in tokens.
type loglikelihoodObject struct {
	Object        string                 `json:"object"`
	Model         string                 `json:"model"`
	Method        string                 `json:"method"`
	ContextTokens int                    `json:"context_tokens"`
	Data          []loglikelihood.Result `json:"data"`
	Usage         struct {
		Prompt     int64 `json:"prompt_tokens"`
		Completion int64 `json:"completion_tokens"`
		Total      int64 `json:"total_tokens"`
	} `json:"usage"`
}

// loglikelihood returns the response with what has been charged.
func (x *exchange) loglikelihood(u stream.Usage) ([]byte, error) {
	c := x.scoring
	o := loglikelihoodObject{
		Object: "loglikelihood", Model: x.serving().Served(), Method: c.method, ContextTokens: len(c.pairs.Context), Data: c.results,
	}
	o.Usage.Prompt, o.Usage.Completion, o.Usage.Total = u.Prompt, u.Completion, u.Prompt+u.Completion
	body, err := json.Marshal(o)
	if err != nil {
		return nil, apierr.Unexpected(err)
	}
	return body, nil
}
