package mockvllm

import (
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
	return map[string]route{
		"/v1/completions": {post, true, s.complete},
		chatPath:          {post, true, s.chat},
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
	}
}

// route calls the path's handler, or responds as FastAPI does if there is none.
func (s *Server) route(x *exchange) {
	path := x.r.URL.Path
	found, ok := s.routes[path]
	if !ok {
		if bare := strings.TrimSuffix(path, "/"); s.routes[bare].handle != nil {
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
	dst := []byte(`{"object":"list","data":[`)
	for i, name := range s.models {
		dst = appendString(append(appendComma(dst, i), `{"id":`...), name)
		dst = append(dst, `,"object":"model","created":`...)
		dst = strconv.AppendInt(dst, created, 10)
		dst = appendString(append(dst, `,"owned_by":"vllm","root":`...), s.models[0])
		dst = append(dst, `,"parent":null,"max_model_len":`...)
		dst = strconv.AppendInt(dst, int64(s.maxModelLen), 10)
		dst = appendString(append(dst, `,"permission":[{"id":`...), "modelperm-"+s.spec.randomID())
		dst = append(dst, `,"object":"model_permission","created":`...)
		dst = strconv.AppendInt(dst, created, 10)
		dst = append(dst, `,"allow_create_engine":false,"allow_sampling":true,"allow_logprobs":true,`+
			`"allow_search_indices":false,"allow_view":true,"allow_fine_tuning":false,"organization":"*",`+
			`"group":null,"is_blocking":false}]}`...)
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

func (s *Server) serveVersion(x *exchange) { x.writeJSON(stringObject("version", s.version)) }

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
			s.writeTokens(x, names, s.chatEncoder(f))
		}
		return
	}
	if !readField(f, "prompt", false, asString, &text) && len(f.errs) == 0 {
		f.addError(typeError{"missing", "Field required"}, body, "prompt")
	}
	if !s.checkFields(x, f, model) {
		return
	}
	s.writeTokens(x, names, s.textEncoder(text, special))
}

// encoder returns the tokens of a request to /tokenize.
type encoder func() ([]int, *failure)

func (s *Server) textEncoder(text string, special bool) encoder {
	return func() ([]int, *failure) { return s.model.encode(text, special), checkText(text) }
}

// writeTokens responds with tokens, and their texts if names is true.
func (s *Server) writeTokens(x *exchange, names bool, encode encoder) {
	tokens, failure := encode()
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
	case model != "" && !slices.Contains(s.models, model):
		x.writeFailure(s.unknownModel(model))
	default:
		return true
	}
	return false
}
