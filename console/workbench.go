package console

import (
	"encoding/json"
	"errors"
	"io"
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

func (c *Console) workbench(v *visit) error {
	return c.render(v, "workbench", "Workbench", workbenchPage{
		Base: c.settings.Load().PublicURL.String(), Prompt: v.query("prompt"), Shades: []int{0, 1, 2, 3, 4, 5, 6, 7, 8},
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

func (c *Console) workbenchOffer(v *visit) error {
	own, err := c.keys.ListOf(v.r.Context(), v.account.ID)
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
	return v.json(http.StatusOK, o)
}

// completeHere has the request answered with one of the account's keys. Whose key it is, is checked where the key is.
func (c *Console) completeHere(v *visit) error {
	c.complete.ServeOnBehalfOf(v.account.ID, v.query("key"), v.w, v.r)
	return nil
}

// json answers a script.
func (v *visit) json(status int, what any) error {
	v.w.Header().Set("Content-Type", "application/json")
	v.w.WriteHeader(status)
	_ = json.NewEncoder(v.w).Encode(what) // whoever does not read it to the end has gone
	return nil
}

// read takes what a script sends.
func (v *visit) read(into any) error {
	from := json.NewDecoder(v.r.Body)
	from.DisallowUnknownFields()
	if err := from.Decode(into); err != nil {
		return unread(err)
	}
	switch _, err := from.Token(); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return unread(err)
	}
	return invalid("What was sent goes on behind its end.")
}
