// Package console serves the web console: accounts and their keys, usage, the workbench, the tutorial and
// administration. Pages are rendered on the server and work without scripts, except the workbench. A page loads nothing
// from another origin, and stores nothing in the browser but the session cookie, the cookie by which accounts know the
// browser, what a page shows once after a form (once.go), the choices of a theme and of shortcuts, presets of parameters,
// and drafts of the workbench until the user signs out.
//
// A page is a row in the table of routes.go, a handler and a template. What all routes have in common is in
// security.go (browser security headers, cross-origin requests), session.go (the account that is signed in, the access
// check) and problem.go (errors and panics); templates.go renders pages in the common layout.
//
// The rules themselves are left to other packages: identity, budget and fleet decide what a user may change, and the
// API's server answers the completions of the workbench.
package console

import (
	"context"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"basegate/batch"
	"basegate/budget"
	"basegate/budget/admission"
	"basegate/budget/cluster"
	"basegate/budget/quota"
	"basegate/budget/usage"
	"basegate/console/history"
	"basegate/console/prompts"
	"basegate/console/sso"
	"basegate/database"
	"basegate/fleet"
	"basegate/gateway/config"
	"basegate/gateway/notify"
	"basegate/identity"
	"basegate/internal/ratelimit"
)

// Settings are the part of the configuration that a reload may change.
type Settings struct {
	PublicURL      *url.URL                   // of the gateway, for browsers and clients
	ClientAddress  func(*http.Request) string // returns the address of a request's client
	KeyLifetime    time.Duration              // after which a new key expires unless chosen otherwise; 0: never
	AccessRequests bool                       // users without an account can request one
	NewAccount     quota.Caps                 // of accounts that are invited or approved, unless the form says otherwise
	Provider       *sso.Provider              // with which users can sign in beside passwords; nil if there is none
	Configuration  []config.Setting           // of the gateway, for administrators
}

// Deps are the parts of the gateway that a Console uses. All are required, except Gateways and Turns.
type Deps struct {
	Keys     *identity.Keys
	Accounts *identity.Accounts
	Sessions *identity.Sessions
	AuditLog *identity.AuditLog
	Ledger   Ledger
	Usage    *usage.Store
	Fleet    *fleet.Fleet
	History  *history.History
	DB       *database.DB // stores feedback
	Prompts  *prompts.Store
	Feedback func(notify.Feedback) // sends feedback to the operators
	// TestWebhook sends a test message of an administrator to the webhook of notifications or of feedback.
	TestWebhook func(ctx context.Context, channel, by string) error
	Mail        Mailer // for invitations and replies
	Log         *zap.Logger
	Notices     func() []string // returns what administrators should know
	Completer   Completer
	Batches     *batch.Service
	Gateways    func(ctx context.Context) ([]cluster.Gateway, error) // lists those on the database; nil if there is only this one
	Turns       map[string]*admission.Turns                          // for which accounts wait, by the work
}

// Console serves the pages. It is safe for concurrent use.
type Console struct {
	Deps

	settings    atomic.Pointer[Settings]
	downloads   sync.Map      // account → *atomic.Int32: those that run
	patience    time.Duration // with the clients of downloads
	rates       batchRates
	tokenTexts  tokenTexts
	clock       func() time.Time
	formLimiter *ratelimit.Limiter // by network, for clients that are not signed in
	crossOrigin *http.CrossOriginProtection
	templates   templates
}

// New returns a Console that serves no route before Mount.
func New(s Settings, d Deps) *Console {
	c := &Console{
		Deps: d, patience: downloadPatience, clock: time.Now,
		formLimiter: ratelimit.New(anonymousForms), crossOrigin: newCrossOriginProtection(s.PublicURL, d.Log),
		templates: parseTemplates(),
	}
	c.settings.Store(&s)
	return c
}

// Reload replaces the settings. Forms are still accepted from the origin of the public URL that New got.
func (c *Console) Reload(s Settings) { c.settings.Store(&s) }

// Ledger has the counters of keys and accounts. A budget.Ledger is one on SQLite, a cluster.Ledger one that several
// gateways share on PostgreSQL.
type Ledger interface {
	// Recent returns the counters of a payer, at most a second old, with the caps that it has in p.
	Recent(ctx context.Context, p budget.Payer) budget.Balance

	// RecentOf is Recent of several payers, with one query at most.
	RecentOf(ctx context.Context, payers []budget.Payer) []budget.Balance

	// ReadBalance returns the counters and caps of a payer at the moment, or an error with what is known of them.
	ReadBalance(ctx context.Context, p budget.Payer) (budget.Balance, error)

	// LastUse returns when a key was last used, and from which address.
	LastUse(ctx context.Context, key string) (budget.Use, error)
}
