package mockvllm

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/tidwall/gjson"
)

// failing is a handler that returns the error to respond with, or nil once it has responded.
type failing func(*exchange) *failure

func (handle failing) serve(x *exchange) {
	if failure := handle(x); failure != nil {
		x.writeFailure(failure)
	}
}

// route is the method and the handler of a path.
type route struct {
	method       string
	countsAsLoad bool // in GET /load, which counts running requests
	handle       func(*exchange)
}

func (s *Server) buildRoutes() map[string]route {
	const get, post = http.MethodGet, http.MethodPost
	routes := map[string]route{
		"/v1/completions": {post, true, s.complete(s.spec.parseCompletion).serve},
		chatPath:          {post, true, s.complete(s.parseChat).serve},
		"/v1/models":      {get, false, s.listModels},
		"/health":         {get, false, s.health},
		"/version":        {get, false, s.serveVersion},
		"/load":           {get, false, func(x *exchange) { x.writeJSON(fmt.Appendf(nil, `{"server_load":%d}`, s.running.Load())) }},
		"/tokenize":       {post, true, failing(s.tokenize).serve},
		"/detokenize":     {post, true, failing(s.detokenize).serve},
		"/metrics":        {get, false, s.serveMetrics},
		"/openapi.json":   {get, false, s.serveOpenAPI},
		"/sleep":          {post, false, s.sleep},
		"/wake_up":        {post, false, s.wakeUp},
		"/is_sleeping":    {get, false, func(x *exchange) { x.writeJSON(fmt.Appendf(nil, `{"is_sleeping":%t}`, s.engine.asleep() != nil)) }},
	}
	if s.options.TokenizerInfo {
		routes["/tokenizer_info"] = route{get, false, s.serveTokenizerInfo}
	}
	if s.spec.Rust {
		delete(routes, "/openapi.json")
	}
	if s.options.EnableLoRA {
		routes["/v1/load_lora_adapter"] = route{post, false, failing(s.loadAdapter).serve}
		routes["/v1/unload_lora_adapter"] = route{post, false, failing(s.unloadAdapter).serve}
	}
	return routes
}

// route calls the path's handler, or responds as FastAPI does if there is none.
func (s *Server) route(x *exchange) {
	path := x.r.URL.Path
	found, ok := s.routes[path]
	if !ok {
		if bare := strings.TrimSuffix(path, "/"); s.routes[bare].handle != nil && !s.spec.Rust {
			x.w.Header().Set("Location", "http://"+x.r.Host+bare)
			x.writeResponse(http.StatusTemporaryRedirect, "", nil)
			return
		}
		x.writeFailure(memberFailure(http.StatusNotFound, "detail", "Not Found"))
		return
	}
	if x.r.Method != found.method {
		x.w.Header().Set("Allow", found.method)
		x.writeFailure(memberFailure(http.StatusMethodNotAllowed, "detail", "Method Not Allowed"))
		return
	}
	if found.countsAsLoad {
		s.running.Add(1)
		defer s.running.Add(-1)
	}
	found.handle(x)
}

func (s *Server) listModels(x *exchange) {
	created := time.Now().Unix()
	owner, permission := "vllm", fmt.Sprintf(`,"permission":[{"id":"modelperm-%s","object":"model_permission","created":%d,`+
		`"allow_create_engine":false,"allow_sampling":true,"allow_logprobs":true,"allow_search_indices":false,"allow_view":true,`+
		`"allow_fine_tuning":false,"organization":"*","group":null,"is_blocking":false}]`, s.spec.randomID(), created)
	if s.spec.Rust {
		owner, permission = "vllm-frontend-rs", ""
	}
	root := string(appendString(nil, s.options.Models[0]))
	dst := []byte(`{"object":"list","data":[`)
	for i, name := range s.options.Models {
		dst = appendString(append(appendComma(dst, i), `{"id":`...), name)
		dst = fmt.Appendf(dst, `,"object":"model","created":%d,"owned_by":"%s","root":%s,"parent":null,"max_model_len":%d%s}`,
			created, owner, root, s.options.MaxModelLen, permission)
	}
	for _, a := range s.adapters.list() {
		dst = appendString(append(dst, `,{"id":`...), a.name)
		dst = fmt.Appendf(dst, `,"object":"model","created":%d,"owned_by":"%s","root":%s,"parent":%s,"max_model_len":null%s}`,
			created, owner, appendString(nil, a.path), root, permission)
	}
	x.writeJSON(append(dst, "]}"...))
}

