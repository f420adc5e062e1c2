package mockvllm

import (
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"
)

// addPrompt tokenises a prompt, truncates it if the request says so, and checks it against the context length.
func (s *Server) addPrompt(g *generation, p prompt) *failure {
	r, tokens, text := g.request, p.tokens, ""
	if p.isText {
		if failure := s.checkCharacters(r, p.text); failure != nil {
			return failure
		}
		tokens, text = s.model.encode(p.text, r.AddSpecial), p.text
	}
	tokens, failure := s.truncate(r, tokens)
	if failure == nil {
		failure = s.checkContext(r, len(tokens), p.isText)
	}
	if failure != nil {
		return failure
	}
	if !p.isText && len(s.unknownTokens(tokens)) == 0 {
		text = s.model.decode(tokens)
	}
	g.tokens, g.texts = append(g.tokens, tokens), append(g.texts, text)
	return nil
}

// truncate keeps the last tokens of a prompt, as truncate_prompt_tokens says.
func (s *Server) truncate(r *completionRequest, tokens []int) ([]int, *failure) {
	if r.Truncate == nil {
		return tokens, nil
	}
	keep, room := *r.Truncate, s.options.MaxModelLen-r.MaxTokens
	if keep < 0 {
		keep = room
	}
	if s.spec.Clamps && keep > room {
		return nil, invalidParam("truncate_prompt_tokens", "truncate_prompt_tokens=%d cannot be greater than "+
			"max_model_len - max_tokens = %d. Please request a smaller truncation size.", keep, room).withValue(keep)
	}
	keep = min(len(tokens), max(keep, 0))
	if r.TruncationSide == "right" {
		return tokens[:keep], nil
	}
	return tokens[len(tokens)-keep:], nil
}

func (s *Server) unknownTokens(tokens []int) []int {
	return slices.DeleteFunc(slices.Clone(tokens), func(id int) bool { return id >= 0 && id < s.model.size() })
}

// checkCharacters is vLLM's check before tokenisation: it rejects a text that no tokenisation could fit into the
// context.
func (s *Server) checkCharacters(r *completionRequest, text string) *failure {
	m := contextCounts{
		limit: s.options.MaxModelLen, characters: utf8.RuneCountInString(text), maxCharacters: s.options.MaxModelLen * s.longestPiece, maxPrompt: s.options.MaxModelLen,
	}
	if !s.spec.Clamps || s.spec.Rust || r.Truncate != nil || m.characters <= m.maxCharacters {
		return nil
	}
	return invalidParam("input_text", "%s", contextMessage(wordingPromptCharacters, m)).withValue(m.characters)
}

// checkContext rejects a prompt that leaves no room for the requested output. Newer versions lower max_tokens to the room,
// and the sequence ends at the context length, so nothing else needs to know.
func (s *Server) checkContext(r *completionRequest, count int, isText bool) *failure {
	m := contextCounts{limit: s.options.MaxModelLen, prompt: count, completion: r.MaxTokens}
	switch room := s.options.MaxModelLen - count; {
	case !s.spec.Clamps && r.MaxTokens <= room:
		return nil
	case s.spec.V0:
		return badRequest("%s", contextMessage(wordingRequested, m))
	case !s.spec.Clamps && room <= 0:
		return invalidParam("input_tokens", "%s", contextMessage(wordingInput, m)).withValue(count)
	case !s.spec.Clamps:
		return invalidParam("max_tokens", "%s", contextMessage(wordingTooLarge, m)).withValue(r.MaxTokens)
	case room < 0 && isText && !s.spec.Rust: // vLLM stops tokenising at one token over the limit
		m.prompt = s.options.MaxModelLen + 1
		return invalidParam("input_tokens", "%s", contextMessage(wordingPromptOverAtLeast, m)).withValue(m.prompt)
	case room < 0:
		return invalidParam("input_tokens", "%s", contextMessage(wordingPromptOver, m)).withValue(count)
	case room == 0 && s.spec.Rust:
		return invalidParam("input_tokens", "%s", contextMessage(wordingPromptFills, m))
	case room == 0 && !r.scoresOnly():
		return invalidParam("max_tokens", "max_tokens must be at least 1, got 0.").withValue(0)
	}
	return nil
}

