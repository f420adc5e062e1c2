package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"basegate/budget/quota"
	"basegate/identity"
)

// newKeyForm is the form that creates a key.
type newKeyForm struct {
	Name        string
	Caps        capFields
	Concurrency concurrencyField
	Terms       keyTerms
	Account     quota.Caps // upper limits of the key's caps
	Problem     *problem   // why the key was not created; nil if it was not tried
}

// markedCaps are the form fields of caps with the problem that one of them may have caused.
type markedCaps struct {
	Caps    capFields
	Problem *problem
}

// CapFields returns the form fields of the caps.
func (f newKeyForm) CapFields() markedCaps { return markedCaps{f.Caps, f.Problem} }

// concurrencyField is the form field of a key's concurrency.
type concurrencyField struct {
	Value      string // digits, or empty for the configured default
	Max        int    // that the user can enter; 0: any number
	ByOperator bool   // the operator has set it
	Fixed      bool   // the user cannot change it
}

// concurrencyField returns the field of a key of an account, as the user of the request can fill it in.
func (c *Console) concurrencyField(r *request, a identity.Account, value string, k identity.Key) concurrencyField {
	f := concurrencyField{Value: value, ByOperator: k.Operator.Concurrency > 0}
	if !r.account.Admin {
		f.Fixed, f.Max = f.ByOperator, c.keys.MaxConcurrency(a)
	}
	return f
}

// createdKey is a new key with its secret, which is shown only once.
type createdKey struct {
	identity.Key
	Secret  string
	Rotated bool // the key is not new, but its secret is
	BaseURL string
	Model   string // for the example
}

func (c *Console) newKeyPage(r *request) error {
	return c.render(r, "new-key", "New key", newKeyForm{
		Account: r.account.Caps, Concurrency: c.concurrencyField(r, r.account, "", identity.Key{}),
		Terms: c.keyTerms(r, c.defaultKey()),
	})
}

// defaultKey returns a key that expires as configured.
func (c *Console) defaultKey() (k identity.Key) {
	if lifetime := c.settings.Load().KeyLifetime; lifetime > 0 {
		k.ExpiresAt = time.Now().Add(lifetime)
	}
	return k
}

