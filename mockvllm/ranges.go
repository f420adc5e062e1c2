package mockvllm

import (
	"math"
	"slices"
	"unicode/utf8"
)

// checkSampling makes the range checks of SamplingParams, in its order and words.
func (s *versionSpec) checkSampling(r *completionRequest) *failure {
	p := &r.sampling
	for _, number := range []struct {
		name  string
		value float64
	}{{"temperature", p.temperature}, {"top_p", p.topP}, {"min_p", p.minP}, {"repetition_penalty", p.repetition}} {
		if s.finiteOnly && (math.IsNaN(number.value) || math.IsInf(number.value, 0)) {
			return rejectNumber(number.name, "a finite number", number.value)
		}
	}
	if failure := s.checkCounts(r); failure != nil {
		return failure
	}
	least, off := "-1", -1
	if s.topKZeroIsOff {
		least, off = "0", 0
	}
	reject := rejectNumber
	switch {
	case p.presence < -2 || p.presence > 2:
		return reject("presence_penalty", "in [-2, 2]", p.presence)
	case p.frequency < -2 || p.frequency > 2:
		return reject("frequency_penalty", "in [-2, 2]", p.frequency)
	case s.repetitionCap && (p.repetition <= 0 || p.repetition > 2):
		return reject("repetition_penalty", "in (0, 2]", p.repetition)
	case p.repetition <= 0:
		return reject("repetition_penalty", "greater than zero", p.repetition)
	case p.temperature < 0:
		return reject("temperature", "non-negative", p.temperature)
	case s.finiteOnly && p.temperature > 2:
		return reject("temperature", "in [0, 2]", p.temperature)
	case p.topP <= 0 || p.topP > 1:
		return reject("top_p", "in (0, 1]", p.topP)
	case p.topK < -1 || p.topK == 0 && off == -1 && r.topKGiven:
		return badRequest("top_k must be %s (disable), or at least 1, got %d.", least, p.topK)
	case p.minP < 0 || p.minP > 1:
		return reject("min_p", "in [0, 1]", p.minP)
	case r.n > 1 && p.greedy():
		return badRequest("n must be 1 when using greedy sampling, got %d.", r.n)
	}
	return nil
}

// rejectNumber is the error about a sampling parameter out of range. vLLM names only these two as the parameter.
func rejectNumber(name, rule string, got float64) *failure {
	number := pythonFloat(got)
	if name == "temperature" || name == "top_p" {
		return invalidParam(name, "%s must be %s, got %s.", name, rule, number).withValue(number)
	}
	return badRequest("%s must be %s, got %s.", name, rule, number)
}

// scoresOnly reports whether the request wants its prompt's log-probabilities and no output.
func (r *completionRequest) scoresOnly() bool { return r.echo && r.maxTokens == 0 && !r.maxTokensNull }

func (s *versionSpec) noPromptFailure() *failure {
	if s.namesNoPrompt {
		return invalidParam("prompt", "You must pass at least one prompt")
	}
	if s.renderer {
		return badRequest("You must pass at least one prompt")
	}
	return badRequest("please provide at least one prompt")
}

func (s *versionSpec) checkCounts(r *completionRequest) *failure {
	switch {
	case r.n < 1:
		return badRequest("n must be at least 1, got %d.", r.n)
	case s.boundsN && r.n > 16384:
		return badRequest("n must be at most 16384, got %d. To increase this limit, set the VLLM_MAX_N_SEQUENCES environment variable.", r.n)
	case r.maxTokens < 1 && !r.scoresOnly():
		return invalidParam("max_tokens", "max_tokens must be at least 1, got %d.", r.maxTokens).withValue(r.maxTokens)
	case r.minTokens < 0:
		return badRequest("min_tokens must be greater than or equal to 0, got %d.", r.minTokens)
	case r.minTokens > max(1, r.maxTokens):
		return badRequest("min_tokens must be less than or equal to max_tokens=%d, got %d.", max(1, r.maxTokens), r.minTokens)
	case s.bestOf == bestOfHonoured && r.bestOf != 0 && r.bestOf < r.n:
		return badRequest("best_of must be greater than or equal to n, got n=%d and best_of=%d.", r.n, r.bestOf)
	case s.bestOf == bestOfRejected && r.bestOf > 1:
		return badRequest("vLLM V1 does not yet support best_of.")
	}
	if slices.Contains(r.stop, "") {
		return badRequest("stop cannot contain an empty string.")
	}
	if slices.Contains(r.badWords, "") {
		return badRequest("bad_words cannot contain an empty string. Got bad_words=%s", pythonStrings(r.badWords))
	}
	return nil
}

// checkText rejects what the tokenizer cannot encode: a lone surrogate, which Python's JSON parser accepts.
func checkText(text string) *failure {
	if utf8.ValidString(text) {
		return nil
	}
	return badRequest("TextEncodeInput must be Union[TextInputSequence, Tuple[InputSequence, InputSequence]]")
}
