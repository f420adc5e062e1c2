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

// route is one path of the API. Echo would answer OPTIONS itself, so the handler gets every method and checks it.
type route struct {
	path    string
	method  string
	handler func(*Server, *exchange) error
}

var routes = []route{
	{CompletionsPath, http.MethodPost, (*Server).completion},
	{ChatPath, http.MethodPost, (*Server).chat},
	{"/v1/tokenize", http.MethodPost, (*Server).tokenize},
	{"/v1/detokenize", http.MethodPost, (*Server).detokenize},
	{"/v1/estimate", http.MethodPost, (*Server).estimate},
	{"/v1/models", http.MethodGet, (*Server).listModels},
	{"/v1/models/:id", http.MethodGet, (*Server).showModel},
	{"/v1/key", http.MethodGet, (*Server).showKey},
	{"/v1/usage", http.MethodGet, (*Server).showUsage},
}

// Mount registers the API on e. The exchange middleware wraps everything under /v1, unknown paths and methods included.
func (s *Server) Mount(e *echo.Echo) {
	e.Use(s.exchange)
	for _, r := range routes {
		e.Any(r.path, s.handle(r))
	}
}

// handle calls the route's handler for its one method. Paths are case-sensitive and have no trailing slash.
func (s *Server) handle(r route) echo.HandlerFunc {
	before, _, variable := strings.Cut(r.path, ":")
	return func(c echo.Context) error {
		if variable { // echo matches the rest of the path, slashes included
			if c.Request().URL.EscapedPath() == before {
				return echo.ErrNotFound
			}
		}
		if c.Request().Method != r.method {
			return echo.ErrMethodNotAllowed
		}
		x := exchangeOf(c)
		x.r.Pattern = c.Path()
		return r.handler(s, x)
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
