package mockvllm

import (
	"crypto/rand"
	"encoding/hex"
	"net/http"
	"slices"
	"strings"
	"time"
)

// noLogprobs means that no log-probabilities are requested; 0 requests the token's own.
const noLogprobs = -1

// job is a validated request for the engine: prompts as tokens, limits resolved.
type job struct {
	request           *completionRequest
	id                string
	created           int64
	model             string
	tokens            [][]int
	texts             []string // the prompts as echo prepends them
	maxTokens         int
	maxLen            int     // in tokens, prompt and output together
	topLogprobs       int     // number of most likely tokens listed per output token, or noLogprobs
	topPromptLogprobs int     // the same per prompt token
	banned            [][]int // sequences that may not occur in the output
}

// promptTokens counts each prompt once, however many outputs it has.
func (j *job) promptTokens() int { return len(slices.Concat(j.tokens...)) }

// prepare turns a request into a job, or returns the error that vLLM sends before it begins a response.
func (s *Server) prepare(header http.Header, r *completionRequest) (*job, *failure) {
	switch {
	case !s.serves(r.Model):
		return nil, s.unknownModel(r.Model)
	case s.engine.dead():
		return nil, s.spec.deadEngine()
	case s.spec.Rust && r.N > 1:
		return nil, invalidParam("n", "Only n=1 is supported.")
	case s.spec.Rust && r.ReturnWeightVersions:
		return nil, invalidParam("return_weight_versions", "return_weight_versions is not supported.")
	case s.spec.Rust && r.Echo && r.Truncate != nil:
		return nil, invalidParam("truncate_prompt_tokens", "truncate_prompt_tokens is not supported with echo.")
	case r.Suffix != nil:
		f := badRequest("%s", s.spec.Suffix)
		f.param = "suffix"
		return nil, f
	}
	j := &job{
		request: r, id: s.spec.requestID(header, r), created: time.Now().Unix(), model: s.models[0], maxTokens: max(1, r.MaxTokens),
		maxLen: s.maxModelLen, topLogprobs: s.logprobCount(r.Logprobs), topPromptLogprobs: s.logprobCount(r.PromptLogprobs),
	}
	if r.Echo && r.PromptLogprobs == nil {
		j.topPromptLogprobs = j.topLogprobs
	}
	if failure := s.checkMaxTokens(r); failure != nil {
		return nil, failure
	}
	for _, p := range r.prompts {
		if failure := s.addPrompt(j, p); failure != nil {
			return nil, failure
		}
	}
	if failure := s.spec.checkRanges(r); failure != nil {
		return nil, failure
	}
	return j, nil
}

// logprobCount returns how many tokens a field asks for: -1 stands for the whole vocabulary.
func (s *Server) logprobCount(field *int) int {
	switch {
	case field == nil:
		return noLogprobs
	case *field < 0:
		return s.model.size()
	}
	return *field
}

func (s *versionSpec) requestID(header http.Header, r *completionRequest) string {
	prefix := "cmpl-"
	if r.chat != nil {
		prefix = "chatcmpl-"
	}
	for _, id := range []string{header.Get("X-Request-Id"), r.RequestID} {
		if id != "" {
			return prefix + id
		}
	}
	return prefix + s.randomID()
}

// randomID returns a random id of the version's length.
func (s *versionSpec) randomID() string {
	id := make([]byte, s.RandomBytes)
	rand.Read(id)
	return hex.EncodeToString(id)
}

func (s *Server) unknownModel(model string) *failure {
	message := "The model `" + model + "` does not exist."
	if s.spec.Aliases != "" {
		message += s.spec.Aliases + strings.Join(s.models, ", ") + "."
	}
	return &failure{status: http.StatusNotFound, errorType: notFoundError, message: message, param: "model"}
}

// serves reports whether the server serves the model. An empty name is the default model.
func (s *Server) serves(model string) bool { return model == "" || slices.Contains(s.models, model) }
