package console

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"basegate/identity"
	"basegate/quota"
)

// newKeyForm is the form that creates a key.
type newKeyForm struct {
	Name        string
	Caps        capFields
	Concurrency string
	Account     quota.Caps // upper limits of the key's caps
	Problem     string
}

// createdKey is a new key with its secret, which is shown only once.
type createdKey struct {
	identity.Key
	Secret  string
	BaseURL string
	Model   string // for the example
}

func (c *Console) newKeyPage(r *request) error {
	return c.render(r, "new-key", "New key", newKeyForm{Account: r.account.Caps})
}

// createKey responds with the secret instead of a redirect, because the secret is stored nowhere.
func (c *Console) createKey(r *request) error {
	form := newKeyForm{
		Name: r.field("name"), Concurrency: r.field("concurrency"), Account: r.account.Caps,
		Caps: r.capFields(),
	}
	reject := func(text string) error {
		form.Problem = text
		return c.renderStatus(r, http.StatusUnprocessableEntity, "new-key", "New key", form)
	}
	caps, err := r.caps()
	if err != nil {
		return reject(err.Error())
	}
	concurrency, err := parseConcurrency(form.Concurrency)
	if err != nil {
		return reject(err.Error())
	}
	key, secret, err := c.keys.Create(r.ctx(), identity.NewKey{
		Email: r.account.Email, Name: form.Name, Concurrency: concurrency, Caps: caps,
	})
	if isInputError(err) {
		return reject(inputErrorText(err))
	}
	if err != nil {
		return err
	}
	created := createdKey{Key: key, Secret: secret, BaseURL: c.settings.Load().PublicURL.JoinPath("v1").String()}
	if models := c.fleet.Models(); len(models) > 0 {
		created.Model = models[0].ID()
	}
	return c.render(r, "key-created", "New key", created)
}

// parseConcurrency parses the form field of the concurrency; empty is 0, for the configured one.
func parseConcurrency(text string) (int, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return 0, invalid("Concurrency is how many requests run at a time, 1 or more, or nothing for what is configured.")
	}
	return int(n), nil
}

// ownKey returns the key in the path if it is the user's own. It does not reveal whether another user has this key.
func (c *Console) ownKey(r *request) (identity.Key, error) {
	id := r.param("key")
	keys, err := c.keys.ListOf(r.ctx(), r.account.ID)
	if err != nil {
		return identity.Key{}, err
	}
	for _, k := range keys {
		if k.ID == id {
			return k, nil
		}
	}
	return identity.Key{}, errNotFound
}

// keyActions are the changes of a key's state, by their names in paths.
var keyActions = map[string]func(*identity.Keys, context.Context, string) (identity.Key, error){
	"pause":  (*identity.Keys).Pause,
	"resume": (*identity.Keys).Resume,
	"revoke": (*identity.Keys).Revoke,
}

func (c *Console) changeOwnKey(r *request) error {
	k, err := c.ownKey(r)
	if err != nil {
		return err
	}
	return c.changeKey(r, k, "/dashboard#keys")
}

// changeKey pauses, resumes or revokes a key, and redirects to a page.
func (c *Console) changeKey(r *request, k identity.Key, next string) error {
	change, ok := keyActions[r.param("action")]
	if !ok {
		return errNotFound
	}
	if _, err := change(c.keys, r.ctx(), k.ID); err != nil {
		return asInvalid(err)
	}
	return r.redirect(next)
}

// keyPage is the data of a key's page, for its owner or for an administrator.
type keyPage struct {
	keyRow
	Account     quota.Caps
	Concurrency string
	Problem     string
	Back        string // path of the page that links here
	Action      string // path that the forms are sent to
}

func (c *Console) ownKeyPage(r *request) error {
	k, err := c.ownKey(r)
	if err != nil {
		return err
	}
	return c.showKey(r, http.StatusOK, keyPage{
		keyRow: keyRow{Key: k, Form: newCapFields(k.Caps)}, Account: r.account.Caps,
		Concurrency: concurrencyField(k), Back: "/dashboard", Action: "/keys/" + k.ID,
	})
}

// showKey renders a key's page with its usage.
func (c *Console) showKey(r *request, status int, p keyPage) error {
	var err error
	if p.LastUse, err = c.ledger.LastUse(r.ctx(), p.ID); err != nil {
		return err
	}
	p.gauges = newGauges(c.ledger.KeyTotals(p.ID), p.Caps)
	return c.renderStatus(r, status, "key", "Key "+p.Name, p)
}

// concurrencyField formats a key's concurrency as the form has it.
func concurrencyField(k identity.Key) string {
	if k.Concurrency == 0 {
		return ""
	}
	return strconv.Itoa(k.Concurrency)
}

func (c *Console) setOwnKey(r *request) error {
	k, err := c.ownKey(r)
	if err != nil {
		return err
	}
	page := keyPage{keyRow: keyRow{Key: k}, Account: r.account.Caps, Back: "/dashboard", Action: "/keys/" + k.ID}
	return c.setKey(r, page)
}

// setKey saves the fields of a key's form. If one is invalid, it shows the form again.
func (c *Console) setKey(r *request, page keyPage) error {
	page.Form = r.capFields()
	page.Concurrency = r.field("concurrency")
	name := r.field("name")
	caps, err := r.caps()
	var concurrency int
	if err == nil {
		concurrency, err = parseConcurrency(page.Concurrency)
	}
	if err != nil {
		page.Problem = err.Error()
		return c.showKey(r, http.StatusUnprocessableEntity, page)
	}
	_, err = c.keys.Set(r.ctx(), page.ID, func(f *identity.KeyFields) {
		f.Name, f.Caps, f.Concurrency = name, caps, concurrency
	})
	if isInputError(err) {
		page.Problem = inputErrorText(err)
		return c.showKey(r, http.StatusUnprocessableEntity, page)
	}
	if err != nil {
		return err
	}
	return r.redirect(page.Back)
}

// Curl returns a shell command that requests a completion with the key.
func (k createdKey) Curl() string {
	return fmt.Sprintf("curl -s %s/completions \\\n  -H \"Authorization: Bearer %s\" -H \"Content-Type: application/json\" \\\n"+
		"  -d '{\"model\": %q, \"prompt\": \"The capital of France is\", \"max_tokens\": 16}'",
		strings.TrimSuffix(k.BaseURL, "/"), k.Secret, k.Model)
}
