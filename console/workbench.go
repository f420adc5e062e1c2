package console

import (
	"math"
	"net/http"

	"basegate/identity"
)

// Completer serves a completion request on behalf of an account with one of its keys. It checks, queues, charges and
// logs the request as the public API does.
type Completer interface {
	ServeOnBehalfOf(account, key string, w http.ResponseWriter, r *http.Request)
}

// noLimit is for bodies that the API limits itself.
const noLimit = math.MaxInt64

// workbenchPage is the data of the workbench's page. Its scripts poll workbenchOptions for keys and models.
type workbenchPage struct {
	BaseURL string // of the public API
	Prompt  string // id of the saved prompt to open; may be empty
	Shades  []int  // CSS classes of the legend
}

func (c *Console) workbench(r *request) error {
	return c.render(r, "workbench", "Workbench", workbenchPage{
		BaseURL: c.settings.Load().PublicURL.String(), Prompt: r.query("prompt"), Shades: []int{0, 1, 2, 3, 4, 5, 6, 7, 8},
	})
}

// workbenchOptions are the keys and models that the workbench can use.
type workbenchOptions struct {
	Keys    []keyOption   `json:"keys"`
	Models  []modelOption `json:"models"`
	CanWarm bool          `json:"can_warm"`
}

type keyOption struct {
	ID     string            `json:"id"`
	Name   string            `json:"name"`
	Prefix string            `json:"prefix"`
	State  identity.KeyState `json:"state"`
}

type modelOption struct {
	ID          string  `json:"id"`
	Status      string  `json:"status"` // as in GET /v1/models
	MaxModelLen int64   `json:"max_model_len"`
	MaxLogprobs int     `json:"max_logprobs"`
	BootSeconds float64 `json:"boot_seconds"` // 0 if the gateway does not start the model
}

// workbenchOptions lists the user's keys and all models.
func (c *Console) workbenchOptions(r *request) error {
	keys, err := c.keys.ListOf(r.ctx(), r.account.ID)
	if err != nil {
		return err
	}
	options := workbenchOptions{Keys: []keyOption{}, Models: []modelOption{}, CanWarm: c.warm != nil}
	for _, k := range keys {
		options.Keys = append(options.Keys, keyOption{k.ID, k.Name, k.Prefix, k.State})
	}
	for _, m := range c.fleet.Models() {
		options.Models = append(options.Models, modelOption{
			m.ID(), m.Status(), m.MaxModelLen(), m.MaxLogprobs(), m.BootEstimate().Seconds(),
		})
	}
	return r.sendJSON(http.StatusOK, options)
}

// complete serves a completion with one of the user's keys. The Completer checks that the key is the user's.
func (c *Console) complete(r *request) error {
	c.completer.ServeOnBehalfOf(r.account.ID, r.query("key"), r.Response(), r.Request())
	return nil
}
