package proxy

import (
	"slices"

	apierr "basegate/errors"
	"basegate/fleet"
	"basegate/validate"
)

// versionEdits returns the changes to a body that depend on the server of the backend.
//
// best_of: only the engine of versions before 0.8 honours it; later ones refuse or ignore it, and a parameter is never
// silently ignored. Structured output: see validate.Server.TakesGuided.
func versionEdits(r *validate.Request, b *fleet.Backend) validate.Edits {
	version := b.VLLM()
	edits := validate.Edits{Guided: b.Server().TakesGuided()}
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

// checkServers limits the request to the backends that can serve all its fields, as far as that is known of their servers. It
// refuses a request that no backend of the model can serve.
func (x *exchange) checkServers() error {
	x.attempts.usable = func(b *fleet.Backend) bool {
		_, unserved := x.request.Unserved(b.Server())
		return !unserved && x.choosesBest(b)
	}
	backends := x.model.Backends()
	switch {
	case slices.ContainsFunc(backends, x.attempts.usable):
		return nil
	case !slices.ContainsFunc(backends, x.choosesBest):
		return apierr.BestOfUnsupported(x.model.ID())
	default:
		return x.unserved()
	}
}

// choosesBest reports whether the backend can serve the request's best_of, as far as that is known.
func (x *exchange) choosesBest(b *fleet.Backend) bool {
	r := x.request
	return r.BestOf <= r.N || !b.LacksLogprobs() || versionEdits(r, b).BestOf != validate.EmulateBestOf
}

// unserved returns the error of a request with a field that no backend of the model can serve: of the newest of them.
func (x *exchange) unserved() error {
	var newest *validate.Server
	var why validate.Unserved
	for _, b := range x.model.Backends() {
		u, unserved := x.request.Unserved(b.Server())
		if s := b.Server(); unserved && (newest == nil || newest.Version.Before(s.Version)) {
			newest, why = s, u
		}
	}
	switch {
	case newest != nil:
		return apierr.FieldUnserved(why.Field, why.Name, x.model.ID(), newest.String(), why.Reason)
	case x.request.BestOf > x.request.N:
		return apierr.BestOfUnsupported(x.model.ID())
	default:
		return apierr.Overload(apierr.NoBackends, "a server of "+x.model.ID()+" has just restarted", bufferFullRetry, nil)
	}
}
