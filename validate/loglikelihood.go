package validate

import (
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"basegate/proxy/loglikelihood"
)

// LoglikelihoodPath is the path of log-likelihoods.
const LoglikelihoodPath = "/v1/loglikelihood"

// maxContinuations is the most continuations of one context.
const maxContinuations = 256

// question holds what only a log-likelihood has, and the completion that is made of it.
type question struct {
	separate, tokens bool
	top              int
	contextTokens    int    // 0 if the context is text
	subject          string // of that completion: the field whose length decides whether it fits; empty for other requests
}

var (
	fieldContext       = define(0, "context", "a string, or an array of token ids that is not empty", readContext)
	fieldContinuations = define(0, "continuations", "an array of 1 to 256 strings, or of as many arrays of token ids, none empty", readContinuations)
	fieldBoundary      = define(0, "boundary", `"joint" or "separate"`, readBoundary)
	fieldEachToken     = define(0, "tokens", "true or false", boolean(func(r *Request, v bool) { r.question.tokens = v }))
	fieldTop           = define(0, "top", "an integer from 0 to the model's limit (20 unless configured)", Integer(0, math.MaxInt64, func(r *Request, v int64) { r.question.top = clampInt(v) }))
	fieldEndpoint      = define(0, "endpoint", "the path of the endpoint whose fields the body has, such as "+strconv.Quote(LoglikelihoodPath), readEndpoint)
)

var (
	questions = &schema{
		fields: []fieldID{
			fieldModel, fieldContext, fieldContinuations, fieldBoundary, fieldAddSpecialTokens, fieldEachToken, fieldTop,
			fieldUser, fieldCacheSalt, fieldPromptCacheKey,
		},
		required: []fieldID{fieldModel, fieldContinuations}, refused: refusedFields, advice: map[string]string{},
		example: `{"model": …, "context": …, "continuations": […]}`, prompt: fieldContinuations,
	}
	// serving is a completion whose fields have the names that a log-likelihood has for them.
	serving = &schema{prompt: fieldPrompt}
)

func init() {
	for _, s := range []*schema{completion, chat} {
		for name := range s.byName {
			if _, ours := questions.byName[name]; !ours {
				questions.advice[name] = "a log-likelihood does not have it, since nothing is sampled or streamed; remove it"
			}
		}
	}
	maps.Copy(questions.advice, map[string]string{
		"prompt":          "a log-likelihood has context and continuations; send them in its place",
		"messages":        "a log-likelihood has a text as context; send it in their place",
		"logprobs":        "a log-likelihood has tokens and top; send them in its place",
		"prompt_logprobs": "a log-likelihood has tokens and top; send them in its place",
	})
	serving.fields, serving.byName, serving.table = completion.fields, completion.byName, slices.Clone(fields)
	for id, name := range map[fieldID]string{fieldPrompt: "continuations", fieldLogprobs: "top", fieldPromptLogprobs: "top"} {
		serving.table[id].name = name
	}
}

func readContext(p *parser, f *field) error {
	if p.decoder.PeekKind() != '[' {
		_, err := p.readScalar(f, '"')
		return err
	}
	n, err := p.readTokenIDs(f, f.name)
	if err == nil && n == 0 {
		return p.invalid(f, "an empty array")
	}
	p.request.question.contextTokens = n
	return err
}

// readContinuations reads an array of elements of the kind of the first one.
func readContinuations(p *parser, f *field) error {
	var kind byte
	err := p.readSome(f, 1, maxContinuations, "elements", func(i int) error {
		if i == 0 {
			kind = byte(p.decoder.PeekKind())
		}
		switch kind {
		case '"':
			raw, err := p.readTextPrompt(f, i)
			if err == nil && len(raw) == len(`""`) {
				return p.invalid(f, "an empty string as element "+strconv.Itoa(i))
			}
			return err
		case '[':
			return p.readTokenPrompt(f, i)
		default:
			return p.invalidElement(f, i, "a string or an array of token ids")
		}
	})
	p.request.Kind = Pairs
	return err
}

// readEndpoint reads the field of an estimate that tells a log-likelihood from a completion. No backend gets it.
func readEndpoint(p *parser, f *field) error {
	path := "/v1/completions"
	switch p.schema.prompt {
	case fieldContinuations:
		path = LoglikelihoodPath
	case fieldMessages:
		path = "/v1/chat/completions"
	}
	err := oneOf(path)(p, f)
	p.absent = err == nil
	return err
}

func readBoundary(p *parser, f *field) error {
	start := p.valueStart()
	err := oneOf("joint", "separate")(p, f)
	p.request.question.separate = err == nil && string(p.body[start:p.offset()]) != `"joint"`
	return err
}

// Loglikelihood parses the body of POST /v1/loglikelihood. Its errors are those of Completion. Of the Request, Kind is Pairs, and
// Prompts the number of continuations.
func Loglikelihood(body []byte, limits Limits) (*Request, error) {
	r, err := parse(questions, body, limits)
	if r != nil {
		r.MaxTokens = 1
	}
	return r, err
}

// KnownTokens returns the tokens of the context, and of the longest continuation, that are known without a tokenizer.
func (r *Request) KnownTokens() (context, continuation int64) {
	return int64(r.question.contextTokens), max(r.LongestPrompt, 1)
}

// Question returns what a request of Pairs asks. It copies the texts.
func (r *Request) Question() (q loglikelihood.Question, err error) {
	q = loglikelihood.Question{Separate: r.question.separate, NoSpecial: r.NoSpecialTokens, Tokens: r.question.tokens, Top: r.question.top}
	if r.has(fieldContext) {
		if q.Context, err = pieceOf(r.valueOf(fieldContext)); err != nil {
			return q, err
		}
	}
	var continuations []jsontext.Value
	if err = json.Unmarshal(r.valueOf(fieldContinuations), &continuations); err != nil {
		return q, err
	}
	q.Continuations = make([]loglikelihood.Piece, len(continuations))
	for i, value := range continuations {
		if q.Continuations[i], err = pieceOf(value); err != nil {
			return q, err
		}
	}
	return q, nil
}

func pieceOf(value jsontext.Value) (p loglikelihood.Piece, err error) {
	if value[0] == '[' {
		err = json.Unmarshal(value, &p.IDs)
	} else {
		err = json.Unmarshal(value, &p.Text)
	}
	return p, err
}

// Completion returns the completion that serves a request of Pairs: with these members of its body, each after a comma, and those
// that both have. subject is the field whose length decides whether it fits the model.
func (r *Request) Completion(members []byte, subject string, memory Memory) (*Request, error) {
	body := append(append(make([]byte, 0, len(members)+1<<10), `{"model":`...), r.valueOf(fieldModel)...)
	body = append(body, members...)
	for _, id := range []fieldID{fieldUser, fieldCacheSalt, fieldPromptCacheKey} {
		if value := r.valueOf(id); value != nil {
			body = append(append(append(append(body, `,"`...), fields[id].name...), `":`...), value...)
		}
	}
	unlimited := Model{MaxLogprobs: math.MaxInt}
	completion, err := parse(serving, append(body, '}'), Limits{Memory: memory, Model: func(string) Model { return unlimited }})
	if err == nil {
		completion.question.subject = subject
	}
	return completion, err
}

// Subject returns the field whose length decides whether the request fits its model.
func (r *Request) Subject() string {
	switch {
	case r.question.subject != "":
		return r.question.subject
	case r.Kind == Messages:
		return "messages"
	default:
		return "prompt"
	}
}
