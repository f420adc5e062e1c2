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
	if err := x.checkBestOf(); err != nil {
		return err
	}
	later, found := x.request.Later()
	if !found {
		return nil
	}
	usable := x.attempts.usable
	x.attempts.usable = func(b *fleet.Backend) bool {
		return !b.VLLM().Before(later.Since) && (usable == nil || usable(b))
	}
	if slices.ContainsFunc(x.model.Backends(), x.attempts.usable) {
		return nil
	}
	return x.fieldTooNew()
}

// checkBestOf limits a request with best_of to the backends that can serve it, as far as that is known. It refuses a request
// that none can serve.
func (x *exchange) checkBestOf() error {
	if x.request.BestOf <= x.request.N {
		return nil
	}
	x.attempts.usable = func(b *fleet.Backend) bool {
		return !b.LacksLogprobs() || versionEdits(x.request, b).BestOf != validate.EmulateBestOf
	}
	if slices.ContainsFunc(x.model.Backends(), x.attempts.usable) {
		return nil
	}
	return apierr.BestOfUnsupported(x.model.ID())
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
