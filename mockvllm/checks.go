package mockvllm

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// checkInEngine makes the checks that vLLM makes only inside the engine. In a stream they follow the 200.
func (s *Server) checkInEngine(j *job) *failure {
	r := j.request
	if j.duplicate {
		return badRequest("Request id %s already running.", j.id).fromEngine()
	}
	if r.priority != 0 && s.spec.v0 && !s.queue.byPriority {
		return badRequest("Got priority %d but Priority scheduling is not enabled.", r.priority).fromEngine()
	}
	if failure := s.checkLogprobLimits(j); failure != nil {
		return failure.fromEngine()
	}
	if failure := s.checkTokenFields(r); failure != nil {
		return failure.fromEngine()
	}
	if c := r.constraint(); c != nil {
		if failure := c.check(); failure != nil {
			return failure.fromEngine()
		}
	}
	if failure := s.echoFailure(r); failure != nil {
		return failure.fromEngine()
	}
	for _, tokens := range j.tokens {
		m := contextCounts{limit: s.maxModelLen, prompt: len(tokens)}
		at := s.firstUnknownToken(tokens)
		switch {
		case len(tokens) == 0:
			return badRequest("The decoder prompt cannot be empty").fromEngine()
		case at >= 0:
			return badRequest("Token id %d is out of vocabulary", tokens[at]).fromEngine()
		case len(tokens) > s.maxModelLen:
			return badRequest("%s", contextMessage(wordingDecoder, m)).fromEngine()
		case len(tokens) == s.maxModelLen:
			return badRequest("%s", contextMessage(wordingDecoderFull, m)).fromEngine()
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
			return badRequest("Cannot request more than %d logprobs.", s.maxLogprobs)
		}
		return invalidParam(requested.name, "Requested %s logprobs of %d, which is greater than max allowed: %d",
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
			return badRequest("invalid literal for int() with base 10: %s", reprString(entry.key))
		}
		r.sampling.bias[id] = entry.amount
	}
	unknown := s.unknownTokens(slices.Sorted(maps.Keys(r.sampling.bias)))
	if len(unknown) > 0 && s.spec.v0 {
		return badRequest("token_id %d in logit_bias contains out-of-vocab token id", unknown[0])
	}
	return s.outOfVocabulary("logit_bias", unknown)
}

// checkTokenFields checks the fields that hold token ids, and tokenises bad_words.
func (s *Server) checkTokenFields(r *completionRequest) *failure {
	if failure := s.parseLogitBias(r); failure != nil {
		return failure
	}
	if s.spec.checksStopIDs {
		if failure := s.outOfVocabulary("stop_token_ids", s.unknownTokens(r.stopTokens)); failure != nil {
			return failure
		}
	}
	if r.allowedGiven && len(r.sampling.allowed) == 0 {
		return invalidParam("allowed_token_ids", "allowed_token_ids is not None and empty!").withValue("[]")
	}
	if unknown := s.unknownTokens(r.sampling.allowed); len(unknown) > 0 {
		return invalidParam("allowed_token_ids", "allowed_token_ids contains out-of-vocab token id!").withValue(pythonInts(unknown))
	}
	for _, word := range r.badWords {
		r.sampling.banned = append(r.sampling.banned, s.bannedSequences(word)...)
	}
	return nil
}

// outOfVocabulary is the error about unknown token ids in a field, or nil if there are none.
func (s *Server) outOfVocabulary(field string, unknown []int) *failure {
	if len(unknown) == 0 {
		return nil
	}
	list := pythonInts(unknown)
	return invalidParam(field, "token_id(s) %s in %s contain out-of-vocab token ids. Vocabulary size: %d",
		list, field, s.model.size()).withValue(list)
}

// pythonInts formats integers as Python prints a list.
func pythonInts(values []int) string {
	return strings.ReplaceAll(string(appendInts(nil, values)), ",", ", ")
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

// echoFailure is the error of V0 for echo in a stream, and for echo with logprobs and several outputs.
func (s *Server) echoFailure(r *completionRequest) *failure {
	switch {
	case !s.spec.echoFails || !r.echo:
		return nil
	case r.stream:
		return badRequest("")
	case r.logprobs != nil && r.n > 1:
		return textFailure(http.StatusInternalServerError, internalSpaced)
	}
	return nil
}
