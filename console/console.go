// Package console serves the web console: accounts and their keys, usage, the workbench, the tutorial and
// administration. Pages are rendered on the server and work without scripts, except the workbench. A page loads nothing
// from another origin, and stores nothing in the browser but the session cookie, the cookie by which accounts know the
// browser, what a page shows once after a form (once.go), the choices of a theme and of shortcuts, presets of parameters,
// and drafts of the workbench until the user signs out.
//
// A page is a row in the table of routes.go, a handler and a template. The middleware common to all routes is in
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
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"basegate/batch"
	"basegate/budget/admission"
	"basegate/budget/cluster"
	"basegate/budget/usage"
	"basegate/console/history"
	"basegate/console/prompts"
	"basegate/console/sso"
	"basegate/database"
	"basegate/docs"
	"basegate/fleet"
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
	Provider       *sso.Provider              // with which users can sign in beside passwords; nil if there is none
	Configuration  []ConfigValue              // of the gateway, for administrators
}

// Deps are the parts of the gateway that a Console uses. All are required, except Mail, Warm, Notices, Gateways and Turns.
type Deps struct {
	Keys      *identity.Keys
	Accounts  *identity.Accounts
	Sessions  *identity.Sessions
	AuditLog  *identity.AuditLog
	Ledger    Ledger
	Usage     *usage.Store
	Fleet     *fleet.Fleet
	History   *history.History
	DB        *database.DB // stores feedback
	Prompts   *prompts.Store
	Feedback  func(notify.Feedback) // sends feedback to the operators
	Mail      Mailer                // for invitations; nil if none are mailed
	Log       *zap.Logger
	Warm      Warmer          // nil if models cannot be started from the console
	Notices   func() []string // returns what administrators should know; nil if there is nothing
	Completer Completer
	Batches   *batch.Service
	Gateways  func(ctx context.Context) ([]cluster.Gateway, error) // lists those on the database; nil if there is only this one
	Turns     map[string]*admission.Turns                          // for which accounts wait, by the work
}

// Console serves the pages. It is safe for concurrent use.
type Console struct {
	settings    atomic.Pointer[Settings]
	keys        *identity.Keys
	accounts    *identity.Accounts
	sessions    *identity.Sessions
	auditLog    *identity.AuditLog
	ledger      Ledger
	usages      *usage.Store
	downloads   downloads
	patience    time.Duration // with the clients of downloads
	fleet       *fleet.Fleet
	history     *history.History
	db          *database.DB
	prompts     *prompts.Store
	warm        Warmer
	notices     func() []string
	completer   Completer
	batches     *batch.Service
	gateways    func(context.Context) ([]cluster.Gateway, error)
	turns       map[string]*admission.Turns
	rates       batchRates
	tokenTexts  tokenTexts
	modelStats  modelActivities
	past        pastActivity
	log         *zap.Logger
	clock       func() time.Time
	onFeedback  func(notify.Feedback)
	mail        Mailer
	formLimiter *ratelimit.Limiter // by network, for clients that are not signed in
	crossOrigin *http.CrossOriginProtection
	templates   templates
	tutorial    []docs.Page
	assets      assets
}

// New returns a Console that serves no route before Mount.
func New(s Settings, d Deps) *Console {
	c := &Console{
		keys: d.Keys, accounts: d.Accounts, sessions: d.Sessions, auditLog: d.AuditLog,
		ledger: d.Ledger, usages: d.Usage, downloads: downloads{running: map[string]int{}}, patience: downloadPatience,
		fleet: d.Fleet, history: d.History, db: d.DB, prompts: d.Prompts, warm: d.Warm, notices: d.Notices, completer: d.Completer, log: d.Log,
		batches: d.Batches, gateways: d.Gateways, turns: d.Turns,
		clock: time.Now, onFeedback: d.Feedback, mail: d.Mail, assets: readAssets(),
		crossOrigin: newCrossOriginProtection(s.PublicURL, d.Log), tutorial: readTutorial(),
		formLimiter: ratelimit.New(anonymousForms),
	}
	c.settings.Store(&s)
	c.templates = parseTemplates(c.assets)
	return c
}

// Reload replaces the settings. Forms are still accepted from the origin of the public URL that New got.
func (c *Console) Reload(s Settings) { c.settings.Store(&s) }
