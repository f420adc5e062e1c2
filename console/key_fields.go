package console

import (
	"slices"
	"time"

	"basegate/identity"
)

// keyTerms are the form fields of a key's expiry and models.
type keyTerms struct {
	Expires string // the day, UTC, at whose start the key expires; empty for never
	Models  []modelChoice
	Limits  identity.Limits // that the operator has set for the user of the request
}

type modelChoice struct {
	ID      string
	Checked bool
	Denied  bool // the operator does not allow the model
}

// keyTerms returns the fields of a key: the models are the configured ones, and those of the key's list that are not configured
// any more.
func (c *Console) keyTerms(r *request, k identity.Key) keyTerms {
	terms := keyTerms{Expires: formatExpiry(k.ExpiresAt)}
	if !r.account.Admin {
		terms.Limits = k.Operator
	}
	var ids []string
	for _, m := range c.Fleet.Models() {
		ids = append(ids, m.ID())
	}
	for _, id := range k.Models.IDs() {
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	for _, id := range ids {
		terms.Models = append(terms.Models, modelChoice{id, !k.Models.Any() && k.Models.Allows(id), !terms.Limits.Models.Allows(id)})
	}
	return terms
}

func formatExpiry(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.UTC().Format(time.DateOnly)
}

// readKeyTerms reads the fields into a key, and into terms to show the form again. A field that the form does not have
// leaves the key as it is. A form with models has the field models_shown, because browsers do not send empty checkboxes; none
// that is checked means all that the operator allows.
func (r *request) readKeyTerms(terms *keyTerms, k *identity.Key) (err error) {
	form := r.Request().PostForm
	if form.Has("expires") {
		terms.Expires = r.field("expires")
	}
	if checked := form["models"]; form.Has("models_shown") {
		k.Models = terms.Limits.Models
		for i := range terms.Models {
			terms.Models[i].Checked = slices.Contains(checked, terms.Models[i].ID)
		}
		for _, id := range checked {
			if !slices.ContainsFunc(terms.Models, func(m modelChoice) bool { return m.ID == id }) {
				return invalid("There is no model " + id + ".").on("models")
			}
		}
		if len(checked) > 0 {
			if k.Models, err = identity.NewModelList(checked); err != nil {
				return err
			}
		}
	}
	if terms.Expires == formatExpiry(k.ExpiresAt) { // it keeps its time of day
		return nil
	}
	if terms.Expires == "" {
		k.ExpiresAt = time.Time{}
		return nil
	}
	k.ExpiresAt, err = time.Parse(time.DateOnly, terms.Expires)
	switch {
	case err != nil:
		return invalid("Expiry: enter a date such as 2027-01-31, or leave the field blank for no expiry.").on("expires")
	case k.ExpiresAt.Before(time.Now()):
		return invalid("Expiry: enter a date in the future. To stop a key now, pause or revoke it.").on("expires")
	}
	return nil
}
