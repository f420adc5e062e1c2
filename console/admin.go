package console

import (
	"context"
	"errors"
	"net/http"
	"net/url"

	"basegate/identity"
)

// maxAccessRequestsShown limits a list that only grows.
const maxAccessRequestsShown = 100

// accountsPage is the data of the page of all accounts and all requests for access.
type accountsPage struct {
	Requests     []accessRequestRow // the oldest
	MoreRequests int                // that are not shown
	Accounts     []accountRow
	InviteEmail  string   // in the form
	Problem      *problem // why no invitation was created; nil if it was not tried
}

// accessRequestRow is one request for access of the list.
type accessRequestRow struct {
	identity.AccessRequest
	OfNetwork int // number of the requests shown that came from its network
}

// accountRow is one account of the list.
type accountRow struct {
	identity.Account
	gauges
	Keys int // number of keys that are not revoked
}

// adminHome redirects to the first page of the administration.
func (*Console) adminHome(r *request) error { return r.redirect("/admin/overview") }

func (c *Console) adminAccountsPage(r *request) error {
	return c.showAccounts(r, http.StatusOK, accountsPage{})
}

// showAccounts renders the page of all accounts.
func (c *Console) showAccounts(r *request, status int, page accountsPage) (err error) {
	ctx := r.ctx()
	if page.Requests, page.MoreRequests, err = c.accessRequestRows(ctx); err != nil {
		return err
	}
	accounts, err := c.accounts.List(ctx)
	if err != nil {
		return err
	}
	count, err := c.keys.Count(ctx)
	if err != nil {
		return err
	}
	for _, a := range accounts {
		if a.State == identity.AccountPending {
			continue
		}
		page.Accounts = append(page.Accounts, accountRow{a, newGauges(c.ledger.AccountTotals(a.ID), a.Caps), count[a.ID]})
	}
	return c.renderStatus(r, status, "admin-accounts", "Accounts", page)
}

// accessRequestRows returns the oldest open requests for access, and the number of the others.
func (c *Console) accessRequestRows(ctx context.Context) (rows []accessRequestRow, more int, err error) {
	oldest, open, err := c.accounts.AccessRequests(ctx, maxAccessRequestsShown)
	if err != nil {
		return nil, 0, err
	}
	ofNetwork := map[string]int{}
	for _, a := range oldest {
		ofNetwork[a.Network]++
	}
	for _, a := range oldest {
		row := accessRequestRow{AccessRequest: a}
		if a.Network != "" {
			row.OfNetwork = ofNetwork[a.Network]
		}
		rows = append(rows, row)
	}
	return rows, max(open-len(oldest), 0), nil
}

// createdInvitation is a new invitation, which is shown only once.
type createdInvitation struct {
	Email string
	URL   string
	Mail  string // whether it was mailed: mailOff, mailSent or mailFailed
}

func (c *Console) invite(r *request) error {
	email := r.field("email")
	err := c.createInvitation(r, email)
	if p, ok := errors.AsType[*problem](err); ok {
		return c.showAccounts(r, p.status, accountsPage{InviteEmail: email, Problem: p})
	}
	return err
}

// createInvitation creates an invitation and redirects to the page that shows it once.
func (c *Console) createInvitation(r *request, email string) error {
	a, token, err := c.accounts.Invite(r.ctx(), email)
	if err != nil {
		return asInvalid(err)
	}
	link := c.settings.Load().PublicURL.JoinPath("invitation", token).String()
	return c.redirectToSecret(r, newSecret{Email: a.Email, Secret: token, Mail: c.mailInvitation(r, a.Email, link)})
}

func (c *Console) approve(r *request) error {
	email := r.field("email")
	if _, err := c.accounts.Enable(r.ctx(), email); err != nil {
		return asInvalid(err)
	}
	return c.createInvitation(r, email)
}

func (c *Console) decline(r *request) error {
	email := r.field("email")
	if err := c.accounts.Decline(r.ctx(), email); err != nil {
		return asInvalid(err)
	}
	return c.redirectDone(r, "/admin/accounts", "Request of "+email+" declined.")
}

func (c *Console) declineNetwork(r *request) error {
	network := r.field("network")
	n, err := c.accounts.DeclineNetwork(r.ctx(), network)
	if err != nil {
		return asInvalid(err)
	}
	return c.redirectDone(r, "/admin/accounts", formatCount(n, "request", "requests")+" from "+network+" declined.")
}

// adminAccount is the data of an account's page for administrators.
type adminAccount struct {
	identity.Account
	gauges
	Form           capFields
	MaxConcurrency string // form field of Account.Concurrency
	Keys           []keyRow
	KeyPager       keyPager
	Spark          *sparkline // of the last days; nil if it could not be read in time
	Audit          []auditRow // the latest changes of the account and its keys, and those that it has made
	Self           bool       // the account is the administrator's own
	Name           string     // in the form
	Admin          bool       // in the form
	Problem        *problem   // why the account was not changed; nil if it was not tried
}

// CapFields returns the form fields of the caps.
func (p adminAccount) CapFields() markedCaps { return markedCaps{p.Form, p.Problem} }

// pathAccount returns the account in the path.
func (c *Console) pathAccount(r *request) (identity.Account, error) {
	all, err := c.accounts.List(r.ctx())
	if err != nil {
		return identity.Account{}, err
	}
	for _, a := range all {
		if a.ID == r.param("account") {
			return a, nil
		}
	}
	return identity.Account{}, errNotFound
}

