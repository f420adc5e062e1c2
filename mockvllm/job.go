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
	outputsPerPrompt  int
	maxTokens         int
	maxLen            int  // in tokens, prompt and output together
	topLogprobs       int  // number of most likely tokens listed per output token, or noLogprobs
	topPromptLogprobs int  // the same per prompt token
	hasID             bool // holds the claim on its id, in versions that reject duplicates
	duplicate         bool // another running request has the same id
}

// prepare turns a request into a job, or returns the error that vLLM sends before it begins a response.
func (s *Server) prepare(header http.Header, r *completionRequest) (*job, *failure) {
	if !s.serves(r.model) {
		return nil, s.unknownModel(r.model)
	}
	if s.engine.dead() {
		failure := s.spec.deadEngineFailure()
		if s.engine.hanging() {
			failure.message = "cannot schedule new futures after shutdown"
		}
		return nil, failure
	}
	if failure := s.spec.rustLimit(r); failure != nil {
		return nil, failure
	}
	if r.hasSuffix {
		return nil, s.spec.suffixFailure()
	}
	j := &job{
		request: r, id: s.spec.requestID(header, r), created: time.Now().Unix(), model: s.models[0],
		outputsPerPrompt: r.n, maxTokens: r.maxTokens, maxLen: s.maxModelLen, topLogprobs: noLogprobs, topPromptLogprobs: noLogprobs,
	}
	if slices.Contains(s.options.Adapters, r.model) {
		j.model = r.model
	}
	if r.maxTokensNull && s.spec.nullMaxTokens == nullIsDefault {
		r.maxTokensNull = false
	}
	if failure := s.checkMaxTokens(r); failure != nil {
		return nil, failure
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

func (s *versionSpec) requestID(header http.Header, r *completionRequest) string {
	prefix := "cmpl-"
	if r.chat != nil {
		prefix = "chatcmpl-"
	}
	if id := header.Get("X-Request-Id"); id != "" {
		return prefix + id
	}
	if r.requestID != "" {
		return prefix + r.requestID
	}
	return prefix + s.randomID()
}

// randomID returns a random id of the version's length.
func (s *versionSpec) randomID() string {
	id := make([]byte, s.randomBytes)
	rand.Read(id)
	return hex.EncodeToString(id)
}

func (s *Server) unknownModel(model string) *failure {
	message := "The model `" + model + "` does not exist."
	if s.spec.listsAliases {
		message += " Valid aliases: " + strings.Join(s.models, ", ") + "."
	}
	return &failure{status: http.StatusNotFound, errorType: notFoundError, message: message, param: "model"}
}

func (s *versionSpec) suffixFailure() *failure {
	f := badRequest("suffix is not currently supported")
	if s.suffixWithFIM {
		f.message = "suffix is only supported for models with FIM completion rendering"
	}
	f.param = "suffix"
	return f
}

// serves reports whether the server serves the model. An empty name is the default model, unless the version requires
// one.
func (s *Server) serves(model string) bool {
	return model == "" && !s.spec.modelRequired || slices.Contains(s.models, model) || slices.Contains(s.options.Adapters, model)
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
