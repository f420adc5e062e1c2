package mockvllm

import (
	"slices"
	"unicode/utf8"
)

// addPrompt tokenises a prompt, truncates it if the request says so, and checks it against the context length.
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
	tokens, failure := s.truncate(r, tokens)
	if failure != nil {
		return failure
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

// truncate keeps the last tokens of a prompt, as truncate_prompt_tokens says: -1 keeps as many as leave room for
// max_tokens.
func (s *Server) truncate(r *completionRequest, tokens []int) ([]int, *failure) {
	if r.truncate == nil {
		return tokens, nil
	}
	keep, room := *r.truncate, s.maxModelLen-r.maxTokens
	if r.maxTokensNull {
		room = s.maxModelLen
	}
	switch {
	case keep < 0:
		keep = room
	case s.spec.limitsTruncationToRoom() && keep > room:
		return nil, invalidParam("truncate_prompt_tokens", "truncate_prompt_tokens=%d cannot be greater than "+
			"max_model_len - max_tokens = %d. Please request a smaller truncation size.", keep, room).withValue(keep)
	case keep > s.maxModelLen:
		return nil, badRequest("truncate_prompt_tokens value (%d) is greater than max_model_len (%d). "+
			"Please, select a smaller truncation size.", keep, s.maxModelLen)
	}
	keep = min(len(tokens), max(keep, 0))
	if r.truncateRight {
		return tokens[:keep], nil
	}
	return tokens[len(tokens)-keep:], nil
}

// limitsTruncationToRoom reports whether truncate_prompt_tokens must leave room for max_tokens.
func (s *versionSpec) limitsTruncationToRoom() bool {
	return s.context == contextOutputTokens || s.context == contextClamped
}

// firstUnknownToken returns the index of the first token outside the vocabulary, or -1.
func (s *Server) firstUnknownToken(tokens []int) int {
	return slices.IndexFunc(tokens, func(id int) bool { return id < 0 || id >= s.model.size() })
}

// unknownTokens returns the tokens outside the vocabulary.
func (s *Server) unknownTokens(tokens []int) []int {
	return slices.DeleteFunc(slices.Clone(tokens), func(id int) bool { return id >= 0 && id < s.model.size() })
}

// checkCharacters is vLLM's check before tokenisation: it rejects a text that no tokenisation could fit into the
// context.
func (s *Server) checkCharacters(r *completionRequest, text string) *failure {
	room, wording := s.maxModelLen-r.maxTokens, wordingCharacters
	if s.spec.context == contextClamped {
		room, wording = s.maxModelLen, wordingPromptCharacters
	}
	m := contextCounts{
		limit: s.maxModelLen, completion: r.maxTokens, characters: utf8.RuneCountInString(text),
		maxCharacters: room * s.longestPiece, maxPrompt: room,
	}
	if !s.spec.limitsTruncationToRoom() || s.spec.rust || r.truncate != nil || r.maxTokensNull || room <= 0 || m.characters <= m.maxCharacters {
		return nil
	}
	return invalidParam("input_text", "%s", contextMessage(wording, m)).withValue(m.characters)
}

// checkContext rejects a prompt that leaves no room for the requested output, in the version's words.
func (s *Server) checkContext(r *completionRequest, count int, isText bool) *failure {
	if s.spec.context == contextClamped {
		return s.checkContextClamped(r, count, isText)
	}
	m := contextCounts{limit: s.maxModelLen, prompt: count, completion: r.maxTokens}
	over := count+r.maxTokens > s.maxModelLen
	if r.maxTokensNull {
		over = count >= s.maxModelLen
		m.completion = 1
	}
	switch {
	case s.spec.context == contextTooLarge && count >= s.maxModelLen:
		return invalidParam("input_tokens", "%s", contextMessage(wordingInput, m)).withValue(count)
	case !over:
		return nil
	case s.spec.context == contextRequested && r.maxTokensNull:
		return badRequest("%s", contextMessage(wordingMessages, m))
	case s.spec.context == contextRequested:
		return badRequest("%s", contextMessage(wordingRequested, m))
	case s.spec.context == contextTooLarge:
		return invalidParam("max_tokens", "%s", contextMessage(wordingTooLarge, m)).withValue(r.maxTokens)
	case r.maxTokens > s.maxModelLen:
		return invalidParam("max_tokens", "%s", contextMessage(wordingMaxTokens, m)).withValue(r.maxTokens)
	case isText:
		// vLLM stops tokenising at one token over the limit, so the prompt's true length is unknown.
		m.prompt = s.maxModelLen - m.completion + 1
		return invalidParam("input_tokens", "%s", contextMessage(wordingAtLeast, m)).withValue(m.prompt)
	default:
		return invalidParam("input_tokens", "%s", contextMessage(wordingOutput, m)).withValue(count)
	}
}

// checkContextClamped is checkContext for versions that lower max_tokens to the room that the prompt leaves. The
// sequence ends at the context length, so nothing else needs to know.
func (s *Server) checkContextClamped(r *completionRequest, count int, isText bool) *failure {
	m := contextCounts{limit: s.maxModelLen, prompt: count}
	room := s.maxModelLen - count
	switch {
	case room < 0 && isText && !s.spec.rust:
		m.prompt = s.maxModelLen + 1
		return invalidParam("input_tokens", "%s", contextMessage(wordingPromptOverAtLeast, m)).withValue(m.prompt)
	case room < 0:
		return invalidParam("input_tokens", "%s", contextMessage(wordingPromptOver, m)).withValue(count)
	case room == 0 && s.spec.rust:
		return invalidParam("input_tokens", "%s", contextMessage(wordingPromptFills, m))
	case room == 0 && !r.scoresOnly():
		return invalidParam("max_tokens", "max_tokens must be at least 1, got 0.").withValue(0)
	case r.minTokens > room:
		return badRequest("min_tokens must be less than or equal to max_tokens=%d, got %d.", room, r.minTokens)
	}
	return nil
}

// checkMaxTokens rejects a max_tokens that no prompt could leave room for, before anything is tokenised.
func (s *Server) checkMaxTokens(r *completionRequest) *failure {
	if s.spec.context != contextClamped || s.spec.rust || r.maxTokens <= s.maxModelLen {
		return nil
	}
	m := contextCounts{limit: s.maxModelLen, completion: r.maxTokens}
	return invalidParam("max_tokens", "%s", contextMessage(wordingMaxTokensClamped, m)).withValue(r.maxTokens)
}
