package mockvllm

import (
	"crypto/rand"
	"encoding/hex"
	"net/http"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"
)

// noLogprobs means that no log-probabilities are requested; 0 requests the token's own.
const noLogprobs = -1

// A job is a validated request for the engine: prompts as tokens, limits resolved.
type job struct {
	request           *completionRequest
	id                string
	created           int64
	model             string
	tokens            [][]int
	texts             []string // the prompts as echo prepends them
	outputsPerPrompt  int
	maxTokens         int
	maxLen            int  // in tokens, prompt and output together
	topLogprobs       int  // number of most likely tokens listed per output token, or noLogprobs
	topPromptLogprobs int  // the same per prompt token
	duplicate         bool // another running request has the same id
}

// prepare turns a request into a job, or returns the error that vLLM sends before it begins a response.
func (s *Server) prepare(header http.Header, r *completionRequest) (*job, *failure) {
	if !s.serves(r.model) {
		return nil, s.unknownModel(r.model)
	}
	if s.engine.dead() {
		return nil, s.spec.deadEngineFailure()
	}
	if r.hasSuffix {
		return nil, badRequest("suffix", "suffix is not currently supported")
	}
	j := &job{
		request: r, id: requestID(header, r), created: time.Now().Unix(), model: s.models[0],
		outputsPerPrompt: r.n, maxTokens: r.maxTokens, maxLen: s.maxModelLen, topLogprobs: noLogprobs, topPromptLogprobs: noLogprobs,
	}
	if r.maxTokensNull && s.spec.nullMaxTokens == nullIsDefault {
		r.maxTokensNull = false
	}
	for _, p := range r.prompts {
		if failure := s.addPrompt(j, p); failure != nil {
			return nil, failure
		}
	}
	if failure := s.spec.checkSampling(r); failure != nil {
		return nil, failure
	}
	s.resolve(j)
	return j, nil
}

func requestID(header http.Header, r *completionRequest) string {
	if id := header.Get("X-Request-Id"); id != "" {
		return "cmpl-" + id
	}
	if r.requestID != "" {
		return "cmpl-" + r.requestID
	}
	return "cmpl-" + randomID()
}

func randomID() string {
	var id [16]byte
	rand.Read(id[:])
	return hex.EncodeToString(id[:])
}

func (*Server) unknownModel(model string) *failure {
	return &failure{
		status: http.StatusNotFound, errorType: notFoundError, message: "The model `" + model + "` does not exist.", param: "model",
	}
}

// serves reports whether the server serves the model. An empty name is the default model, unless the version requires
// one.
func (s *Server) serves(model string) bool {
	return model == "" && !s.spec.modelRequired || slices.Contains(s.models, model)
}

// addPrompt tokenises a prompt and checks it against the context length.
func (s *Server) addPrompt(j *job, p prompt) *failure {
	r := j.request
	tokens, text := p.tokens, ""
	if p.isText {
		if failure := checkText(p.text); failure != nil {
			return failure
		}
		if failure := s.checkCharacters(r, p.text); failure != nil {
			return failure
		}
		tokens, text = s.model.encode(p.text, r.addSpecial), p.text
	}
	if r.truncate != nil {
		keep := *r.truncate
		if keep < 0 {
			keep = s.maxModelLen - r.maxTokens
		}
		tokens = tokens[max(0, len(tokens)-max(keep, 0)):]
	}
	if failure := s.checkContext(r, len(tokens), p.isText); failure != nil {
		return failure
	}
	if !p.isText && s.firstUnknownToken(tokens) < 0 {
		text = s.model.decode(tokens)
	}
	j.tokens = append(j.tokens, tokens)
	j.texts = append(j.texts, text)
	return nil
}

// firstUnknownToken returns the index of the first token outside the vocabulary, or -1.
func (s *Server) firstUnknownToken(tokens []int) int {
	return slices.IndexFunc(tokens, func(id int) bool { return id < 0 || id >= s.model.size() })
}

// checkCharacters is vLLM's check before tokenisation: it rejects a text that no tokenisation could fit into the
// context.
func (s *Server) checkCharacters(r *completionRequest, text string) *failure {
	if s.spec.context != contextOutputTokens || r.truncate != nil || r.maxTokensNull {
		return nil
	}
	room := s.maxModelLen - r.maxTokens
	m := contextCounts{
		limit: s.maxModelLen, completion: r.maxTokens, characters: utf8.RuneCountInString(text),
		maxCharacters: room * s.longestPiece, maxPrompt: room,
	}
	if room <= 0 || m.characters <= m.maxCharacters {
		return nil
	}
	return badRequest("input_text", "%s", contextMessage(wordingCharacters, m)).withValue(m.characters)
}

