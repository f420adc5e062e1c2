package mockvllm

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A route is a path's methods. A loaded one counts into /load, as vLLM's do.
type route struct {
	methods []string
	loaded  bool
	handle  func(*exchange)
}

func (s *Server) buildRoutes() map[string]route {
	get, post := []string{http.MethodGet}, []string{http.MethodPost}
	return map[string]route{
		"/v1/completions": {post, true, s.complete},
		"/v1/models":      {get, false, s.listModels},
		"/health":         {get, false, s.health},
		"/ping":           {[]string{http.MethodGet, http.MethodPost}, false, s.health},
		"/version":        {get, false, s.tellVersion},
		"/load":           {get, false, s.load},
		"/tokenize":       {post, true, s.tokenize},
		"/detokenize":     {post, true, s.detokenize},
		"/metrics":        {get, false, s.metrics},
		"/sleep":          {post, false, s.sleep},
		"/wake_up":        {post, false, s.wakeUp},
		"/is_sleeping":    {get, false, s.isSleeping},
	}
}

// route finds the handler, or answers as FastAPI does where there is none.
func (s *Server) route(x *exchange) {
	path := x.r.URL.Path
	found, ok := s.routes[path]
	if !ok {
		if bare := strings.TrimSuffix(path, "/"); s.routes[bare].handle != nil {
			x.w.Header().Set("Location", "http://"+x.r.Host+bare)
			x.respond(http.StatusTemporaryRedirect, "", nil)
			return
		}
		x.refuse(detail(http.StatusNotFound, "Not Found"))
		return
	}
	if !slices.Contains(found.methods, x.r.Method) {
		x.w.Header().Set("Allow", strings.Join(found.methods, ", "))
		x.refuse(detail(http.StatusMethodNotAllowed, "Method Not Allowed"))
		return
	}
	if found.loaded {
		s.running.Add(1)
		defer s.running.Add(-1)
	}
	found.handle(x)
}

func (s *Server) listModels(x *exchange) {
	created := time.Now().Unix()
	to := []byte(`{"object":"list","data":[`)
	for i, name := range s.models {
		to = appendString(append(comma(to, i), `{"id":`...), name)
		to = append(to, `,"object":"model","created":`...)
		to = strconv.AppendInt(to, created, 10)
		to = appendString(append(to, `,"owned_by":"vllm","root":`...), s.models[0])
		to = append(to, `,"parent":null,"max_model_len":`...)
		to = strconv.AppendInt(to, int64(s.limit), 10)
		to = appendString(append(to, `,"permission":[{"id":`...), "modelperm-"+randomID())
		to = append(to, `,"object":"model_permission","created":`...)
		to = strconv.AppendInt(to, created, 10)
		to = append(to, `,"allow_create_engine":false,"allow_sampling":true,"allow_logprobs":true,`+
			`"allow_search_indices":false,"allow_view":true,"allow_fine_tuning":false,"organization":"*",`+
			`"group":null,"is_blocking":false}]}`...)
	}
	x.json(append(to, "]}"...))
}

// health only knows whether the engine has died: not sleep, load or a hang.
func (s *Server) health(x *exchange) {
	status := http.StatusOK
	if s.engine.dead() {
		status = s.shape.deadHealth
	}
	x.respond(status, "", nil)
}

func (s *Server) tellVersion(x *exchange) { x.json(pair("version", s.version)) }

func (s *Server) load(x *exchange) {
	x.json([]byte(`{"server_load":` + strconv.FormatInt(s.running.Load(), 10) + `}`))
}

func (s *Server) sleep(x *exchange) {
	level, err := strconv.Atoi(x.r.URL.Query().Get("level"))
	if err != nil {
		level = 1
	}
	s.engine.sleep(level)
	x.respond(http.StatusOK, "", nil)
}

func (s *Server) wakeUp(x *exchange) {
	s.engine.wake()
	x.respond(http.StatusOK, "", nil)
}

func (s *Server) isSleeping(x *exchange) {
	_, sleeping := s.engine.asleep()
	x.json([]byte(`{"is_sleeping":` + strconv.FormatBool(sleeping) + `}`))
}

func decimal(number int) string { return strconv.Itoa(number) }

// tokenize counts a prompt like a completion would: with the begin-of-text token unless told otherwise.
func (s *Server) tokenize(x *exchange) {
	body, failure := s.readJSON(x)
	if failure != nil {
		x.refuse(failure)
		return
	}
	f := &form{body: body}
	var model, text string
	special, names := true, false
	read(f, "model", true, asString, &model)
	f.boolean("add_special_tokens", false, &special)
	f.boolean("return_token_strs", true, &names)
	if !read(f, "prompt", false, asString, &text) && len(f.problems) == 0 {
		f.complain(complaint{"missing", "Field required"}, body, "prompt")
	}
	if !s.fit(x, f, model) {
		return
	}
	if failure := checkText(text); failure != nil {
		x.refuse(failure)
		return
	}
	tokens := s.model.encode(text, special)
	to := []byte(`{"count":` + decimal(len(tokens)) + `,"max_model_len":` + decimal(s.limit) + `,"tokens":`)
	to = append(appendInts(to, tokens), `,"token_strs":`...)
	if !names {
		x.json(append(to, "null}"...))
		return
	}
	to = append(to, '[')
	for i, id := range tokens {
		to = appendString(comma(to, i), s.model.decode([]int{id}))
	}
	x.json(append(to, "]}"...))
}

func (s *Server) detokenize(x *exchange) {
	body, failure := s.readJSON(x)
	if failure != nil {
		x.refuse(failure)
		return
	}
	f := &form{body: body}
	var model string
	var tokens []int
	read(f, "model", true, asString, &model)
	f.ints("tokens", &tokens)
	if _, present := body.member("tokens"); !present {
		f.complain(complaint{"missing", "Field required"}, body, "tokens")
	}
	if !s.fit(x, f, model) {
		return
	}
	if at := s.known(tokens); at >= 0 {
		x.refuse(badRequest("tokens", "Token id %d is out of vocabulary", tokens[at]))
		return
	}
	x.json(pair("prompt", s.model.decode(tokens)))
}

// fit refuses a form with problems, and a model that is not served.
func (s *Server) fit(x *exchange, f *form, model string) bool {
	switch {
	case len(f.problems) > 0:
		x.refuse(s.shape.schemaFailure(f.problems))
	case model != "" && !slices.Contains(s.models, model):
		x.refuse(s.unknownModel(model))
	default:
		return true
	}
	return false
}
