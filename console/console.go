// Package console is what people see in a browser: accounts and their keys, usage, administration. Pages are rendered
// here and work without scripts; the scripts beside them only make some of them alive. Nothing comes from another
// origin, and nothing is stored in a browser but the session's cookie and the choice of light or dark.
//
// A page is a row in the table of routes.go, a handler, and a template. What all have in common is done once: who is
// signed in and whether that is enough (visit.go), the defences of a browser (security.go), the layout (pages.go).
package console

import (
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"basegate/budget"
	"basegate/database"
	"basegate/docs"
	"basegate/fleet"
	"basegate/identity"
)

// Settings are what a new configuration may change.
type Settings struct {
	PublicURL       *url.URL                   // what browsers and clients call the gateway
	ClientAddress   func(*http.Request) string // where a request came from
	FeedbackWebhook *url.URL                   // told of feedback; nil: nobody is
}

// Deps are what a Console shows and changes. All are needed, but Warm.
type Deps struct {
	Keys      *identity.Keys
	Accounts  *identity.Accounts
	Sessions  *identity.Sessions
	AuditLog  *identity.AuditLog
	Ledger    *budget.Ledger
	Fleet     *fleet.Fleet
	DB        *database.DB      // of what the console keeps itself
	Transport http.RoundTripper // to the feedback's webhook
	Log       *zap.Logger
	Warm      Warmer // nil: models cannot be warmed from here
	Completer Completer
}

// Console serves the pages. It is safe for concurrent use.
type Console struct {
	settings atomic.Pointer[Settings]
	keys     *identity.Keys
	accounts *identity.Accounts
	sessions *identity.Sessions
	auditLog *identity.AuditLog
	ledger   *budget.Ledger
	fleet    *fleet.Fleet
	db       *database.DB
	warm     Warmer
	complete Completer
	texts    tokenTexts
	log      *zap.Logger
	clock    func() time.Time
	client   *http.Client
	forms    formLimiter // of clients that are not signed in
	pages    pages
	tutorial []docs.Page
	assets   assets
	handler  http.Handler
}

// New makes a Console.
func New(s Settings, p Deps) *Console {
	c := &Console{
		keys: p.Keys, accounts: p.Accounts, sessions: p.Sessions, auditLog: p.AuditLog,
		ledger: p.Ledger, fleet: p.Fleet, db: p.DB, warm: p.Warm, complete: p.Completer, log: p.Log,
		clock: time.Now, client: &http.Client{Transport: p.Transport}, assets: readAssets(),
	}
	c.settings.Store(&s)
	c.pages = readPages(c.assets)
	c.tutorial = readTutorial()
	mux := http.NewServeMux()
	for _, r := range routes {
		mux.Handle(r.pattern, c.serve(r))
	}
	mux.Handle("GET "+staticPath, c.assets)
	mux.Handle("/", c.serve(route{access: anyone, handler: (*Console).notFound}))
	c.handler = c.defend(mux)
	return c
}

// Reload takes over other settings.
func (c *Console) Reload(s Settings) { c.settings.Store(&s) }

// Handler serves every page.
func (c *Console) Handler() http.Handler { return c.handler }

// Mount registers the pages on e, and everything beside them, so that a path below a page that does not exist is
// refused with a page.
func (c *Console) Mount(e *echo.Echo) {
	handler := echo.WrapHandler(c.handler)
	e.Any("/", handler)
	for _, first := range firstSegments() {
		e.Any("/"+first, handler)
		e.Any("/"+first+"/*", handler)
	}
}

// firstSegments are what the paths of the routes begin with.
func firstSegments() []string {
	seen := map[string]bool{"": true}
	var all []string
	for _, r := range append([]route{{pattern: "GET " + staticPath}}, routes...) {
		_, path, _ := strings.Cut(r.pattern, " ")
		first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
		if !seen[first] && !strings.HasPrefix(first, "{") {
			seen[first] = true
			all = append(all, first)
		}
	}
	return all
}
