package console

import (
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"basegate/proxy"
)

// route is one page, or one request that a form or a script sends.
type route struct {
	method  string // GET changes nothing, and is registered for HEAD too
	path    string // with echo's parameters
	access  access
	maxBody int64 // bytes
	handler handler
}

// maxForm is the limit of a form, in bytes.
const maxForm = 64 << 10

var routes = []route{
	{http.MethodGet, "/", anyone, maxForm, (*Console).home},
	{http.MethodGet, "/sign-in", anyone, maxForm, (*Console).signInPage},
	{http.MethodPost, "/sign-in", anyone, maxForm, (*Console).signIn},
	{http.MethodGet, "/sign-in/oidc", anyone, maxForm, (*Console).signInAtProvider},
	{http.MethodGet, "/sign-in/oidc/callback", anyone, maxForm, (*Console).returnFromProvider},
	{http.MethodPost, "/sign-out", anyone, maxForm, (*Console).signOut},
	{http.MethodGet, "/invitation/:token", anyone, maxForm, (*Console).invitationPage},
	{http.MethodPost, "/invitation/:token", anyone, maxForm, (*Console).acceptInvitation},
	{http.MethodGet, "/request-access", anyone, maxForm, (*Console).requestAccessPage},
	{http.MethodPost, "/request-access", anyone, maxForm, (*Console).requestAccess},
	{http.MethodGet, "/request-access/sent", anyone, maxForm, (*Console).accessRequested},

	{http.MethodGet, "/account", signedIn, maxForm, (*Console).accountPage},
	{http.MethodPost, "/account/password", signedIn, maxForm, (*Console).changePassword},
	{http.MethodPost, "/account/sign-out-everywhere", signedIn, maxForm, (*Console).signOutEverywhere},

	{http.MethodGet, "/once/:id", signedIn, maxForm, (*Console).showOnce},
	{http.MethodGet, "/console/api/palette", signedIn, maxForm, (*Console).palette},
	{http.MethodGet, "/console/api/session", signedIn, maxForm, (*Console).sessionState},
	{http.MethodPost, "/console/api/session", anyone, maxForm, (*Console).renewSession},

	{http.MethodGet, "/dashboard", signedIn, maxForm, (*Console).dashboard},
	{http.MethodGet, "/keys/new", signedIn, maxForm, (*Console).newKeyPage},
	{http.MethodPost, "/keys", signedIn, maxForm, (*Console).createKey},
	{http.MethodGet, "/keys/:key", signedIn, maxForm, of((*Console).pathKey, (*Console).keyPage)},
	{http.MethodPost, "/keys/:key", signedIn, maxForm, of((*Console).pathKey, (*Console).setKey)},
	{http.MethodPost, "/keys/:key/:action", signedIn, maxForm, of((*Console).pathKey, (*Console).changeKey)},
	{http.MethodGet, "/usage", signedIn, maxForm, (*Console).usage},
	{http.MethodGet, "/usage/export", signedIn, maxForm, (*Console).exportUsage},
	{http.MethodGet, "/usage/requests", signedIn, maxForm, (*Console).requests},
	{http.MethodGet, "/usage/requests.csv", signedIn, maxForm, (*Console).requestsCSV},
	{http.MethodGet, "/usage/requests/:id", signedIn, maxForm, (*Console).requestPage},
	{http.MethodGet, "/usage/runs", signedIn, maxForm, (*Console).runsPage},
	{http.MethodGet, "/usage/runs/:run", signedIn, maxForm, (*Console).runPage},
	{http.MethodPost, "/usage/runs/:run/:action", signedIn, maxForm, (*Console).changeRun},
	{http.MethodGet, "/workbench", signedIn, maxForm, (*Console).workbench},
	{http.MethodGet, "/console/api/workbench", signedIn, maxForm, (*Console).workbenchOptions},
	{http.MethodPost, "/console/api/completions", signedIn, noLimit, onBehalf(proxy.CompletionsPath)},
	{http.MethodPost, "/console/api/chat/completions", signedIn, noLimit, onBehalf(proxy.ChatPath)},
	{http.MethodPost, "/console/api/loglikelihood", signedIn, noLimit, onBehalf(proxy.LoglikelihoodPath)},
	{http.MethodPost, "/console/api/estimate", signedIn, noLimit, onBehalf(proxy.EstimatePath)},
	{http.MethodPost, "/console/api/tokenize", signedIn, maxTokenizerBody, (*Console).tokenize},
	{http.MethodPost, "/console/api/detokenize", signedIn, maxTokenizerBody, (*Console).detokenize},
	{http.MethodGet, "/console/api/prompts", signedIn, maxForm, (*Console).listPrompts},
	{http.MethodPost, "/console/api/prompts", signedIn, maxPrompt, (*Console).createPrompt},
	{http.MethodGet, "/console/api/prompts/:id", signedIn, maxForm, (*Console).getPrompt},
	{http.MethodPut, "/console/api/prompts/:id", signedIn, maxPrompt, (*Console).updatePrompt},
	{http.MethodDelete, "/console/api/prompts/:id", signedIn, maxForm, (*Console).deletePrompt},
	{http.MethodGet, "/console/api/prompts/:id/versions", signedIn, maxForm, (*Console).listVersions},
	{http.MethodGet, "/console/api/prompts/:id/versions/:version", signedIn, maxForm, (*Console).getVersion},
	{http.MethodDelete, "/console/api/prompts/:id/versions/:version", signedIn, maxForm, (*Console).deleteVersion},
	{http.MethodGet, "/console/api/presets", signedIn, maxForm, (*Console).listPresets},
	{http.MethodPut, "/console/api/presets", signedIn, maxForm, (*Console).savePreset},
	{http.MethodDelete, "/console/api/presets", signedIn, maxForm, (*Console).deletePreset},
	{http.MethodGet, "/files", signedIn, maxForm, (*Console).filesPage},
	{http.MethodPost, "/files", signedIn, noLimit, (*Console).uploadFile},
	{http.MethodPost, "/console/api/files", signedIn, noLimit, (*Console).uploadFileByScript},
	{http.MethodGet, "/files/:file", signedIn, maxForm, of((*Console).pathFile, (*Console).filePage)},
	{http.MethodGet, "/files/:file/content", signedIn, maxForm, of((*Console).pathFile, (*Console).downloadFile)},
	{http.MethodPost, "/files/:file/run", signedIn, maxForm, of((*Console).pathFile, (*Console).runFile)},
	{http.MethodPost, "/files/:file/delete", signedIn, maxForm, of((*Console).pathFile, (*Console).deleteFile)},
	{http.MethodGet, "/batches", signedIn, maxForm, (*Console).batchesPage},
	{http.MethodGet, "/batches/:batch", signedIn, maxForm, (*Console).batchPage},
	{http.MethodPost, "/batches/:batch/cancel", signedIn, maxForm, (*Console).cancelBatch},
	{http.MethodPost, "/console/api/prompts/:id/share", signedIn, maxForm, (*Console).sharePrompt},
	{http.MethodPut, "/console/api/prompts/:id/share", signedIn, maxForm, (*Console).sharePromptWithEveryone},
	{http.MethodDelete, "/console/api/prompts/:id/share", signedIn, maxForm, (*Console).unsharePrompt},
	{http.MethodGet, "/console/api/shared/:share", signedIn, maxForm, (*Console).getSharedPrompt},
	{http.MethodPost, "/models/:model/warm", signedIn, maxForm, of((*Console).pathModel, (*Console).warmModel)},
	{http.MethodGet, "/tutorial", anyone, maxForm, (*Console).tutorialSearch},
	{http.MethodGet, "/tutorial/:page", anyone, maxForm, (*Console).tutorialPage},
	{http.MethodGet, "/llms.txt", anyone, maxForm, (*Console).llms},
	{http.MethodGet, "/openapi.json", anyone, maxForm, (*Console).openAPI},
	{http.MethodGet, "/feedback", anyone, maxForm, (*Console).feedbackPage},
	{http.MethodPost, "/feedback", anyone, maxForm, (*Console).sendFeedback},
	{http.MethodGet, "/feedback/sent", anyone, maxForm, (*Console).feedbackSent},

	{http.MethodGet, "/admin", administrators, maxForm, (*Console).adminHome},
	{http.MethodGet, "/admin/overview", administrators, maxForm, (*Console).overviewPage},
	{http.MethodGet, "/admin/accounts", administrators, maxForm, (*Console).adminAccountsPage},
	{http.MethodPost, "/admin/approve", administrators, maxForm, (*Console).approve},
	{http.MethodPost, "/admin/decline", administrators, maxForm, (*Console).decline},
	{http.MethodPost, "/admin/invite", administrators, maxForm, (*Console).invite},
	{http.MethodGet, "/admin/accounts/:account", administrators, maxForm, of((*Console).pathAccount, (*Console).adminAccountPage)},
	{http.MethodPost, "/admin/accounts/:account", administrators, maxForm, of((*Console).pathAccount, (*Console).setAccount)},
	{http.MethodPost, "/admin/accounts/:account/:action", administrators, maxForm, of((*Console).pathAccount, (*Console).changeAccount)},
	{http.MethodGet, "/admin/keys/:key", administrators, maxForm, of((*Console).pathKey, (*Console).keyPage)},
	{http.MethodPost, "/admin/keys/:key", administrators, maxForm, of((*Console).pathKey, (*Console).setKey)},
	{http.MethodPost, "/admin/keys/:key/:action", administrators, maxForm, of((*Console).pathKey, (*Console).changeKey)},
	{http.MethodGet, "/admin/models", administrators, maxForm, (*Console).adminModelsPage},
	{http.MethodGet, "/admin/batches", administrators, maxForm, (*Console).batchesPage},
	{http.MethodGet, "/admin/runs", administrators, maxForm, (*Console).runsPage},
	{http.MethodGet, "/admin/runs/:account/:run", administrators, maxForm, (*Console).runPage},
	{http.MethodPost, "/admin/runs/:account/:run/:action", administrators, maxForm, (*Console).changeRun},
	{http.MethodPost, "/admin/batches/:batch/cancel", administrators, maxForm, (*Console).cancelBatch},
	{http.MethodPost, "/admin/models/:model/adapters", administrators, maxForm, of((*Console).pathModel, (*Console).addAdapter)},
	{http.MethodPost, "/admin/models/:model/adapters/remove", administrators, maxForm, of((*Console).pathModel, (*Console).removeAdapter)},
	{http.MethodPost, "/admin/models/:model/windows", administrators, maxForm, of((*Console).pathModel, (*Console).bookWindow)},
	{http.MethodPost, "/admin/models/:model/windows/:window/remove", administrators, maxForm, of((*Console).pathModel, (*Console).removeWindow)},
	{http.MethodPost, "/admin/models/:model/:action", administrators, maxForm, of((*Console).pathModel, (*Console).controlModel)},
	{http.MethodGet, "/admin/settings", administrators, maxForm, (*Console).settingsPage},
	{http.MethodPost, "/admin/settings/test/:channel", administrators, maxForm, (*Console).sendTestMessage},
	{http.MethodGet, "/admin/feedback", administrators, maxForm, (*Console).adminFeedbackPage},
	{http.MethodPost, "/admin/feedback/:feedback", administrators, maxForm, (*Console).answerFeedback},
	{http.MethodGet, "/admin/audit", administrators, maxForm, (*Console).auditPage},
}

