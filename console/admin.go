package console

import (
	"context"
	"errors"
	"net/http"

	"basegate/budget/quota"
	"basegate/identity"
)

// maxAccessRequestsShown limits a list that only grows.
const maxAccessRequestsShown = 100

// accountsPage is the data of the page of all accounts and all requests for access.
type accountsPage struct {
	Requests     []identity.AccessRequest // the oldest
	MoreRequests int                      // that are not shown
	Accounts     []accountRow
	InviteEmail  string     // in the form
	Caps         []capField // in the form
	Admin        bool       // in the form
	Problem      *problem   // why no invitation was created; nil if it was not tried
}

type accountRow struct {
	identity.Account
	gauges
	Keys int // number of keys that are not revoked
}

func (*Console) adminHome(r *request) error { return r.redirect("/admin/overview") }

func (c *Console) adminAccountsPage(r *request) error {
	return c.showAccounts(r, http.StatusOK, accountsPage{Caps: fieldsOf(c.settings.Load().NewAccount, quota.Caps{})})
}

func (c *Console) showAccounts(r *request, status int, page accountsPage) (err error) {
	ctx := r.ctx()
	var open int
	if page.Requests, open, err = c.Accounts.AccessRequests(ctx, maxAccessRequestsShown); err != nil {
		return err
	}
	page.MoreRequests = max(open-len(page.Requests), 0)
	accounts, err := c.Accounts.List(ctx)
	if err != nil {
		return err
	}
	count, err := c.Keys.Count(ctx)
	if err != nil {
		return err
	}
	for _, a := range accounts {
		if a.State == identity.AccountPending {
			continue
		}
		page.Accounts = append(page.Accounts, accountRow{a, newGauges(c.accountCounters(ctx, a.ID), a.Caps), count[a.ID]})
	}
	return c.renderStatus(r, status, "admin-accounts", "Accounts", page)
}

func (c *Console) invite(r *request) error { return c.admit(r, false) }

func (c *Console) approve(r *request) error { return c.admit(r, true) }

// admit invites a user, and enables the account first if that is wanted. A new account gets the budgets and the role of the form.
func (c *Console) admit(r *request, enable bool) error {
	page := accountsPage{Caps: r.capFields(quota.Caps{}), Admin: r.field("admin") != ""}
	email := r.field("email")
	if !enable {
		page.InviteEmail = email
	}
	var caps quota.Caps
	err := r.readCaps(&caps)
	if err == nil {
		err = c.createInvitation(r, email, enable, func(a *identity.Account) { a.Caps, a.Admin = caps, page.Admin })
	}
	if p, ok := formProblem(err); ok {
		page.Problem = p
		return c.showAccounts(r, p.status, page)
	}
	return err
}

// createInvitation creates an invitation and redirects to the page that shows it once. An account that is new, or whose request for
// access is open, gets first terms.
func (c *Console) createInvitation(r *request, email string, enable bool, terms func(*identity.Account)) error {
	before, err := c.Accounts.Find(r.ctx(), email)
	isNew := errors.Is(err, identity.ErrNoAccount) || err == nil && before.State == identity.AccountPending
	if enable {
		if _, err := c.Accounts.Enable(r.ctx(), email); err != nil {
			return err
		}
	}
	a, token, err := c.Accounts.Invite(r.ctx(), email)
	if err != nil {
		return err
	}
	if isNew && terms != nil {
		if _, err := c.Accounts.Set(r.ctx(), a.Email, terms); err != nil {
			return err
		}
	}
	mail := c.mailInvitation(r, a.Email, c.invitationURL(token))
	return c.redirectToSecret(r, newSecret{Email: a.Email, Secret: token, Mail: mail})
}

func (c *Console) invitationURL(token string) string {
	return c.settings.Load().PublicURL.JoinPath("invitation", token).String()
}

func (c *Console) decline(r *request) error {
	email := r.field("email")
	err := c.Accounts.Decline(r.ctx(), email)
	return c.redirectDone(r, err, "/admin/accounts", "Request of "+email+" declined.")
}

