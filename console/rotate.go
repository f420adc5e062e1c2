package console

import (
	"time"

	"basegate/identity"
)

// graceTimes are the grace times that the form of a rotation offers, by their values in the form.
var graceTimes = map[string]time.Duration{
	"0": 0, "1h": time.Hour, "24h": identity.DefaultGrace, "168h": 7 * 24 * time.Hour, "720h": 30 * 24 * time.Hour,
}

// rotateKey gives a key a new secret.
func (c *Console) rotateKey(r *request, k identity.Key) error {
	grace, ok := graceTimes[r.field("grace")]
	if !ok {
		return invalid("Choose how long the current secret keeps working.")
	}
	_, secret, err := c.keys.Rotate(r.ctx(), k.ID, grace)
	if err != nil {
		return asInvalid(err)
	}
	return c.redirectToSecret(r, newSecret{Key: k.ID, Secret: secret, Rotated: true})
}

// showSecret shows the new secret of a key, this once.
func (c *Console) showSecret(r *request, created createdKey) error {
	created.BaseURL = c.settings.Load().PublicURL.JoinPath("v1").String()
	for _, m := range c.fleet.Models() {
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
