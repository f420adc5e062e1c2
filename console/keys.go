package console

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"basegate/identity"
)

// keyForm is the form of a new key, or of the settings of one.
type keyForm struct {
	Account     identity.Account // of the key; its caps are the upper limits of the key's
	Name        string
	Caps        []capField
	Concurrency concurrencyField
	Terms       keyTerms
	MayMakeKeys bool     // the key may make others
	MayAdd      bool     // the key may add adapters
	Problem     *problem // why the key was not created or changed; nil if it was not tried
}

// keyForm returns the form of a key of an account, as the user of the request can fill it in.
func (c *Console) keyForm(r *request, a identity.Account, k identity.Key) keyForm {
	f := keyForm{
		Account: a, Name: k.Name, Caps: fieldsOf(k.Caps, k.Operator.Caps), Terms: c.keyTerms(r, k),
		Concurrency: concurrencyField{Value: formatConcurrency(k.Concurrency), ByOperator: k.Operator.Concurrency > 0},
		MayMakeKeys: c.Keys.HasRight(k), MayAdd: k.Adapters,
	}
	if !r.account.Admin {
		f.Concurrency.Fixed, f.Concurrency.Max = f.Concurrency.ByOperator, c.Keys.MaxConcurrency(a)
	}
	return f
}

type concurrencyField struct {
	Value      string // digits, or empty for the configured default
	Max        int    // that the user can enter; 0: any number
	ByOperator bool   // the operator has set it
	Fixed      bool   // the user cannot change it
}

// readKey reads a form into a key, and into the form to show it again. A form without a concurrency, which is not sent if the
// field is disabled, does not change it.
func (r *request) readKey(f *keyForm, k *identity.Key) (err error) {
	f.Name, f.Caps = r.field("name"), r.capFields(k.Operator.Caps)
	if r.Request().PostForm.Has("concurrency") {
		f.Concurrency.Value = r.field("concurrency")
	}
	if form := r.Request().PostForm; form.Has("children_shown") && form.Has("children") != f.MayMakeKeys {
		f.MayMakeKeys = !f.MayMakeKeys
		k.Children = sql.NullBool{Bool: f.MayMakeKeys, Valid: true}
	}
	if form := r.Request().PostForm; form.Has("adapters_shown") {
		f.MayAdd = form.Has("adapters")
		k.Adapters = f.MayAdd
	}
	termsErr := r.readKeyTerms(&f.Terms, k)
	k.Name = f.Name
	if err := r.readCaps(&k.Caps); err != nil {
		return err
	}
	if k.Concurrency, err = parseConcurrency(f.Concurrency.Value); err != nil {
		return err
	}
	return termsErr
}

// createdKey is a new key with its secret, which is shown only once.
type createdKey struct {
	identity.Key
	Secret  string
	Rotated bool   // the key is not new, but its secret is
	BaseURL string // of the API
	Model   string // for the example; empty if there is none
}

func (c *Console) apiURL() string { return c.settings.Load().PublicURL.JoinPath("v1").String() }

// showSecret shows the new secret of a key, this once.
func (c *Console) showSecret(r *request, created createdKey) error {
	created.BaseURL = c.apiURL()
	for _, m := range c.Fleet.Models() {
		if created.Model == "" && created.Models.Allows(m.ID()) {
			created.Model = m.ID()
		}
	}
	title := "New key"
	if created.Rotated {
		title = "New secret"
	}
	return c.render(r, "key-created", title, created)
}

func (c *Console) newKeyPage(r *request) error {
	return c.render(r, "new-key", "New key", c.keyForm(r, r.account, c.defaultKey()))
}

// defaultKey returns a key that expires as configured.
func (c *Console) defaultKey() (k identity.Key) {
	if lifetime := c.settings.Load().KeyLifetime; lifetime > 0 {
		k.ExpiresAt = time.Now().Add(lifetime)
	}
	return k
}

func (c *Console) createKey(r *request) error {
	k := c.defaultKey()
	form := c.keyForm(r, r.account, k)
	err := r.readKey(&form, &k)
	var secret string
	if err == nil {
		k, secret, err = c.Keys.Create(r.ctx(), identity.Key{
			Email: r.account.Email, Name: k.Name, Concurrency: k.Concurrency, Caps: k.Caps, ExpiresAt: k.ExpiresAt, Models: k.Models,
			Children: k.Children,
		})
	}
	if p, ok := formProblem(err); ok {
		form.Problem = p
		return c.renderStatus(r, p.status, "new-key", "New key", form)
	}
	if err != nil {
		return err
	}
	return c.redirectToSecret(r, newSecret{Key: k.ID, Secret: secret})
}

// parseConcurrency parses the form field of the concurrency; empty is 0, for the configured one.
func parseConcurrency(text string) (int, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return 0, invalid("Concurrent requests: enter a whole number of 1 or more, or leave the field blank for the server default.").on("concurrency")
	}
	return int(n), nil
}

