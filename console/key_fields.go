package console

import (
	"slices"
	"time"

	"basegate/identity"
)

// expiryField is the form field of the day, UTC, at whose start a key expires.
type expiryField struct {
	Value    string    // a date, or empty for never
	Earliest string    // that the field offers
	Limit    time.Time // the latest that the operator allows; zero: any
}

// newExpiryField returns the field of a key that expires at a time.
func newExpiryField(at, limit time.Time) expiryField {
	f := expiryField{Earliest: time.Now().UTC().AddDate(0, 0, 1).Format(time.DateOnly), Limit: limit}
	if !at.IsZero() {
		f.Value = at.UTC().Format(time.DateOnly)
	}
	return f
}

// parseExpiry parses the field. A date that is that of the present expiry keeps its time of day.
func parseExpiry(text string, present time.Time) (time.Time, error) {
	if text == newExpiryField(present, time.Time{}).Value {
		return present, nil
	}
	if text == "" {
		return time.Time{}, nil
	}
	day, err := time.Parse(time.DateOnly, text)
	if err != nil {
		return time.Time{}, invalid("Expiry: enter a date such as 2027-01-31, or leave the field blank for no expiry.").on("expires")
	}
	if day.Before(time.Now()) {
		return time.Time{}, invalid("Expiry: enter a date in the future. To stop a key now, pause or revoke it.").on("expires")
	}
	return day, nil
}

// modelChoice is one model that the form of a key offers.
type modelChoice struct {
	ID      string
	Checked bool
	Denied  bool // the operator does not allow the model
}

// modelChoices returns the configured models and those of the key's list that are not configured any more.
func (c *Console) modelChoices(chosen, limit identity.ModelList) []modelChoice {
	var ids []string
	for _, m := range c.fleet.Models() {
		ids = append(ids, m.ID())
	}
	for _, id := range chosen.IDs() {
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	choices := make([]modelChoice, len(ids))
	for i, id := range ids {
		choices[i] = modelChoice{ID: id, Checked: !chosen.Any() && chosen.Allows(id), Denied: !limit.Allows(id)}
	}
	return choices
}

// parseModels returns the models that are checked in a form; none means all that the operator allows.
func parseModels(r *request, choices []modelChoice, limit identity.ModelList) (identity.ModelList, error) {
	checked := r.Request().PostForm["models"]
	if len(checked) == 0 {
		return limit, nil
	}
	for _, id := range checked {
		if !slices.ContainsFunc(choices, func(c modelChoice) bool { return c.ID == id }) {
			return identity.ModelList{}, invalid("There is no model " + id + ".").on("models")
		}
	}
	return identity.NewModelList(checked)
}

// keyTerms are the form fields of a key's expiry and models.
type keyTerms struct {
	Expires expiryField
	Models  []modelChoice
}

// keyTerms returns the fields of a key, with the limits that the operator has set for the user of the request.
func (c *Console) keyTerms(r *request, k identity.Key) keyTerms {
	limits := k.Operator
	if r.account.Admin {
		limits = identity.Limits{}
	}
	return keyTerms{
		Expires: newExpiryField(k.ExpiresAt, limits.ExpiresAt), Models: c.modelChoices(k.Models, limits.Models),
	}
}

// readKeyTerms parses the fields into a key, and into terms to show the form again. A field that the form does not have
// leaves the key as it is. A form with models has the field models_shown, because browsers do not send empty checkboxes.
func readKeyTerms(r *request, terms *keyTerms, k *identity.Key) (err error) {
	limits := k.Operator.Models
	if r.account.Admin {
		limits = identity.ModelList{}
	}
	form := r.Request().PostForm
	if form.Has("expires") {
		terms.Expires.Value = r.field("expires")
	}
	if form.Has("models_shown") {
		for i := range terms.Models {
			terms.Models[i].Checked = slices.Contains(form["models"], terms.Models[i].ID)
		}
		if k.Models, err = parseModels(r, terms.Models, limits); err != nil {
			return asInvalid(err)
		}
	}
	if form.Has("expires") {
		if k.ExpiresAt, err = parseExpiry(terms.Expires.Value, k.ExpiresAt); err != nil {
			return err
		}
	}
	return nil
}
