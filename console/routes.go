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
	{pattern: "GET /dashboard", access: signedIn, handler: (*Console).dashboard},
}

// destination is a place in the header's navigation.
type destination struct {
	Name   string
	Path   string // of the page, which is also where the paths of its neighbours begin
	access access
}

var destinations = []destination{
	{"Dashboard", "/dashboard", signedIn},
}