type adminAccount struct {
	identity.Account
	gauges
	Caps           []capField // in the form
	MaxConcurrency string     // form field of Account.Concurrency
	Keys           []keyRow
	KeyPager       pager
	Spark          *sparkline // of the last days; nil if it could not be read in time
	Audit          []auditRow // the latest changes of the account and its keys, and those that it has made
	Self           bool       // the account is the administrator's own
	Name           string     // in the form
	Admin          bool       // in the form
	Problem        *problem   // why the account was not changed; nil if it was not tried
}

// accountOf returns the account with an id, or errNotFound.
func (c *Console) accountOf(ctx context.Context, id string) (identity.Account, error) {
	a, err := c.Accounts.Find(ctx, c.Keys.Email(id))
	if errors.Is(err, identity.ErrNoAccount) {
		err = errNotFound
	}
	return a, err
}

func (c *Console) pathAccount(r *request) (identity.Account, error) {
	return c.accountOf(r.ctx(), r.param("account"))
}

// accountOptions returns the accounts among which the user can choose: all for an administrator, and none for others.
func (c *Console) accountOptions(r *request) ([]identity.Account, error) {
	if !r.account.Admin {
		return nil, nil
	}
	return c.Accounts.List(r.ctx())
}

func (c *Console) adminAccountPage(r *request, a identity.Account) error {
	return c.showAccount(r, http.StatusOK, adminAccount{
		Account: a, Caps: fieldsOf(a.Caps, quota.Caps{}), MaxConcurrency: formatConcurrency(a.Concurrency),
		Name: a.Name, Admin: a.Admin,
	})
}

func (c *Console) showAccount(r *request, status int, page adminAccount) error {
	var err error
	if page.Keys, page.Spark, page.KeyPager, err = c.keyRows(r, page.ID); err != nil {
		return err
	}
	entries, _, err := c.AuditLog.Find(r.ctx(), identity.AuditFilter{Search: page.Email}, "", maxAccountAudit)
	if err != nil {
		return err
	}
	if page.Audit, err = c.auditRows(r, entries); err != nil {
		return err
	}
	page.gauges = newGauges(c.accountCounters(r.ctx(), page.ID), page.Account.Caps)
	page.Self = page.ID == r.account.ID
	return c.renderStatus(r, status, "admin-account", page.Email, page)
}

func (c *Console) setAccount(r *request, a identity.Account) error {
	page := adminAccount{Account: a, Caps: r.capFields(quota.Caps{}), MaxConcurrency: r.field("concurrency"), Name: r.field("name")}
	page.Admin = r.field("admin") != "" || a.ID == r.account.ID // administrators cannot take the rights from themselves
	caps := a.Caps
	err := r.readCaps(&caps)
	var concurrency int
	if err == nil {
		concurrency, err = parseConcurrency(page.MaxConcurrency)
	}
	if err == nil {
		_, err = c.Accounts.Set(r.ctx(), a.Email, func(f *identity.Account) {
			f.Name, f.Caps, f.Admin, f.Concurrency = page.Name, caps, page.Admin, concurrency
		})
	}
	if p, ok := formProblem(err); ok {
		page.Problem = p
		return c.showAccount(r, p.status, page)
	}
	return c.redirectDone(r, err, "/admin/accounts/"+a.ID, "Saved.")
}

// accountActions are the changes of an account that need no form, by their names in paths.
var accountActions = map[string]struct {
	change func(c *Console, ctx context.Context, email string) error
	done   string
}{
	"disable": {func(c *Console, ctx context.Context, email string) error {
		_, err := c.Accounts.Disable(ctx, email)
		return err
	}, "Account disabled."},
	"enable": {func(c *Console, ctx context.Context, email string) error {
		_, err := c.Accounts.Enable(ctx, email)
		return err
	}, "Account enabled."},
	"sign-out": {func(c *Console, ctx context.Context, email string) error {
		return c.Sessions.SignOutEverywhere(ctx, email)
	}, "All sessions of the account are signed out."},
}

func (c *Console) changeAccount(r *request, a identity.Account) error {
	if r.param("action") == "invite" {
		return c.createInvitation(r, a.Email, false, nil)
	}
	action, ok := accountActions[r.param("action")]
	if !ok {
		return errNotFound
	}
	if r.param("action") == "disable" && a.ID == r.account.ID {
		return invalid("This is your own account. Another administrator has to disable it.")
	}
	return c.redirectDone(r, action.change(c, r.ctx(), a.Email), "/admin/accounts/"+a.ID, action.done)
}