// health reports only whether the engine has died: not sleep, load or a hang.
func (s *Server) health(x *exchange) {
	status := http.StatusOK
	if s.engine.dead.Load() {
		status = s.spec.DeadHealth
	}
	x.writeResponse(status, "", nil)
}

func (s *Server) serveVersion(x *exchange) {
	o := object{"version": s.options.Version}
	if s.spec.Rust {
		o["rust_frontend_version"] = s.options.Version
	}
	x.writeJSON(form("version rust_frontend_version?").encode(o))
}

func (s *Server) sleep(x *exchange) {
	s.engine.sleep()
	s.cache.reset()
	x.writeResponse(http.StatusOK, "", nil)
}

func (s *Server) wakeUp(x *exchange) {
	s.engine.wake()
	x.writeResponse(http.StatusOK, "", nil)
}

// tokenizerRequest is the body of /tokenize and /detokenize.
type tokenizerRequest struct {
	Model            string  `json:"model"`
	Prompt           *string `json:"prompt"`
	Tokens           []int   `json:"tokens"`
	AddSpecial       *bool   `json:"add_special_tokens"`
	ReturnTokenNames bool    `json:"return_token_strs"`
	conversation
}

func (s *Server) readTokenizerRequest(x *exchange) (*tokenizerRequest, *failure) {
	r := &tokenizerRequest{conversation: newConversation()}
	failure := s.decodeBody(x, r)
	if failure == nil && !s.servesBase(r.Model) && s.adapters.find(r.Model) == nil {
		failure = s.unknownModel(r.Model)
	}
	return r, failure
}

// tokenize handles POST /tokenize. By default it adds the begin-of-text token to a text, like completions.
func (s *Server) tokenize(x *exchange) *failure {
	var text string
	r, failure := s.readTokenizerRequest(x)
	special := r.Prompt != nil
	switch {
	case failure != nil:
	case r.Prompt != nil:
		text = *r.Prompt
	case r.Messages != nil:
		if !s.spec.TokenizesTools {
			r.Tools = nil
		}
		text, failure = s.render(r.conversation)
	default:
		failure = s.spec.schemaFailure("missing", "prompt", "Field required", gjson.Result{}, "")
	}
	if failure != nil {
		return failure
	}
	if r.AddSpecial != nil {
		special = *r.AddSpecial
	}
	tokens := s.model.encode(text, special)
	o := object{"count": len(tokens), "max_model_len": s.options.MaxModelLen, "tokens": tokens}
	if s.spec.TokenStrings {
		o["token_strs"] = nil
	}
	if s.spec.TokenStrings && r.ReturnTokenNames {
		names := []any{}
		for _, id := range tokens {
			names = append(names, s.model.decode([]int{id}))
		}
		o["token_strs"] = names
	}
	x.writeJSON(form("count max_model_len tokens token_strs?").encode(o))
	return nil
}

// serveTokenizerInfo handles GET /tokenizer_info: what the tokenizer was made with, the path of its files included.
func (s *Server) serveTokenizerInfo(x *exchange) {
	added := []byte{'{'}
	for i, id := range []int{s.model.bos, s.model.eos} {
		added = fmt.Appendf(appendComma(added, i), `"%d":{"content":"%s","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}`,
			id, s.model.pieces[id])
	}
	x.writeJSON(form("added_tokens_decoder bos_token clean_up_tokenization_spaces eos_token model_max_length name_or_path tokenizer_class").encode(object{
		"added_tokens_decoder": json.RawMessage(append(added, '}')), "bos_token": beginOfText, "eos_token": endOfText,
		"clean_up_tokenization_spaces": true, "model_max_length": s.options.MaxModelLen,
		"name_or_path": "/models/" + s.options.Models[0], "tokenizer_class": "PreTrainedTokenizerFast",
	}))
}

func (s *Server) detokenize(x *exchange) *failure {
	r, failure := s.readTokenizerRequest(x)
	if failure != nil {
		return failure
	}
	if unknown := s.unknownTokens(r.Tokens); len(unknown) > 0 {
		return badRequest("Token id %d is out of vocabulary", unknown[0])
	}
	x.writeJSON(form("prompt").encode(object{"prompt": s.model.decode(r.Tokens)}))
	return nil
}
