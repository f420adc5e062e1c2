package proxy

import (
	"cmp"
	"errors"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	apierr "basegate/errors"
)

// CompletionsPath is the path of completions.
const CompletionsPath = "/v1/completions"

// endpoint is what a request of the API asks for.
type endpoint uint8

const (
	completionEndpoint endpoint = iota
	chatEndpoint
	tokenizeEndpoint
	detokenizeEndpoint
	estimateEndpoint
	modelsEndpoint
	modelEndpoint
	keyEndpoint
	usageEndpoint
)

// route is one path of the API. Echo would answer OPTIONS itself, so every method is routed, and serve checks it.
type route struct {
	path, method string
	endpoint     endpoint
}

var routes = []route{
	{CompletionsPath, http.MethodPost, completionEndpoint},
	{ChatPath, http.MethodPost, chatEndpoint},
	{"/v1/tokenize", http.MethodPost, tokenizeEndpoint},
	{"/v1/detokenize", http.MethodPost, detokenizeEndpoint},
	{"/v1/estimate", http.MethodPost, estimateEndpoint},
	{"/v1/models", http.MethodGet, modelsEndpoint},
	{modelPath, http.MethodGet, modelEndpoint},
	{"/v1/key", http.MethodGet, keyEndpoint},
	{"/v1/usage", http.MethodGet, usageEndpoint},
}

// modelPath is the path of a model. Its id may have slashes: echo matches the rest of the path.
const modelPath = "/v1/models/:id"

// Mount registers the API on e. The exchange middleware wraps everything under /v1, unknown paths and methods included.
func (s *Server) Mount(e *echo.Echo) {
	e.Use(s.exchange)
	for _, r := range routes {
		e.Any(r.path, func(c echo.Context) error {
			x := exchangeOf(c)
			switch {
			case r.path == modelPath && x.r.URL.EscapedPath() == "/v1/models/":
				return echo.ErrNotFound
			case x.r.Method != r.method:
				return echo.ErrMethodNotAllowed
			}
			x.r.Pattern, x.endpoint = r.path, r.endpoint
			return s.serve(x)
		})
	}
}

// serve calls the handler of the endpoint.
func (s *Server) serve(x *exchange) error {
	switch x.endpoint {
	case tokenizeEndpoint, detokenizeEndpoint:
		return s.callTokenizer(x)
	case estimateEndpoint:
		return s.estimate(x)
	case modelsEndpoint:
		return s.listModels(x)
	case modelEndpoint:
		return s.showModel(x)
	case keyEndpoint:
		return s.showKey(x)
	case usageEndpoint:
		return s.showUsage(x)
	default:
		return s.generate(x)
	}
}

// IsAPI reports whether a path is under /v1, or below the prefix of a dialect.
func (s *Server) IsAPI(path string) bool {
	return path == "/v1" || strings.HasPrefix(path, "/v1/") || s.settings.Load().dialectOf(path) != nil
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
			return apierr.NoSuchPath(method, path, hint)
		}
		allow := strings.TrimPrefix(c.Response().Header().Get("Allow"), "OPTIONS, ") // echo's, of an extension
		allow = cmp.Or(allow, http.MethodGet)
		for _, r := range routes {
			if r.path == c.Path() {
				allow = r.method
			}
		}
		return apierr.WrongMethod(method, path, allow)
	default:
		return err
	}
}

const completionsOnly = "text goes to POST /v1/completions, and messages to POST /v1/chat/completions for a model that chats"

// alternatives maps paths of the OpenAI API that are not served to what to use instead.
var alternatives = map[string]string{ //nolint:gosec // "token" in a name is no secret
	"completions":          "the path is /v1/completions, without a slash at its end",
	"tokenize":             "the path is /v1/tokenize, without a slash at its end",
	"detokenize":           "the path is /v1/detokenize, without a slash at its end",
	"estimate":             "the path is /v1/estimate, without a slash at its end",
	"models":               "the path is /v1/models, without a slash at its end",
	"chat/completions":     "the path is /v1/chat/completions, without a slash at its end",
	"responses":            "the Responses API is not served: " + completionsOnly,
	"conversations":        "the Conversations API is not served: " + completionsOnly,
	"assistants":           "the Assistants API is not served: " + completionsOnly,
	"threads":              "the Assistants API is not served: " + completionsOnly,
	"edits":                "edits are not served: " + completionsOnly,
	"embeddings":           "embeddings are not served: " + completionsOnly,
	"moderations":          "moderation is not served: " + completionsOnly,
	"uploads":              "files are uploaded in one request: POST /v1/files",
	"files":                "the path is /v1/files, without a slash at its end",
	"batches":              "the path is /v1/batches, without a slash at its end",
	"fine_tuning/jobs":     "fine-tuning is not served: " + completionsOnly,
	"images/generations":   "images are not served: " + completionsOnly,
	"audio/speech":         "audio is not served: " + completionsOnly,
	"audio/transcriptions": "audio is not served: " + completionsOnly,
	"realtime":             "the Realtime API is not served: " + completionsOnly,
	"engines":              "engines are called models here: GET /v1/models",
}
