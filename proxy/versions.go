package proxy

import (
	"slices"

	apierr "basegate/errors"
	"basegate/fleet"
	"basegate/validate"
)

// versionEdits returns the changes to a body that depend on the version of the backend.
//
// best_of: only the engine of versions before 0.8 honours it; later ones refuse or ignore it, and a parameter is never
// silently ignored. Structured output: see validate.SinceStructuredOutputs.
func versionEdits(r *validate.Request, b *fleet.Backend) validate.Edits {
	version := b.VLLM()
	edits := validate.Edits{Guided: version.Before(validate.SinceStructuredOutputs)}
	switch {
	case r.BestOf == 0 || version.Before(validate.Version{Minor: 8}):
		edits.BestOf = validate.KeepBestOf
	case r.BestOf == r.N:
		edits.BestOf = validate.DropBestOf
	default:
		edits.BestOf = validate.EmulateBestOf
	}
	return edits
}

// checkVersions limits the request to the backends whose version has all its fields, as far as their versions are known.
// It refuses a request that no backend of the model can serve.
func (x *exchange) checkVersions() error {
	later, found := x.request.Later()
	if !found {
		return nil
	}
	x.attempts.usable = func(b *fleet.Backend) bool { return !b.VLLM().Before(later.Since) }
	if slices.ContainsFunc(x.model.Backends(), x.attempts.usable) {
		return nil
	}
	return x.fieldTooNew()
}

// fieldTooNew returns the error of a request with a field that no backend of the model has.
func (x *exchange) fieldTooNew() error {
	later, _ := x.request.Later()
	var newest validate.Version
	for _, b := range x.model.Backends() {
		if v := b.VLLM(); newest.Before(v) || !newest.Known() {
			newest = v
		}
	}
	return apierr.FieldTooNew(later.Field, later.Name, x.model.ID(), newest.String(), later.Since.String())
}