// checkRanges makes the range checks of vLLM's SamplingParams.
func (s *versionSpec) checkRanges(r *completionRequest) *failure {
	switch {
	case r.N < 1:
		return badRequest("n must be at least 1, got %d.", r.N)
	case r.MaxTokens < 1 && !r.scoresOnly():
		return invalidParam("max_tokens", "max_tokens must be at least 1, got %d.", r.MaxTokens).withValue(r.MaxTokens)
	case !s.V0 && r.BestOf > 1:
		return badRequest("vLLM V1 does not yet support best_of.")
	case slices.Contains(r.Stop, ""):
		return badRequest("stop cannot contain an empty string.")
	case r.N > 1 && r.greedy():
		return badRequest("n must be 1 when using greedy sampling, got %d.", r.N)
	}
	for _, p := range []struct {
		name               string
		value, least, most float64
		rule               string
	}{
		{"presence_penalty", r.Presence, -2, 2, "in [-2, 2]"},
		{"frequency_penalty", r.Frequency, -2, 2, "in [-2, 2]"},
		{"repetition_penalty", r.Repetition, math.SmallestNonzeroFloat64, math.MaxFloat64, "greater than zero"},
		{"temperature", r.Temperature, 0, math.MaxFloat64, "non-negative"},
		{"top_p", r.TopP, math.SmallestNonzeroFloat64, 1, "in (0, 1]"},
		{"min_p", r.MinP, 0, 1, "in [0, 1]"},
	} {
		number := string(appendFloat(nil, p.value))
		switch inside := p.value >= p.least && p.value <= p.most; {
		case !inside && (p.name == "temperature" || p.name == "top_p"): // vLLM names only these two as the parameter
			return invalidParam(p.name, "%s must be %s, got %s.", p.name, p.rule, number).withValue(number)
		case !inside:
			return badRequest("%s must be %s, got %s.", p.name, p.rule, number)
		}
	}
	return nil
}

// checkInEngine makes the checks that vLLM makes only inside the engine. In a stream they follow the 200.
func (s *Server) checkInEngine(g *generation) *failure {
	r := g.request
	failure := s.checkLogprobLimits(g)
	if failure == nil {
		failure = s.checkTokenFields(g)
	}
	switch {
	case failure != nil:
		return failure
	case s.spec.V0 && r.Echo && r.Stream:
		return badRequest("")
	case s.spec.V0 && r.Echo && r.Logprobs != nil && r.N > 1:
		return textFailure(http.StatusInternalServerError, internalSpaced)
	}
	if r.constraint != nil {
		if _, failure := r.constraint.generate(); failure != nil {
			return failure
		}
	}
	for _, tokens := range g.tokens {
		if len(tokens) == 0 {
			return badRequest("The decoder prompt cannot be empty")
		}
		if unknown := s.unknownTokens(tokens); len(unknown) > 0 {
			return badRequest("Token id %d is out of vocabulary", unknown[0])
		}
	}
	return nil
}

func (s *Server) checkLogprobLimits(g *generation) *failure {
	if s.options.MaxLogprobs == -1 {
		return nil
	}
	name, what, top := "logprobs", "sample", g.topLogprobs
	if top <= s.options.MaxLogprobs {
		name, what, top = "prompt_logprobs", "prompt", g.topPromptLogprobs
	}
	switch {
	case top <= s.options.MaxLogprobs:
		return nil
	case s.spec.V0:
		return badRequest("Cannot request more than %d logprobs.", s.options.MaxLogprobs)
	}
	return invalidParam(name, "Requested %s logprobs of %d, which is greater than max allowed: %d", what, top, s.options.MaxLogprobs).withValue(top)
}

// checkTokenFields checks the fields that hold token ids, and tokenises bad_words.
func (s *Server) checkTokenFields(g *generation) *failure {
	r := g.request
	for _, field := range []struct {
		name   string
		tokens []int
	}{{"logit_bias", slices.Sorted(maps.Keys(r.Bias))}, {"allowed_token_ids", r.Allowed}, {"logprob_token_ids", r.LogprobIDs}} {
		unknown := s.unknownTokens(field.tokens)
		list := strings.ReplaceAll(string(appendInts(nil, unknown)), ",", ", ")
		switch {
		case len(unknown) == 0:
		case s.spec.V0:
			return badRequest("token_id %d in %s contains out-of-vocab token id", unknown[0], field.name)
		default:
			return invalidParam(field.name, "token_id(s) %s in %s contain out-of-vocab token ids. Vocabulary size: %d",
				list, field.name, s.model.size()).withValue(list)
		}
	}
	for _, word := range r.BadWords {
		g.banned = append(g.banned, s.bannedSequences(word)...)
	}
	return nil
}

// bannedSequences tokenises a bad word as vLLM does: as it stands, and with a leading space if that is another token
// of the same count.
func (s *Server) bannedSequences(word string) [][]int {
	bare := s.model.encode(strings.TrimLeft(word, " "), false)
	spaced := s.model.encode(" "+strings.TrimLeft(word, " "), false)
	if len(bare) == 0 {
		return nil
	}
	if spaced[0] != bare[0] && len(spaced) == len(bare) {
		return [][]int{bare, spaced}
	}
	return [][]int{bare}
}