// rates are the limits of how often a request may be sent, which are asked before its body is read.
var rates = map[string]func(*Console, *request) error{
	"POST /request-access":         (*Console).allowAccessRequest,
	"POST /feedback":               (*Console).allowFeedback,
	"POST /console/api/prompts":    (*Console).allowSave,
	"PUT /console/api/prompts/:id": (*Console).allowSave,
	"POST /console/api/tokenize":   (*Console).allowTokenizer,
	"POST /console/api/detokenize": (*Console).allowTokenizer,
}

// Mount registers the console on e: its static files, its routes, and the page for unknown paths. That page is the
// response to every other path and method below the first segments of the console's paths.
func (c *Console) Mount(e *echo.Echo) {
	e.Match([]string{http.MethodGet, http.MethodHead}, staticPath+"*", c.asset, c.securityHeaders)
	firstSegments := map[string]bool{strings.Trim(staticPath, "/"): true}
	for _, r := range routes {
		methods := []string{r.method}
		if r.method == http.MethodGet {
			methods = append(methods, http.MethodHead)
		}
		e.Match(methods, r.path, c.handle(r))
		first, _, _ := strings.Cut(strings.TrimPrefix(r.path, "/"), "/")
		firstSegments[first] = true
	}
	unknown := c.handle(route{access: anyone, maxBody: maxForm, handler: (*Console).notFound})
	for segment := range firstSegments {
		e.RouteNotFound("/"+segment, unknown)
		if segment != "" {
			e.RouteNotFound("/"+segment+"/*", unknown)
		}
	}
}

