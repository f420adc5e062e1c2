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

// newKeyForm is the page on which a key is made.
type newKeyForm struct {
	Name        string
	Caps        capFields
	Concurrency string
	Account     quota.Caps // what the key's caps may not exceed
	Problem     string
}

// madeKey is the page that shows a secret, this once.
type madeKey struct {
	identity.Key
	Secret  string
	BaseURL string
	Model   string // for the example
}

func (c *Console) newKeyPage(r *request) error {
	return c.render(r, "new-key", "New key", newKeyForm{Account: r.account.Caps})
}

// createKey answers with the secret itself and no redirect, since the secret is not to be kept anywhere.
func (c *Console) createKey(r *request) error {
	form := newKeyForm{
		Name: r.field("name"), Concurrency: r.field("concurrency"), Account: r.account.Caps,
		Caps: capFields{r.field("month"), r.field("day"), r.field("input"), r.field("output")},
	}
	refused := func(text string) error {
		form.Problem = text
		return c.renderStatus(r, http.StatusUnprocessableEntity, "new-key", "New key", form)
	}
	caps, err := r.caps()
	if err != nil {
		return refused(err.Error())
	}
	concurrency, err := parseConcurrency(form.Concurrency)
	if err != nil {
		return refused(err.Error())
	}
	key, secret, err := c.keys.Create(r.ctx(), identity.NewKey{
		Email: r.account.Email, Name: form.Name, Concurrency: concurrency, Caps: caps,
	})
	if isRefusal(err) {
		return refused(sentence(err))
	}
	if err != nil {
		return err
	}
	made := madeKey{Key: key, Secret: secret, BaseURL: c.settings.Load().PublicURL.JoinPath("v1").String()}
	if all := c.fleet.Models(); len(all) > 0 {
		made.Model = all[0].ID()
	}
	return c.render(r, "made-key", "New key", made)
}

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

// ownKey finds a key of the visitor's by its id. Of others' keys nothing is told, not even that they exist.
func (c *Console) ownKey(r *request) (identity.Key, error) {
	id := r.param("key")
	owned, err := c.keys.ListOf(r.ctx(), r.account.ID)
	if err != nil {
		return identity.Key{}, err
	}
	for _, k := range owned {
		if k.ID == id {
			return k, nil
		}
	}
	return identity.Key{}, errNotFound
}

// keyChange is something that is done to a key.
type keyChange func(*identity.Keys, context.Context, string) (identity.Key, error)

var keyChanges = map[string]keyChange{
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

// changeKey pauses, resumes or revokes, and goes on to a page.
func (c *Console) changeKey(r *request, k identity.Key, to string) error {
	change, ok := keyChanges[r.param("change")]
	if !ok {
		return errNotFound
	}
	if _, err := change(c.keys, r.ctx(), k.ID); err != nil {
		if isRefusal(err) {
			return invalid(sentence(err))
		}
		return err
	}
	return r.redirect(to)
}

// keyPage is a key whose caps are changed, or that is about to be revoked.
type keyPage struct {
	keyRow
	Account     quota.Caps
	Concurrency string
	Problem     string
	Back        string // where the page came from
	Action      string // where its forms go
}

func (c *Console) ownKeyPage(r *request) error {
	k, err := c.ownKey(r)
	if err != nil {
		return err
	}
	return c.keyPage(r, http.StatusOK, keyPage{
		keyRow: keyRow{Key: k, Form: newCapFields(k.Caps)}, Account: r.account.Caps,
		Concurrency: concurrencyField(k), Back: "/dashboard", Action: "/keys/" + k.ID,
	})
}

func (c *Console) keyPage(r *request, status int, p keyPage) error {
	var err error
	if p.LastUse, err = c.ledger.LastUse(r.ctx(), p.ID); err != nil {
		return err
	}
	p.standing = newStanding(c.ledger.KeyTotals(p.ID), p.Caps)
	return c.renderStatus(r, status, "key", "Key "+p.Name, p)
}

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

// setKey takes over the fields of a key's form, or shows it again with what is wrong.
func (c *Console) setKey(r *request, page keyPage) error {
	page.Form = capFields{r.field("month"), r.field("day"), r.field("input"), r.field("output")}
	page.Concurrency = r.field("concurrency")
	name := r.field("name")
	caps, err := r.caps()
	var concurrency int
	if err == nil {
		concurrency, err = parseConcurrency(page.Concurrency)
	}
	if err != nil {
		page.Problem = err.Error()
		return c.keyPage(r, http.StatusUnprocessableEntity, page)
	}
	_, err = c.keys.Set(r.ctx(), page.ID, func(f *identity.KeyFields) {
		f.Name, f.Caps, f.Concurrency = name, caps, concurrency
	})
	if isRefusal(err) {
		page.Problem = sentence(err)
		return c.keyPage(r, http.StatusUnprocessableEntity, page)
	}
	if err != nil {
		return err
	}
	return r.redirect(page.Back)
}

// Curl is a line that asks for a completion with the key.
func (m madeKey) Curl() string {
	return fmt.Sprintf("curl -s %s/completions \\\n  -H \"Authorization: Bearer %s\" -H \"Content-Type: application/json\" \\\n"+
		"  -d '{\"model\": %q, \"prompt\": \"The capital of France is\", \"max_tokens\": 16}'",
		strings.TrimSuffix(m.BaseURL, "/"), m.Secret, m.Model)
}