// checkContext rejects a prompt that leaves no room for the requested output, in the version's words.
func (s *Server) checkContext(r *completionRequest, count int, isText bool) *failure {
	m := contextCounts{limit: s.maxModelLen, prompt: count, completion: r.maxTokens}
	over := count+r.maxTokens > s.maxModelLen
	if r.maxTokensNull {
		over = count >= s.maxModelLen
		m.completion = 1
	}
	switch {
	case s.spec.context == contextTooLarge && count >= s.maxModelLen:
		return badRequest("input_tokens", "%s", contextMessage(wordingInput, m)).withValue(count)
	case !over:
		return nil
	case s.spec.context == contextRequested && r.maxTokensNull:
		return badRequest("", "%s", contextMessage(wordingMessages, m))
	case s.spec.context == contextRequested:
		return badRequest("", "%s", contextMessage(wordingRequested, m))
	case s.spec.context == contextTooLarge:
		return badRequest("max_tokens", "%s", contextMessage(wordingTooLarge, m)).withValue(r.maxTokens)
	case r.maxTokens > s.maxModelLen:
		return badRequest("max_tokens", "%s", contextMessage(wordingMaxTokens, m)).withValue(r.maxTokens)
	case isText:
		// vLLM stops tokenising at one token over the limit, so the prompt's true length is unknown.
		m.prompt = s.maxModelLen - m.completion + 1
		return badRequest("input_tokens", "%s", contextMessage(wordingAtLeast, m)).withValue(m.prompt)
	default:
		return badRequest("input_tokens", "%s", contextMessage(wordingOutput, m)).withValue(count)
	}
}

// resolve computes the job's fields that depend on several request fields.
func (s *Server) resolve(j *job) {
	r := j.request
	if r.maxTokensNull {
		j.maxTokens = s.maxModelLen
	}
	j.maxTokens = max(1, j.maxTokens) // for echo with max_tokens 0 the engine still generates one token
	if s.spec.bestOf == bestOfHonoured && r.bestOf > r.n {
		j.outputsPerPrompt = r.bestOf
	}
	all := func(number int) int {
		if number == -1 {
			return s.model.size()
		}
		return number
	}
	if r.promptLogprobs != nil {
		j.topPromptLogprobs = all(*r.promptLogprobs)
	}
	if r.logprobs == nil {
		return
	}
	j.topLogprobs = all(*r.logprobs)
	if r.echo && r.promptLogprobs == nil {
		j.topPromptLogprobs = j.topLogprobs
	}
}

// checkInEngine makes the checks that vLLM makes only inside the engine. In a stream they follow the 200.
func (s *Server) checkInEngine(j *job) *failure {
	r := j.request
	if j.duplicate {
		return badRequest("", "Request id %s already running.", j.id).fromEngine()
	}
	if failure := s.checkLogprobLimits(j); failure != nil {
		return failure.fromEngine()
	}
	if failure := s.parseLogitBias(r); failure != nil {
		return failure.fromEngine()
	}
	if at := s.firstUnknownToken(r.sampling.allowed); at >= 0 {
		return badRequest("allowed_token_ids", "allowed_token_ids contains out-of-vocab token id!").fromEngine()
	}
	for _, tokens := range j.tokens {
		m := contextCounts{limit: s.maxModelLen, prompt: len(tokens)}
		at := s.firstUnknownToken(tokens)
		switch {
		case len(tokens) == 0:
			return badRequest("prompt", "The decoder prompt cannot be empty").fromEngine()
		case at >= 0:
			return badRequest("prompt", "Token id %d is out of vocabulary", tokens[at]).fromEngine()
		case len(tokens) > s.maxModelLen:
			return badRequest("prompt", "%s", contextMessage(wordingDecoder, m)).fromEngine()
		case len(tokens) == s.maxModelLen:
			return badRequest("prompt", "%s", contextMessage(wordingDecoderFull, m)).fromEngine()
		}
	}
	return nil
}

func (s *Server) checkLogprobLimits(j *job) *failure {
	if s.maxLogprobs == -1 {
		return nil
	}
	for _, requested := range []struct {
		name, what string
		top        int
	}{{"logprobs", "sample", j.topLogprobs}, {"prompt_logprobs", "prompt", j.topPromptLogprobs}} {
		if requested.top <= s.maxLogprobs {
			continue
		}
		if s.spec.v0 {
			return badRequest(requested.name, "Cannot request more than %d logprobs.", s.maxLogprobs)
		}
		return badRequest(requested.name, "Requested %s logprobs of %d, which is greater than max allowed: %d",
			requested.what, requested.top, s.maxLogprobs).withValue(requested.top)
	}
	return nil
}

// parseLogitBias parses logit_bias, whose keys are token ids as strings.
func (s *Server) parseLogitBias(r *completionRequest) *failure {
	r.sampling.bias = make(map[int]float64, len(r.logitBias))
	for _, entry := range r.logitBias {
		id, err := strconv.Atoi(entry.key)
		if err != nil {
			return badRequest("logit_bias", "invalid literal for int() with base 10: %s", reprString(entry.key))
		}
		if id < 0 || id >= s.model.size() {
			return badRequest("logit_bias",
				"token_id(s) [%d] in logit_bias contain out-of-vocab token ids. Vocabulary size: %d", id, s.model.size())
		}
		r.sampling.bias[id] = entry.amount
	}
	return nil
}
