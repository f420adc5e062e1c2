package mockvllm

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// route is the methods and the handler of a path.
type route struct {
	methods      []string
	countsAsLoad bool // in GET /load, which counts running requests
	handle       func(*exchange)
}

func (s *Server) buildRoutes() map[string]route {
	get, post := []string{http.MethodGet}, []string{http.MethodPost}
	routes := map[string]route{
		"/v1/completions": {post, true, s.complete(s.spec.parseCompletion)},
		chatPath:          {post, true, s.complete(s.parseChat)},
		"/v1/models":      {get, false, s.listModels},
		"/health":         {get, false, s.health},
		"/ping":           {[]string{http.MethodGet, http.MethodPost}, false, s.health},
		"/version":        {get, false, s.serveVersion},
		"/load":           {get, false, s.load},
		"/tokenize":       {post, true, s.tokenize},
		"/detokenize":     {post, true, s.detokenize},
		"/metrics":        {get, false, s.serveMetrics},
		"/sleep":          {post, false, s.sleep},
		"/wake_up":        {post, false, s.wakeUp},
		"/is_sleeping":    {get, false, s.isSleeping},
		"/openapi.json":   {get, false, s.serveOpenAPI},
	}
	if s.options.DisableDocs || s.spec.rust {
		delete(routes, "/openapi.json")
	}
	if s.spec.rust {
		delete(routes, "/ping")
	}
	return routes
}

// route calls the path's handler, or responds as FastAPI does if there is none.
func (s *Server) route(x *exchange) {
	path := x.r.URL.Path
	found, ok := s.routes[path]
	if !ok {
		if bare := strings.TrimSuffix(path, "/"); s.routes[bare].handle != nil && !s.spec.rust {
			x.w.Header().Set("Location", "http://"+x.r.Host+bare)
			x.writeResponse(http.StatusTemporaryRedirect, "", nil)
			return
		}
		x.writeFailure(detailFailure(http.StatusNotFound, "Not Found"))
		return
	}
	if !slices.Contains(found.methods, x.r.Method) {
		x.w.Header().Set("Allow", strings.Join(found.methods, ", "))
		x.writeFailure(detailFailure(http.StatusMethodNotAllowed, "Method Not Allowed"))
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
	if s.spec.rust {
		owner, permission = "vllm-frontend-rs", ""
	}
	root := string(appendString(nil, s.models[0]))
	dst := []byte(`{"object":"list","data":[`)
	for i, name := range slices.Concat(s.models, s.options.Adapters) {
		parent, length := "null", decimal(s.maxModelLen)
		if i >= len(s.models) {
			parent, length = root, "null"
		}
		dst = appendString(append(appendComma(dst, i), `{"id":`...), name)
		dst = fmt.Appendf(dst, `,"object":"model","created":%d,"owned_by":"%s","root":%s,"parent":%s,"max_model_len":%s%s}`,
			created, owner, root, parent, length, permission)
	}
	x.writeJSON(append(dst, "]}"...))
}

// health reports only whether the engine has died: not sleep, load or a hang.
func (s *Server) health(x *exchange) {
	status := http.StatusOK
	if s.engine.dead() {
		status = s.spec.deadHealthStatus
	}
	x.writeResponse(status, "", nil)
}

func (s *Server) serveVersion(x *exchange) {
	body := stringObject("version", s.version)
	if s.spec.rust {
		body = fmt.Appendf(nil, `{"version":"%s","rust_frontend_version":"%[1]s"}`, s.version)
	}
	x.writeJSON(body)
}

func (s *Server) load(x *exchange) {
	x.writeJSON([]byte(`{"server_load":` + strconv.FormatInt(s.running.Load(), 10) + `}`))
}

func (s *Server) sleep(x *exchange) {
	level, err := strconv.Atoi(x.r.URL.Query().Get("level"))
	if err != nil {
		level = 1
	}
	s.engine.sleep(level)
	s.cache.reset()
	x.writeResponse(http.StatusOK, "", nil)
}

func (s *Server) wakeUp(x *exchange) {
	s.engine.wake()
	x.writeResponse(http.StatusOK, "", nil)
}

func (s *Server) isSleeping(x *exchange) {
	_, sleeping := s.engine.sleepState()
	x.writeJSON([]byte(`{"is_sleeping":` + strconv.FormatBool(sleeping) + `}`))
}

func decimal(number int) string { return strconv.Itoa(number) }

// tokenize handles POST /tokenize. By default it adds the begin-of-text token, like completions.
func (s *Server) tokenize(x *exchange) {
	body, failure := s.readJSON(x)
	if failure != nil {
		x.writeFailure(failure)
		return
	}
	f := &fieldReader{body: body}
	var model, text string
	special, names := true, false
	readField(f, "model", true, asString, &model)
	f.boolean("add_special_tokens", false, &special)
	f.boolean("return_token_strs", true, &names)
	if _, chats := body.member("messages"); chats {
		if s.checkFields(x, f, model) {
			tokens, failure := s.encodeChat(f)
			s.writeTokens(x, names, tokens, failure)
		}
		return
	}
	if !readField(f, "prompt", false, asString, &text) && len(f.errs) == 0 {
		f.addError(typeError{"missing", "Field required"}, body, "prompt")
	}
	if !s.checkFields(x, f, model) {
		return
	}
	s.writeTokens(x, names, s.model.encode(text, special), checkText(text))
}

// writeTokens responds with tokens, and their texts if names is true, or with the failure to encode them.
func (s *Server) writeTokens(x *exchange, names bool, tokens []int, failure *failure) {
	if failure != nil {
		x.writeFailure(failure)
		return
	}
	dst := []byte(`{"count":` + decimal(len(tokens)) + `,"max_model_len":` + decimal(s.maxModelLen) + `,"tokens":`)
	dst = appendInts(dst, tokens)
	if !s.spec.tokenStrings {
		x.writeJSON(append(dst, '}'))
		return
	}
	dst = append(dst, `,"token_strs":`...)
	if !names {
		x.writeJSON(append(dst, "null}"...))
		return
	}
	dst = append(dst, '[')
	for i, id := range tokens {
		dst = appendString(appendComma(dst, i), s.model.decode([]int{id}))
	}
	x.writeJSON(append(dst, "]}"...))
}

func (s *Server) detokenize(x *exchange) {
	body, failure := s.readJSON(x)
	if failure != nil {
		x.writeFailure(failure)
		return
	}
	f := &fieldReader{body: body}
	var model string
	var tokens []int
	readField(f, "model", true, asString, &model)
	f.ints("tokens", &tokens)
	if _, present := body.member("tokens"); !present {
		f.addError(typeError{"missing", "Field required"}, body, "tokens")
	}
	if !s.checkFields(x, f, model) {
		return
	}
	if at := s.firstUnknownToken(tokens); at >= 0 {
		x.writeFailure(badRequest("Token id %d is out of vocabulary", tokens[at]))
		return
	}
	x.writeJSON(stringObject("prompt", s.model.decode(tokens)))
}

// checkFields responds with an error and returns false if a field is invalid or the model is not served.
func (s *Server) checkFields(x *exchange, f *fieldReader, model string) bool {
	switch {
	case len(f.errs) > 0:
		x.writeFailure(s.spec.schemaFailure(f.errs))
	case model != "" && !s.serves(model):
		x.writeFailure(s.unknownModel(model))
	default:
		return true
	}
	return false
}
