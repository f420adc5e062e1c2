package console

// route is one page, or one thing that a form or a script asks for.
type route struct {
	pattern string // of net/http: a method and a path; GET changes nothing
	access  access
	handler func(*Console, *visit) error
	body    int64 // the longest body, in bytes; 0: maxForm
}

// access is who may see a page.
type access int

// Who may see a page.
const (
	anyone   access = iota
	signedIn        // others are sent to sign in
	admins          // others are told that there is no such page
)

var routes = []route{
	{pattern: "GET /{$}", access: anyone, handler: (*Console).home},
	{pattern: "GET /sign-in", access: anyone, handler: (*Console).signInPage},
	{pattern: "POST /sign-in", access: anyone, handler: (*Console).signIn},
	{pattern: "POST /sign-out", access: anyone, handler: (*Console).signOut},
	{pattern: "GET /invitation/{token}", access: anyone, handler: (*Console).invitationPage},
	{pattern: "POST /invitation/{token}", access: anyone, handler: (*Console).acceptInvitation},
	{pattern: "GET /request-access", access: anyone, handler: (*Console).requestAccessPage},
	{pattern: "POST /request-access", access: anyone, handler: (*Console).requestAccess},

	{pattern: "GET /account", access: signedIn, handler: (*Console).accountPage},
	{pattern: "POST /account/password", access: signedIn, handler: (*Console).changePassword},
	{pattern: "POST /account/sign-out-everywhere", access: signedIn, handler: (*Console).signOutEverywhere},

	{pattern: "GET /dashboard", access: signedIn, handler: (*Console).dashboard},
	{pattern: "GET /keys/new", access: signedIn, handler: (*Console).newKeyPage},
	{pattern: "POST /keys", access: signedIn, handler: (*Console).createKey},
	{pattern: "GET /keys/{key}", access: signedIn, handler: (*Console).ownKeyPage},
	{pattern: "POST /keys/{key}", access: signedIn, handler: (*Console).setOwnKey},
	{pattern: "POST /keys/{key}/{change}", access: signedIn, handler: (*Console).changeOwnKey},
	{pattern: "GET /usage", access: signedIn, handler: (*Console).usage},
	{pattern: "GET /usage/requests", access: signedIn, handler: (*Console).requests},
	{pattern: "GET /usage/csv", access: signedIn, handler: (*Console).usageCSV},
	{pattern: "GET /workbench", access: signedIn, handler: (*Console).workbench},
	{pattern: "GET /console/api/workbench", access: signedIn, handler: (*Console).workbenchOffer},
	{pattern: "POST /console/api/completions", access: signedIn, handler: (*Console).completeHere, body: maxCompletion},
	{pattern: "POST /console/api/tokenize", access: signedIn, handler: (*Console).tokenize, body: maxQuestion},
	{pattern: "POST /console/api/detokenize", access: signedIn, handler: (*Console).detokenize, body: maxQuestion},
	{pattern: "GET /console/api/prompts", access: signedIn, handler: (*Console).savedPrompts},
	{pattern: "POST /console/api/prompts", access: signedIn, handler: (*Console).savePrompt, body: maxSaved},
	{pattern: "GET /console/api/prompts/{id}", access: signedIn, handler: (*Console).savedPrompt},
	{pattern: "PUT /console/api/prompts/{id}", access: signedIn, handler: (*Console).changePrompt, body: maxSaved},
	{pattern: "DELETE /console/api/prompts/{id}", access: signedIn, handler: (*Console).deletePrompt},
	{pattern: "POST /models/{model}/warm", access: signedIn, handler: (*Console).warmModel},
	{pattern: "GET /tutorial", access: anyone, handler: (*Console).tutorialSearch},
	{pattern: "GET /tutorial/{page}", access: anyone, handler: (*Console).tutorialPage},
	{pattern: "GET /llms.txt", access: anyone, handler: (*Console).llms},
	{pattern: "GET /openapi.json", access: anyone, handler: (*Console).openAPI},
	{pattern: "GET /feedback", access: anyone, handler: (*Console).feedbackPage},
	{pattern: "POST /feedback", access: anyone, handler: (*Console).sendFeedback},

	{pattern: "GET /admin", access: admins, handler: (*Console).administration},
	{pattern: "GET /admin/accounts", access: admins, handler: (*Console).accountsPage},
	{pattern: "POST /admin/approve", access: admins, handler: (*Console).approve},
	{pattern: "POST /admin/decline", access: admins, handler: (*Console).decline},
	{pattern: "POST /admin/invite", access: admins, handler: (*Console).invite},
	{pattern: "GET /admin/accounts/{account}", access: admins, handler: (*Console).accountDetails},
	{pattern: "POST /admin/accounts/{account}", access: admins, handler: (*Console).setAccount},
	{pattern: "POST /admin/accounts/{account}/{change}", access: admins, handler: (*Console).changeAccount},
	{pattern: "GET /admin/keys/{key}", access: admins, handler: (*Console).anyKeyPage},
	{pattern: "POST /admin/keys/{key}", access: admins, handler: (*Console).setAnyKey},
	{pattern: "POST /admin/keys/{key}/{change}", access: admins, handler: (*Console).changeAnyKey},
	{pattern: "GET /admin/models", access: admins, handler: (*Console).watchModels},
	{pattern: "GET /admin/feedback", access: admins, handler: (*Console).feedbackReceived},
	{pattern: "GET /admin/audit", access: admins, handler: (*Console).audit},
}

// destination is a place in the header's navigation.
type destination struct {
	Name   string
	Path   string // of the page, which is also where the paths of its neighbours begin
	access access
}

var destinations = []destination{
	{"Dashboard", "/dashboard", signedIn},
	{"Usage", "/usage", signedIn},
	{"Workbench", "/workbench", signedIn},
	{"Tutorial", "/tutorial", anyone},
	{"Administration", "/admin", admins},
}
