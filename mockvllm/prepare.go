package mockvllm

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"net/http"
	"slices"
	"strings"
	"time"
)

// prepare turns a request into a generation without outputs, or returns the error that vLLM sends before it begins a
// response.
func (s *Server) prepare(header http.Header, r *completionRequest) (*generation, *failure) {
	adapter := s.adapters.find(r.Model) // once: it may be unloaded at any time
	switch {
	case adapter == nil && !s.servesBase(r.Model):
		return nil, s.unknownModel(r.Model)
	case s.engine.dead.Load():
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
	case s.spec.Clamps && !s.spec.Rust && r.MaxTokens > s.options.MaxModelLen: // no prompt could leave room for it
		m := contextCounts{limit: s.options.MaxModelLen, completion: r.MaxTokens}
		return nil, invalidParam("max_tokens", "%s", contextMessage(wordingMaxTokensClamped, m)).withValue(r.MaxTokens)
	}
	g := &generation{
		spec: s.spec, model: s.model, request: r, id: s.spec.requestID(header, r), created: time.Now().Unix(), served: s.options.Models[0],
		maxTokens: max(1, r.MaxTokens), maxLen: s.options.MaxModelLen,
		spoiled:     func() bool { return s.naming.Load() > 0 && !s.options.SoundLogprobIDs },
		report:      engineReport{tokens: s.options.PromptTokensDetails, times: s.options.PerRequestMetrics},
		topLogprobs: s.logprobCount(r.Logprobs), topPromptLogprobs: s.logprobCount(r.PromptLogprobs),
	}
	if adapter != nil {
		g.adapter, g.served = adapter, adapter.name
	}
	if s.spec.Fingerprint { // as vLLM's, with its version
		g.fingerprint = fmt.Sprintf("vllm-%s-%08x", s.options.Version, crc32.ChecksumIEEE([]byte(g.served)))
	}
	if r.Echo && r.PromptLogprobs == nil {
		g.topPromptLogprobs = g.topLogprobs
	}
	for _, p := range r.prompts {
		if failure := s.addPrompt(g, p); failure != nil {
			return nil, failure
		}
	}
	if failure := s.spec.checkRanges(r); failure != nil {
		return nil, failure
	}
	return g, nil
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
	return prefix + cmp.Or(header.Get("X-Request-Id"), r.RequestID, s.randomID())
}

func (s *versionSpec) randomID() string {
	id := make([]byte, s.RandomBytes)
	rand.Read(id)
	return hex.EncodeToString(id)
}

func (s *Server) unknownModel(model string) *failure {
	message := "The model `" + model + "` does not exist."
	if s.spec.Aliases != "" {
		message += s.spec.Aliases + strings.Join(s.options.Models, ", ") + "."
	}
	return &failure{status: http.StatusNotFound, errorType: notFoundError, message: message, param: "model"}
}

// servesBase reports whether a name is one of the base model, as the empty one is.
func (s *Server) servesBase(model string) bool {
	return model == "" || slices.Contains(s.options.Models, model)
}