func (c *Console) adminAccountPage(r *request) error {
	a, err := c.pathAccount(r)
	if err != nil {
		return err
	}
	return c.showAccount(r, http.StatusOK, adminAccount{
		Account: a, Form: newCapFields(a.Caps), MaxConcurrency: formatConcurrency(a.Concurrency),
		Name: a.Name, Admin: a.Admin,
	})
}

// showAccount renders an account's page with its keys and its usage.
func (c *Console) showAccount(r *request, status int, page adminAccount) error {
	var err error
	if page.Keys, page.KeyPager, err = c.keyRows(r, page.ID, "/admin/accounts/"+url.PathEscape(page.ID)); err != nil {
		return err
	}
	activity, err := c.dashboardActivity(r.ctx(), page.ID, page.Keys)
	if err != nil {
		return err
	}
	if activity != nil {
		page.Spark = &activity.Spark
		for i := range page.Keys {
			page.Keys[i].Spark = activity.Keys[page.Keys[i].ID]
		}
	}
	entries, _, err := c.auditLog.Find(r.ctx(), identity.AuditFilter{Search: page.Email}, identity.AuditCursor{}, maxAccountAudit)
	if err != nil {
		return err
	}
	known, err := c.readNames(r.ctx(), r.account)
	if err != nil {
		return err
	}
	page.Audit = auditRows(entries, known)
	page.gauges = newGauges(c.ledger.AccountTotals(page.ID), page.Caps)
	page.Self = page.ID == r.account.ID
	return c.renderStatus(r, status, "admin-account", page.Email, page)
}

func (c *Console) setAccount(r *request) error {
	a, err := c.pathAccount(r)
	if err != nil {
		return err
	}
	page := adminAccount{Account: a, Form: r.capFields(identity.Key{}), MaxConcurrency: r.field("concurrency")}
	page.Name = r.field("name")
	page.Admin = r.field("admin") != "" || a.ID == r.account.ID // administrators cannot take the rights from themselves
	caps, err := r.caps()
	var concurrency int
	if err == nil {
		concurrency, err = parseConcurrency(page.MaxConcurrency)
	}
	if err == nil {
		_, err = c.accounts.Set(r.ctx(), a.Email, func(f *identity.Account) {
			f.Name, f.Caps, f.Admin, f.Concurrency = page.Name, caps, page.Admin, concurrency
		})
		err = asInvalid(err)
	}
	if p, ok := errors.AsType[*problem](err); ok {
		page.Problem = p
		return c.showAccount(r, p.status, page)
	}
	if err != nil {
		return err
	}
	return c.redirectDone(r, "/admin/accounts/"+a.ID, words["saved"])
}

// accountActions are the changes of an account that need no form, by their names in paths.
var accountActions = map[string]func(c *Console, ctx context.Context, email string) error{
	"disable": func(c *Console, ctx context.Context, email string) error {
		_, err := c.accounts.Disable(ctx, email)
		return err
	},
	"enable": func(c *Console, ctx context.Context, email string) error {
		_, err := c.accounts.Enable(ctx, email)
		return err
	},
	"sign-out": func(c *Console, ctx context.Context, email string) error {
		return c.sessions.SignOutEverywhere(ctx, email)
	},
}

// accountActionsDone confirm accountActions.
var accountActionsDone = map[string]string{
	"disable": "Account disabled.", "enable": "Account enabled.", "sign-out": "All sessions of the account are signed out.",
}

func (c *Console) changeAccount(r *request) error {
	a, err := c.pathAccount(r)
	if err != nil {
		return err
	}
	action := r.param("action")
	if action == "invite" {
		return c.createInvitation(r, a.Email)
	}
	change, ok := accountActions[action]
	if !ok {
		return errNotFound
	}
	if action == "disable" && a.ID == r.account.ID {
		return invalid("This is your own account. Another administrator has to disable it.")
	}
	if err := change(c, r.ctx(), a.Email); err != nil {
		return asInvalid(err)
	}
	return c.redirectDone(r, "/admin/accounts/"+a.ID, accountActionsDone[action])
}

// pathKeyPage returns the page of the key in the path, which may be any account's.
func (c *Console) pathKeyPage(r *request) (keyPage, error) {
	k, err := c.keys.Get(r.ctx(), r.param("key"))
	if errors.Is(err, identity.ErrNoKey) {
		return keyPage{}, errNotFound
	}
	if err != nil {
		return keyPage{}, err
	}
	a, err := c.accounts.Find(r.ctx(), k.Email)
	return keyPage{
		keyRow: keyRow{Key: k, Form: newKeyCapFields(k)}, Account: a,
		Concurrency: c.concurrencyField(r, a, formatConcurrency(k.Concurrency), k),
		Terms:       c.keyTerms(r, k), Name: k.Name,
		Back: "/admin/accounts/" + k.AccountID, Action: "/admin/keys/" + k.ID,
	}, err
}

func (c *Console) adminKeyPage(r *request) error {
	page, err := c.pathKeyPage(r)
	if err != nil {
		return err
	}
	return c.showKey(r, http.StatusOK, page)
}

func (c *Console) adminSetKey(r *request) error {
	page, err := c.pathKeyPage(r)
	if err != nil {
		return err
	}
	return c.setKey(r, page)
}

func (c *Console) adminChangeKey(r *request) error {
	page, err := c.pathKeyPage(r)
	if err != nil {
		return err
	}
	return c.changeKey(r, page.Key, page.Back)
}