func (c *Console) createKey(r *request) error {
	form := newKeyForm{
		Name: r.field("name"), Account: r.account.Caps, Caps: r.capFields(identity.Key{}),
		Concurrency: c.concurrencyField(r, r.account, r.field("concurrency"), identity.Key{}),
	}
	wanted := c.defaultKey()
	form.Terms = c.keyTerms(r, wanted)
	caps, err := r.caps()
	var concurrency int
	if err == nil {
		concurrency, err = parseConcurrency(form.Concurrency.Value)
	}
	if termsErr := readKeyTerms(r, &form.Terms, &wanted); err == nil { // also fills in the form to show again
		err = termsErr
	}
	var key identity.Key
	var secret string
	if err == nil {
		key, secret, err = c.keys.Create(r.ctx(), identity.Key{
			Email: r.account.Email, Name: form.Name, Concurrency: concurrency, Caps: caps,
			ExpiresAt: wanted.ExpiresAt, Models: wanted.Models,
		})
	}
	if p, ok := formProblem(err); ok {
		form.Problem = p
		return c.renderStatus(r, http.StatusUnprocessableEntity, "new-key", "New key", form)
	}
	if err != nil {
		return err
	}
	return c.redirectToSecret(r, newSecret{Key: key.ID, Secret: secret})
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

// ownKey returns the key in the path if it is the user's own. It does not reveal whether another user has this key.
func (c *Console) ownKey(r *request) (identity.Key, error) {
	k, err := c.keys.Get(r.ctx(), r.param("key"))
	if errors.Is(err, identity.ErrNoKey) || err == nil && k.AccountID != r.account.ID {
		return identity.Key{}, errNotFound
	}
	return k, err
}

// keyOptions returns the keys that a form offers: those of an account, or of all if it is empty, at most as many as are listed
// at a time, and the one that is chosen.
func (c *Console) keyOptions(ctx context.Context, account, chosen string) ([]identity.Key, error) {
	keys, err := c.keys.ListOf(ctx, account, 0)
	if err != nil || chosen == "" || slices.ContainsFunc(keys, func(k identity.Key) bool { return k.ID == chosen }) {
		return keys, err
	}
	k, err := c.keys.Get(ctx, chosen)
	switch {
	case errors.Is(err, identity.ErrNoKey) || err == nil && account != "" && k.AccountID != account:
		return keys, nil
	case err != nil:
		return nil, err
	default:
		return append(keys, k), nil
	}
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
	if r.param("action") == "rotate" {
		return c.rotateKey(r, k)
	}
	return c.changeKey(r, k, "/dashboard")
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
	return c.redirectDone(r, next, fmt.Sprintf("Key %s %s.", k.Name, keyActionsDone[r.param("action")]))
}

// keyActionsDone are the participles of keyActions.
var keyActionsDone = map[string]string{"pause": "paused", "resume": "resumed", "revoke": "revoked"}

// keyPage is the data of a key's page, for its owner or for an administrator.
type keyPage struct {
	keyRow
	Account     identity.Account // of the key
	Activity    keyActivity
	Concurrency concurrencyField
	Terms       keyTerms
	Own         bool     // the user can rotate the key: administrators do not see the secrets of others
	Problem     *problem // why the key was not changed; nil if it was not tried
	Name        string   // in the form
	Back        string   // path of the page that links here
	Action      string   // path that the forms are sent to
}

// CapFields returns the form fields of the caps.
func (p keyPage) CapFields() markedCaps { return markedCaps{p.Form, p.Problem} }

func (c *Console) ownKeyPage(r *request) error {
	k, err := c.ownKey(r)
	if err != nil {
		return err
	}
	return c.showKey(r, http.StatusOK, keyPage{
		keyRow: keyRow{Key: k, Form: newKeyCapFields(k)}, Account: r.account,
		Concurrency: c.concurrencyField(r, r.account, formatConcurrency(k.Concurrency), k),
		Terms:       c.keyTerms(r, k), Own: true,
		Name: k.Name, Back: "/dashboard", Action: "/keys/" + k.ID,
	})
}

// showKey renders a key's page with its usage.
func (c *Console) showKey(r *request, status int, p keyPage) error {
	var err error
	if p.LastUse, err = c.ledger.LastUse(r.ctx(), p.ID); err != nil {
		return err
	}
	if p.Activity, err = c.keyActivity(r.ctx(), p.Key, r.account.ID); err != nil {
		return err
	}
	p.gauges = newGauges(c.ledger.KeyTotals(p.ID), p.Caps)
	return c.renderStatus(r, status, "key", "Key "+p.Key.Name, p)
}

// formatConcurrency formats a concurrency as forms have it.
func formatConcurrency(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

func (c *Console) setOwnKey(r *request) error {
	k, err := c.ownKey(r)
	if err != nil {
		return err
	}
	page := keyPage{keyRow: keyRow{Key: k}, Account: r.account, Own: true, Back: "/dashboard", Action: "/keys/" + k.ID}
	return c.setKey(r, page)
}

// setKey saves the fields of a key's form. If one is invalid, it shows the form again. A form without a concurrency, which
// is not sent if the field is disabled, does not change it.
func (c *Console) setKey(r *request, page keyPage) error {
	page.Form = r.capFields(page.Key)
	page.Name = r.field("name")
	caps, err := r.caps()
	concurrency := page.Key.Concurrency
	page.Concurrency = c.concurrencyField(r, page.Account, formatConcurrency(concurrency), page.Key)
	if r.Request().PostForm.Has("concurrency") {
		page.Concurrency.Value = r.field("concurrency")
	}
	if err == nil {
		concurrency, err = parseConcurrency(page.Concurrency.Value)
	}
	wanted := page.Key
	page.Terms = c.keyTerms(r, page.Key)
	if termsErr := readKeyTerms(r, &page.Terms, &wanted); err == nil { // also fills in the form to show again
		err = termsErr
	}
	if err == nil {
		_, err = c.keys.Set(r.ctx(), page.ID, func(f *identity.Key) {
			f.Name, f.Caps, f.Concurrency = page.Name, caps, concurrency
			f.ExpiresAt, f.Models = wanted.ExpiresAt, wanted.Models
		})
	}
	if p, ok := formProblem(err); ok {
		page.Problem = p
		return c.showKey(r, http.StatusUnprocessableEntity, page)
	}
	if err != nil {
		return err
	}
	return c.redirectDone(r, page.Back, "Key "+page.Name+" saved.")
}

// Curl returns a shell command that requests a completion with the key.
func (k createdKey) Curl() string {
	return fmt.Sprintf("curl -s %s/completions \\\n  -H \"Authorization: Bearer %s\" -H \"Content-Type: application/json\" \\\n"+
		"  -d '{\"model\": %q, \"prompt\": \"The capital of France is\", \"max_tokens\": 16}'",
		strings.TrimSuffix(k.BaseURL, "/"), k.Secret, k.Model)
}
