package console

import (
	"context"
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

func (*Console) administration(v *visit) error { return v.redirect("/admin/accounts") }

func (c *Console) accountsPage(v *visit) error {
	ctx := v.r.Context()
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
	return c.render(v, "admin-accounts", "Accounts", page)
}

// invited is the page that shows an invitation, this once.
type invited struct {
	Email   string
	Address string
}

// invite answers with the invitation itself and no redirect, since its address is not to be kept anywhere.
func (c *Console) invite(v *visit) error { return c.showInvitation(v, v.field("email")) }

func (c *Console) showInvitation(v *visit, email string) error {
	a, token, err := c.accounts.Invite(v.r.Context(), email)
	if isRefusal(err) {
		return invalid(sentence(err))
	}
	if err != nil {
		return err
	}
	address := c.settings.Load().PublicURL.JoinPath("invitation", token).String()
	return c.render(v, "admin-invited", "Invitation", invited{a.Email, address})
}

func (c *Console) approve(v *visit) error {
	email := v.field("email")
	if _, err := c.accounts.Enable(v.r.Context(), email); err != nil {
		return refuse(err)
	}
	return c.showInvitation(v, email)
}

func (c *Console) decline(v *visit) error {
	if err := c.accounts.Decline(v.r.Context(), v.field("email")); err != nil {
		return refuse(err)
	}
	return v.redirect("/admin/accounts")
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
func (c *Console) foundAccount(v *visit) (identity.Account, error) {
	all, err := c.accounts.List(v.r.Context())
	if err != nil {
		return identity.Account{}, err
	}
	for _, a := range all {
		if a.ID == v.r.PathValue("account") {
			return a, nil
		}
	}
	return identity.Account{}, errNoPage
}

func (c *Console) accountDetails(v *visit) error {
	a, err := c.foundAccount(v)
	if err != nil {
		return err
	}
	return c.showAccount(v, http.StatusOK, accountDetails{Account: a, Form: newCapFields(a.Caps)})
}

func (c *Console) showAccount(v *visit, status int, page accountDetails) error {
	var err error
	if page.Keys, err = c.keyRows(v.r.Context(), page.ID); err != nil {
		return err
	}
	page.standing = newStanding(c.ledger.AccountTotals(page.ID), page.Caps)
	page.Self = page.ID == v.account.ID
	return c.renderStatus(v, status, "admin-account", page.Email, page)
}

func (c *Console) setAccount(v *visit) error {
	a, err := c.foundAccount(v)
	if err != nil {
		return err
	}
	page := accountDetails{Account: a, Form: capFields{v.field("month"), v.field("day"), v.field("input"), v.field("output")}}
	caps, err := v.caps()
	if err == nil {
		_, err = c.accounts.Set(v.r.Context(), a.Email, func(f *identity.AccountFields) {
			f.Name, f.Caps = v.field("name"), caps
			f.Admin = v.field("admin") != "" || a.ID == v.account.ID // nobody shuts themselves out
		})
		err = refuse(err)
	}
	if p, ok := asProblem(err); ok {
		page.Problem = p.text
		return c.showAccount(v, p.status, page)
	}
	if err != nil {
		return err
	}
	return v.redirect("/admin/accounts/" + a.ID)
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

func (c *Console) changeAccount(v *visit) error {
	a, err := c.foundAccount(v)
	if err != nil {
		return err
	}
	what := v.r.PathValue("change")
	if what == "invite" {
		return c.showInvitation(v, a.Email)
	}
	change, ok := accountChanges[what]
	if !ok {
		return errNoPage
	}
	if what == "disable" && a.ID == v.account.ID {
		return invalid("This is your own account. Another administrator has to disable it.")
	}
	if err := change(c, v.r.Context(), a.Email); err != nil {
		return refuse(err)
	}
	return v.redirect("/admin/accounts/" + a.ID)
}

// anyKey finds a key of any account by its id, with the page that an administrator changes it on.
func (c *Console) anyKey(v *visit) (keyPage, error) {
	id := v.r.PathValue("key")
	all, err := c.keys.List(v.r.Context())
	if err != nil {
		return keyPage{}, err
	}
	for _, k := range all {
		if k.ID != id {
			continue
		}
		a, err := c.accounts.Find(v.r.Context(), k.Email)
		return keyPage{
			keyRow: keyRow{Key: k, Form: newCapFields(k.Caps)}, Account: a.Caps, Concurrency: concurrencyField(k),
			Back: "/admin/accounts/" + k.AccountID, Action: "/admin/keys/" + k.ID,
		}, err
	}
	return keyPage{}, errNoPage
}

func (c *Console) anyKeyPage(v *visit) error {
	page, err := c.anyKey(v)
	if err != nil {
		return err
	}
	return c.keyPage(v, http.StatusOK, page)
}

func (c *Console) setAnyKey(v *visit) error {
	page, err := c.anyKey(v)
	if err != nil {
		return err
	}
	return c.setKey(v, page)
}

func (c *Console) changeAnyKey(v *visit) error {
	page, err := c.anyKey(v)
	if err != nil {
		return err
	}
	return c.changeKey(v, page.Key, page.Back)
}

func (c *Console) feedbackReceived(v *visit) error {
	all, err := c.received(v.r.Context(), maxFeedbackShown)
	if err != nil {
		return err
	}
	known, err := c.readNames(v.r.Context(), v.account)
	if err != nil {
		return err
	}
	for i := range all {
		all[i].Email = known.account(all[i].AccountID)
	}
	return c.render(v, "admin-feedback", "Feedback received", all)
}

func (c *Console) audit(v *visit) error {
	entries, err := c.auditLog.List(v.r.Context(), maxChangesShown)
	if err != nil {
		return err
	}
	return c.render(v, "admin-audit", "Audit log", entries)
}