// handle returns the handler of a route, whose steps are taken in order. The first one that returns an error ends the request.
func (c *Console) handle(to route) echo.HandlerFunc {
	steps := []handler{
		limitBody(to.maxBody),
		(*Console).identify, // before the refusals, whose pages show the user's navigation
		(*Console).refuseCrossOrigin,
		requireWholeSegments,
		requireAccess(to.access),
	}
	if ask := rates[to.method+" "+to.path]; ask != nil {
		steps = append(steps, ask)
	}
	if to.maxBody != noLimit { // a form would be held in memory
		steps = append(steps, parseForm)
	}
	steps = append(steps, to.handler)
	return c.securityHeaders(c.renderError(c.recoverPanic(func(ec echo.Context) error {
		r := requestOf(ec)
		for _, step := range steps {
			if err := step(c, r); err != nil {
				return err
			}
		}
		return nil
	})))
}

// limitBody returns a step that limits the body, in bytes. With noLimit it leaves the body as it arrives: package proxy has
// deadlines of its own, which those of the console's body would remove.
func limitBody(limit int64) handler {
	return func(_ *Console, r *request) error {
		if limit == noLimit {
			r.Request().Body = r.body.arriving
		} else {
			r.Request().Body = http.MaxBytesReader(r.Response(), r.Request().Body, limit)
		}
		return nil
	}
}

// parseForm is a step that refuses a form that cannot be read to its end, whose fields would otherwise be empty.
func parseForm(_ *Console, r *request) error {
	if r.Request().Method == http.MethodPost && !r.isAPI() { // scripts send JSON
		if err := r.Request().ParseForm(); err != nil {
			return unreadable(err)
		}
	}
	return nil
}

// requireWholeSegments is a step that refuses a path if one of its parameters is not exactly one segment. Echo also
// matches a parameter with an empty segment, and the last one with the rest of the path, slashes included.
func requireWholeSegments(_ *Console, r *request) error {
	for _, value := range r.ParamValues() {
		if value == "" || strings.Contains(value, "/") {
			return errNotFound
		}
	}
	return nil
}

// destination is a page of the navigation in the header.
type destination struct {
	Name   string
	Path   string // of the page, and the prefix of the pages below it
	access access
}

var destinations = []destination{
	{"Dashboard", "/dashboard", signedIn},
	{"Usage", "/usage", signedIn},
	{"Workbench", "/workbench", signedIn},
	{"Batches", "/batches", signedIn},
	{"Files", "/files", signedIn},
	{"Tutorial", "/tutorial", anyone},
	{"Administration", "/admin", administrators},
}