func formatConcurrency(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// keyOf returns a key of an account, or of any if it is empty. The error is identity.ErrNoKey if the key is another's.
func (c *Console) keyOf(ctx context.Context, id, account string) (identity.Key, error) {
	k, err := c.Keys.Get(ctx, id)
	if err == nil && account != "" && k.AccountID != account {
		return identity.Key{}, identity.ErrNoKey
	}
	return k, err
}

// keyOptions returns the keys that a form offers: those of an account, or of all if it is empty, at most as many as are listed
// at a time, and the one that is chosen.
func (c *Console) keyOptions(ctx context.Context, account, chosen string) ([]identity.Key, error) {
	keys, err := c.Keys.ListOf(ctx, account, 0)
	if err != nil || chosen == "" || slices.ContainsFunc(keys, func(k identity.Key) bool { return k.ID == chosen }) {
		return keys, err
	}
	k, err := c.keyOf(ctx, chosen, account)
	if errors.Is(err, identity.ErrNoKey) {
		return keys, nil
	}
	return append(keys, k), err
}

// keyPage is the data of a key's page, for its owner or for an administrator.
type keyPage struct {
	keyRow
	keyForm
	Activity keyActivity
	Made     []identity.Key // by this one, the newest
	KeysPath string         // before the id of a key in the path of its page
	Own      bool           // the user can rotate the key: administrators do not see the secrets of others
	Back     string         // path of the page that links here
	Action   string         // path that the forms are sent to
}

// pathKey returns the page of the key in the path: of the user's own, or of any below /admin. It does not reveal whether
// another user has this key.
func (c *Console) pathKey(r *request) (keyPage, error) {
	page := keyPage{Own: !r.isAdministration(), Back: "/dashboard", Action: "/keys/"}
	owner, account := r.account.ID, r.account
	if !page.Own {
		owner = ""
	}
	k, err := c.keyOf(r.ctx(), r.param("key"), owner)
	switch {
	case errors.Is(err, identity.ErrNoKey):
		return page, errNotFound
	case err == nil && !page.Own:
		page.Back, page.Action = "/admin/accounts/"+k.AccountID, "/admin/keys/"
		account, err = c.Accounts.Find(r.ctx(), k.Email)
	}
	page.Key, page.keyForm, page.KeysPath = k, c.keyForm(r, account, k), page.Action
	page.Action += k.ID
	return page, err
}

func (c *Console) keyPage(r *request, page keyPage) error {
	return c.showKey(r, http.StatusOK, page)
}

// showKey shows a key and its usage.
func (c *Console) showKey(r *request, status int, p keyPage) (err error) {
	if p.LastUse, err = c.Ledger.LastUse(r.ctx(), p.ID); err != nil {
		return err
	}
	if p.Activity, err = c.keyActivity(r.ctx(), p.Key, r.account.ID); err != nil {
		return err
	}
	if p.Made, err = c.Keys.Children(r.ctx(), p.ID, "", "", identity.MaxListed); err != nil {
		return err
	}
	p.gauges = newGauges(c.keyCounters(r.ctx(), p.ID), p.Key.Caps)
	return c.renderStatus(r, status, "key", "Key "+p.Key.Name, p)
}

func (c *Console) setKey(r *request, page keyPage) error {
	wanted := page.Key
	err := r.readKey(&page.keyForm, &wanted)
	if err == nil {
		_, err = c.Keys.Set(r.ctx(), page.ID, func(f *identity.Key) {
			f.Name, f.Caps, f.Concurrency = wanted.Name, wanted.Caps, wanted.Concurrency
			f.ExpiresAt, f.Models, f.Children, f.Adapters = wanted.ExpiresAt, wanted.Models, wanted.Children, wanted.Adapters
		})
	}
	if p, ok := formProblem(err); ok {
		page.Problem = p
		return c.showKey(r, p.status, page)
	}
	return c.redirectDone(r, err, page.Back, "Key "+wanted.Name+" saved.")
}

// keyActions are the changes of a key's state, by their names in paths.
var keyActions = map[string]struct {
	change func(*identity.Keys, context.Context, string) (identity.Key, error)
	done   string
}{
	"pause":  {(*identity.Keys).Pause, "paused"},
	"resume": {(*identity.Keys).Resume, "resumed"},
	"revoke": {(*identity.Keys).Revoke, "revoked"},
}

// changeKey pauses, resumes or revokes a key, or gives it a new secret.
func (c *Console) changeKey(r *request, page keyPage) error {
	action, ok := keyActions[r.param("action")]
	switch {
	case ok:
		_, err := action.change(c.Keys, r.ctx(), page.ID)
		return c.redirectDone(r, err, page.Back, fmt.Sprintf("Key %s %s.", page.Key.Name, action.done))
	case page.Own && r.param("action") == "rotate":
		return c.rotateKey(r, page.ID)
	}
	return errNotFound
}

// graceTimes are the grace times that the form of a rotation offers, by their values in the form.
var graceTimes = map[string]time.Duration{
	"0": 0, "1h": time.Hour, "24h": identity.DefaultGrace, "168h": 7 * 24 * time.Hour, "720h": 30 * 24 * time.Hour,
}

func (c *Console) rotateKey(r *request, id string) error {
	grace, ok := graceTimes[r.field("grace")]
	if !ok {
		return invalid("Choose how long the current secret keeps working.")
	}
	_, secret, err := c.Keys.Rotate(r.ctx(), id, grace)
	if err != nil {
		return err
	}
	return c.redirectToSecret(r, newSecret{Key: id, Secret: secret, Rotated: true})
}
