package console

import (
	"math"
	"net/http"

	"basegate/identity"
)

// Completer answers a completion request from within, in the name of one of an account's keys: judged, queued, charged
// and logged as the public API does.
type Completer interface {
	ServeOnBehalfOf(account, key string, w http.ResponseWriter, r *http.Request)
}

// maxCompletion leaves the limit to the API, which has its own.
const maxCompletion = math.MaxInt64

// workbenchPage is the page itself. What it offers it asks for, again and again.
type workbenchPage struct {
	Base   string // of the public API
	Prompt string // the saved one to open
	Shades []int
}

func (c *Console) workbench(r *request) error {
	return c.render(r, "workbench", "Workbench", workbenchPage{
		Base: c.settings.Load().PublicURL.String(), Prompt: r.query("prompt"), Shades: []int{0, 1, 2, 3, 4, 5, 6, 7, 8},
	})
}

// offer is what there is to work with.
type offer struct {
	Keys    []offeredKey   `json:"keys"`
	Models  []offeredModel `json:"models"`
	CanWarm bool           `json:"can_warm"`
}

type offeredKey struct {
	ID     string            `json:"id"`
	Name   string            `json:"name"`
	Prefix string            `json:"prefix"`
	State  identity.KeyState `json:"state"`
}

type offeredModel struct {
	ID          string  `json:"id"`
	Status      string  `json:"status"` // as GET /v1/models says it
	MaxModelLen int64   `json:"max_model_len"`
	MaxLogprobs int     `json:"max_logprobs"`
	BootSeconds float64 `json:"boot_seconds"` // 0 where it is not ours to start
}

func (c *Console) workbenchOffer(r *request) error {
	own, err := c.keys.ListOf(r.ctx(), r.account.ID)
	if err != nil {
		return err
	}
	o := offer{Keys: []offeredKey{}, Models: []offeredModel{}, CanWarm: c.warm != nil}
	for _, k := range own {
		o.Keys = append(o.Keys, offeredKey{k.ID, k.Name, k.Prefix, k.State})
	}
	for _, m := range c.fleet.Models() {
		o.Models = append(o.Models, offeredModel{m.ID(), m.Status(), m.MaxModelLen(), m.MaxLogprobs(), m.BootEstimate().Seconds()})
	}
	return r.sendJSON(http.StatusOK, o)
}

// completeHere has the request answered with one of the account's keys. Whose key it is, is checked where the key is.
func (c *Console) completeHere(r *request) error {
	c.completer.ServeOnBehalfOf(r.account.ID, r.query("key"), r.Response(), r.Request())
	return nil
}
