package report

import (
	"cmp"
	"slices"
	"time"

	"basegate/budget/quota"
	"basegate/budget/usage"
	"basegate/identity"
)

// Run is a run of an account: the keys that are part of it, and the requests that name it.
type Run struct {
	Name      string
	AccountID string
	Keys      []identity.Key // the oldest first; none if the name is only a label of requests
	Usage     usage.Row
}

// Runs joins the keys of runs with the usage by run. The newest run is first; those without keys come last, by their tokens.
func Runs(keys []identity.Key, rows []usage.Row) []*Run {
	type id struct{ account, name string }
	found := map[id]*Run{}
	get := func(account, name string) *Run {
		r := found[id{account, name}]
		if r == nil {
			r = &Run{Name: name, AccountID: account}
			found[id{account, name}] = r
		}
		return r
	}
	for _, k := range keys {
		r := get(k.AccountID, k.Run)
		r.Keys = append(r.Keys, k)
	}
	for _, row := range rows {
		if row.Run != "" {
			get(row.AccountID, row.Run).Usage = row
		}
	}
	all := make([]*Run, 0, len(found))
	for _, r := range found {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b *Run) int {
		return cmp.Or(b.last().Compare(a.last()), cmp.Compare(b.Tokens(), a.Tokens()), cmp.Compare(a.Name, b.Name), cmp.Compare(a.AccountID, b.AccountID))
	})
	return all
}

// last returns when the newest key was created; zero if there is none.
func (r *Run) last() (at time.Time) {
	for _, k := range r.Keys {
		if k.CreatedAt.After(at) {
			at = k.CreatedAt
		}
	}
	return at
}

// labelDays is how far back the requests of a run without keys are looked for.
const labelDays = 30

// Begun returns when the oldest key was created, or a while ago if there is none.
func (r *Run) Begun(now time.Time) time.Time {
	switch {
	case len(r.Keys) == 0:
		return now.AddDate(0, 0, -labelDays)
	case r.Keys[0].CreatedAt.Before(now):
		return r.Keys[0].CreatedAt
	}
	return now
}

// Tokens returns the tokens used.
func (r *Run) Tokens() int64 { return r.Usage.Tokens() }

// States of a run.
const (
	Running = "running" // a key works
	Stopped = "stopped" // keys are paused, and none works
	Ended   = "ended"   // all keys are revoked or have expired
	Label   = "label"   // no key is part of it
)

// State returns the state of the run.
func (r *Run) State() string {
	state := Ended
	if len(r.Keys) == 0 {
		state = Label
	}
	for _, k := range r.Keys {
		switch {
		case k.Expired() || k.State == identity.KeyRevoked:
		case k.State == identity.KeyActive:
			return Running
		default:
			state = Stopped
		}
	}
	return state
}

// Budget returns the sum of the lifetime budgets of the keys; it is unbounded if no key has one.
func (r *Run) Budget() quota.Cap {
	sum, limited := int64(0), false
	for _, k := range r.Keys {
		if tokens, bounded := k.Caps[quota.LifeTotal].Tokens(); bounded {
			sum, limited = sum+tokens, true
		}
	}
	if !limited {
		return quota.Unbounded()
	}
	return quota.Limit(sum)
}
