package console

import (
	"errors"
	"fmt"
	"strings"

	"basegate/fleet"
)

// adapterErrors are the errors of a change of adapters that are the administrator's mistakes.
var adapterErrors = []error{
	fleet.ErrAdapterExists, fleet.ErrTooManyAdapters, fleet.ErrNoAdapter, fleet.ErrAdapterConfigured,
}

func (c *Console) addAdapter(r *request, m *fleet.Model) error {
	a := fleet.Adapter{ID: r.field("id"), Model: m.Base().ID(), Path: r.field("path")}
	err := fleet.CheckAdapterID(a.ID)
	switch {
	case err != nil:
		return c.adapterProblem(r, m, fmt.Sprintf("Adapter: %v.", err))
	case a.Path == "":
		return c.adapterProblem(r, m, "Enter the path of the adapter, as the backends see it.")
	}
	added, err := c.Fleet.AddAdapter(r.ctx(), a)
	return c.adapterChanged(r, m, "add adapter", added, err)
}

func (c *Console) removeAdapter(r *request, m *fleet.Model) error {
	removed, err := c.Fleet.RemoveAdapter(r.ctx(), r.field("id"), "")
	return c.adapterChanged(r, m, "remove adapter", removed, err)
}

// adapterChanged records a change, or shows why there was none.
func (c *Console) adapterChanged(r *request, m *fleet.Model, action string, a fleet.Adapter, err error) error {
	for _, mistake := range adapterErrors {
		if errors.Is(err, mistake) {
			return c.adapterProblem(r, m, "Nothing was changed: "+mistake.Error()+".")
		}
	}
	if err != nil {
		return err
	}
	err = c.AuditLog.Record(r.ctx(), action, a.ID, fmt.Sprintf("of %s, %s, version %d", a.Model, a.Path, a.Version))
	done := map[string]string{"add adapter": "%s: added.", "remove adapter": "%s: removed. Running requests are completed first."}[action]
	return c.redirectDone(r, err, modelPath(m.ID()), fmt.Sprintf(done, strings.TrimSpace(a.ID)))
}

// adapterProblem shows the page of the models with a mistake.
func (c *Console) adapterProblem(r *request, m *fleet.Model, text string) error {
	view := adminModelsView{Adding: m.ID(), Problem: invalid(text)}
	return c.showModels(r, view.Problem.status, view)
}
