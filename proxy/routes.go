package proxy

import (
	"cmp"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"

	apierr "basegate/errors"
	"basegate/validate"
)

// Paths of what the console serves too, beside ChatPath.
const (
	CompletionsPath = "/v1/completions"
	EstimatePath    = "/v1/estimate"

	LoglikelihoodPath = validate.LoglikelihoodPath
)

// endpoint tells those apart that share steps.
type endpoint uint8

const (
	otherEndpoint endpoint = iota // completions, and those that share none
	chatEndpoint
	tokenizeEndpoint
	detokenizeEndpoint
	estimateEndpoint
	loglikelihoodEndpoint
)

// route is one path of the API with its method.
type route struct {
	method, path string
	endpoint     endpoint
	serve        func(*Server, *exchange) error
}

var routes = []route{
	{http.MethodPost, CompletionsPath, otherEndpoint, (*Server).generate},
	{http.MethodPost, ChatPath, chatEndpoint, (*Server).generate},
	{http.MethodPost, LoglikelihoodPath, loglikelihoodEndpoint, (*Server).generate},
	{http.MethodPost, "/v1/tokenize", tokenizeEndpoint, (*Server).callTokenizer},
	{http.MethodPost, "/v1/detokenize", detokenizeEndpoint, (*Server).callTokenizer},
	{http.MethodPost, EstimatePath, estimateEndpoint, (*Server).estimate},
	{http.MethodGet, "/v1/models", otherEndpoint, (*Server).listModels},
	{http.MethodGet, "/v1/models/:id", otherEndpoint, (*Server).showModel}, // an id may have slashes: echo matches the rest of the path
	{http.MethodPost, "/v1/load_lora_adapter", otherEndpoint, (*Server).addAdapter},
	{http.MethodPost, "/v1/unload_lora_adapter", otherEndpoint, (*Server).removeAdapter},
	{http.MethodGet, "/v1/key", otherEndpoint, (*Server).showKey},
	{http.MethodGet, "/v1/usage", otherEndpoint, (*Server).showUsage},
	{http.MethodPost, rootTokenize, tokenizeEndpoint, (*Server).callTokenizer},
	{http.MethodPost, rootDetokenize, detokenizeEndpoint, (*Server).callTokenizer},
	{http.MethodGet, rootInfo, otherEndpoint, (*Server).showTokenizer},
	{http.MethodPost, keysPath, otherEndpoint, (*Server).createChild},
	{http.MethodGet, keysPath, otherEndpoint, (*Server).listChildren},
	{http.MethodGet, keysPath + "/:id", otherEndpoint, (*Server).showChild},
	{http.MethodPatch, keysPath + "/:id", otherEndpoint, (*Server).changeChild},
	{http.MethodDelete, keysPath + "/:id", otherEndpoint, (*Server).deleteChild},
}

// Paths of vLLM's tokenizer, for clients that know a server by its root.
const (
	rootTokenize   = "/tokenize"
	rootDetokenize = "/detokenize"
	rootInfo       = "/tokenizer_info"
)

// isRoot reports whether a path is one of vLLM's tokenizer.
func isRoot(path string) bool {
	return path == rootTokenize || path == rootDetokenize || path == rootInfo
}

// routeOf returns the first route of a path of the API; zero if there is none.
func routeOf(path string) (r route) {
	if i := slices.IndexFunc(routes, func(r route) bool { return r.path == path }); i >= 0 {
		r = routes[i]
	}
	return r
}

// Mount registers the API with its extensions on e. The exchange middleware wraps everything under /v1, unknown paths and
// methods included.
func (s *Server) Mount(e *echo.Echo, extensions ...Extension) {
	e.Use(s.exchange)
	allow := map[string][]string{}
	add := func(method, path string, serve func(*exchange, echo.Context) error) {
		allow[path] = append(allow[path], method)
		e.Add(method, path, func(c echo.Context) error {
			x := c.(*exchangeContext).exchange
			x.r.Pattern = path
			return serve(x, c)
		})
	}
	for _, r := range routes {
		add(r.method, r.path, func(x *exchange, _ echo.Context) error {
			x.endpoint = r.endpoint
			return r.serve(s, x)
		})
	}
	for _, extension := range extensions {
		add(extension.Method, extension.Path, func(x *exchange, c echo.Context) error { return s.extended(x, c, extension) })
	}
	for path, methods := range allow { // echo would answer OPTIONS itself
		slices.Sort(methods)
		e.OPTIONS(path, func(c echo.Context) error {
			c.Response().Header().Set("Allow", strings.Join(methods, ", "))
			return echo.ErrMethodNotAllowed
		})
	}
}

// IsAPI reports whether a path is under /v1, below the prefix of a dialect, or one of vLLM's tokenizer.
func (s *Server) IsAPI(path string) bool {
	return path == "/v1" || isRoot(path) || strings.HasPrefix(path, "/v1/") || s.settings.Load().dialectOf(path) != nil
}

// RoutingError converts echo's errors for unknown paths and methods to those of the contract.
func RoutingError(c echo.Context, err error) error {
	var routing *echo.HTTPError
	if !errors.As(err, &routing) {
		return err
	}
	method, path := c.Request().Method, c.Request().URL.Path
	bare := strings.Trim(strings.TrimPrefix(path, "/v1"), "/")
	switch routing.Code {
	case http.StatusNotFound:
		return apierr.NoSuchPath(method, path, alternatives[bare])
	case http.StatusMethodNotAllowed:
		if hint := alternatives[bare]; hint != "" && strings.HasSuffix(path, "/") { // a path that is served only for another method
			c.Response().Header().Del("Allow")
			return apierr.NoSuchPath(method, path, hint)
		}
		allow := strings.TrimPrefix(c.Response().Header().Get("Allow"), "OPTIONS, ")
		return apierr.WrongMethod(method, path, cmp.Or(allow, http.MethodGet))
	default:
		return err
	}
}

const completionsOnly = "text goes to POST /v1/completions, and messages to POST /v1/chat/completions for a model that chats"

// alternatives maps paths of the OpenAI API that are not served to what to use instead.
var alternatives = map[string]string{
	"responses":            "the Responses API is not served: " + completionsOnly,
	"conversations":        "the Conversations API is not served: " + completionsOnly,
	"assistants":           "the Assistants API is not served: " + completionsOnly,
	"threads":              "the Assistants API is not served: " + completionsOnly,
	"edits":                "edits are not served: " + completionsOnly,
	"embeddings":           "embeddings are not served: " + completionsOnly,
	"moderations":          "moderation is not served: " + completionsOnly,
	"uploads":              "files are uploaded in one request: POST /v1/files",
	"fine_tuning/jobs":     "fine-tuning is not served: " + completionsOnly,
	"images/generations":   "images are not served: " + completionsOnly,
	"audio/speech":         "audio is not served: " + completionsOnly,
	"audio/transcriptions": "audio is not served: " + completionsOnly,
	"realtime":             "the Realtime API is not served: " + completionsOnly,
	"engines":              "engines are called models here: GET /v1/models",
}

func init() {
	for _, path := range []string{
		"batches", "chat/completions", "completions", "detokenize", "estimate", "files", "keys", "loglikelihood", "models", "tokenize",
	} {
		alternatives[path] = "the path is /v1/" + path + ", without a slash at its end"
	}
}
