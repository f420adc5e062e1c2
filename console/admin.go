package console

import (
	"context"
	"errors"
	"net/http"

	"basegate/identity"
)

// How much of what only grows an administrator sees.
const (
	maxFeedbackShown = 200
	maxChangesShown  = 500
)

// accountsPage is all accounts, and who asks for one.
type accountsPage struct {
	Requests []identity.AccessRequest
	Accounts []accountRow
}

// accountRow is an account as the list shows it.
type accountRow struct {
	identity.Account
	standing
	Keys int // that are not revoked
}

func (*Console) administration(r *request) error { return r.redirect("/admin/accounts") }

func (c *Console) accountsPage(r *request) error {
	ctx := r.ctx()
	var page accountsPage
	var err error
	if page.Requests, err = c.accounts.AccessRequests(ctx); err != nil {
		return err
	}
	accounts, err := c.accounts.List(ctx)
	if err != nil {
		return err
	}
	all, err := c.keys.List(ctx)
	if err != nil {
		return err
	}
	count := map[string]int{}
	for _, k := range all {
		if k.State != identity.KeyRevoked {
			count[k.AccountID]++
		}
	}
	for _, a := range accounts {
		if a.State == identity.AccountPending {
			continue
		}
		page.Accounts = append(page.Accounts, accountRow{a, newStanding(c.ledger.AccountTotals(a.ID), a.Caps), count[a.ID]})
	}
	return c.render(r, "admin-accounts", "Accounts", page)
}

// invited is the page that shows an invitation, this once.
type invited struct {
	Email   string
	Address string
}

// invite answers with the invitation itself and no redirect, since its address is not to be kept anywhere.
func (c *Console) invite(r *request) error { return c.showInvitation(r, r.field("email")) }

func (c *Console) showInvitation(r *request, email string) error {
	a, token, err := c.accounts.Invite(r.ctx(), email)
	if isRefusal(err) {
		return invalid(sentence(err))
	}
	if err != nil {
		return err
	}
	address := c.settings.Load().PublicURL.JoinPath("invitation", token).String()
	return c.render(r, "admin-invited", "Invitation", invited{a.Email, address})
}

func (c *Console) approve(r *request) error {
	email := r.field("email")
	if _, err := c.accounts.Enable(r.ctx(), email); err != nil {
		return refuse(err)
	}
	return c.showInvitation(r, email)
}

func (c *Console) decline(r *request) error {
	if err := c.accounts.Decline(r.ctx(), r.field("email")); err != nil {
		return refuse(err)
	}
	return r.redirect("/admin/accounts")
}

// refuse makes a page of an error that is about what was entered.
func refuse(err error) error {
	if isRefusal(err) {
		return invalid(sentence(err))
	}
	return err
}

// accountDetails is one account, with all that an administrator may change of it.
type accountDetails struct {
	identity.Account
	standing
	Form    capFields
	Keys    []keyRow
	Self    bool // it is the administrator's own
	Problem string
}

// foundAccount finds the account that a page is about.
func (c *Console) foundAccount(r *request) (identity.Account, error) {
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

func (c *Console) accountDetails(r *request) error {
	a, err := c.foundAccount(r)
	if err != nil {
		return err
	}
	return c.showAccount(r, http.StatusOK, accountDetails{Account: a, Form: newCapFields(a.Caps)})
}

func (c *Console) showAccount(r *request, status int, page accountDetails) error {
	var err error
	if page.Keys, err = c.keyRows(r.ctx(), page.ID); err != nil {
		return err
	}
	page.standing = newStanding(c.ledger.AccountTotals(page.ID), page.Caps)
	page.Self = page.ID == r.account.ID
	return c.renderStatus(r, status, "admin-account", page.Email, page)
}

func (c *Console) setAccount(r *request) error {
	a, err := c.foundAccount(r)
	if err != nil {
		return err
	}
	page := accountDetails{Account: a, Form: capFields{r.field("month"), r.field("day"), r.field("input"), r.field("output")}}
	caps, err := r.caps()
	if err == nil {
		_, err = c.accounts.Set(r.ctx(), a.Email, func(f *identity.AccountFields) {
			f.Name, f.Caps = r.field("name"), caps
			f.Admin = r.field("admin") != "" || a.ID == r.account.ID // nobody shuts themselves out
		})
		err = refuse(err)
	}
	if p, ok := errors.AsType[*problem](err); ok {
		page.Problem = p.text
		return c.showAccount(r, p.status, page)
	}
	if err != nil {
		return err
	}
	return r.redirect("/admin/accounts/" + a.ID)
}

// accountChanges are what is done to an account without a form.
var accountChanges = map[string]func(c *Console, ctx context.Context, email string) error{
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

func (c *Console) changeAccount(r *request) error {
	a, err := c.foundAccount(r)
	if err != nil {
		return err
	}
	what := r.param("change")
	if what == "invite" {
		return c.showInvitation(r, a.Email)
	}
	change, ok := accountChanges[what]
	if !ok {
		return errNotFound
	}
	if what == "disable" && a.ID == r.account.ID {
		return invalid("This is your own account. Another administrator has to disable it.")
	}
	if err := change(c, r.ctx(), a.Email); err != nil {
		return refuse(err)
	}
	return r.redirect("/admin/accounts/" + a.ID)
}

// anyKey finds a key of any account by its id, with the page that an administrator changes it on.
func (c *Console) anyKey(r *request) (keyPage, error) {
	id := r.param("key")
	all, err := c.keys.List(r.ctx())
	if err != nil {
		return keyPage{}, err
	}
	for _, k := range all {
		if k.ID != id {
			continue
		}
		a, err := c.accounts.Find(r.ctx(), k.Email)
		return keyPage{
			keyRow: keyRow{Key: k, Form: newCapFields(k.Caps)}, Account: a.Caps, Concurrency: concurrencyField(k),
			Back: "/admin/accounts/" + k.AccountID, Action: "/admin/keys/" + k.ID,
		}, err
	}
	return keyPage{}, errNotFound
}

func (c *Console) anyKeyPage(r *request) error {
	page, err := c.anyKey(r)
	if err != nil {
		return err
	}
	return c.keyPage(r, http.StatusOK, page)
}

func (c *Console) setAnyKey(r *request) error {
	page, err := c.anyKey(r)
	if err != nil {
		return err
	}
	return c.setKey(r, page)
}

func (c *Console) changeAnyKey(r *request) error {
	page, err := c.anyKey(r)
	if err != nil {
		return err
	}
	return c.changeKey(r, page.Key, page.Back)
}

func (c *Console) feedbackReceived(r *request) error {
	all, err := c.received(r.ctx(), maxFeedbackShown)
	if err != nil {
		return err
	}
	known, err := c.readNames(r.ctx(), r.account)
	if err != nil {
		return err
	}
	for i := range all {
		all[i].Email = known.account(all[i].AccountID)
	}
	return c.render(r, "admin-feedback", "Feedback received", all)
}

func (c *Console) audit(r *request) error {
	entries, err := c.auditLog.List(r.ctx(), maxChangesShown)
	if err != nil {
		return err
	}
	return c.render(r, "admin-audit", "Audit log", entries)
}
