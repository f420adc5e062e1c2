package console

import (
	"cmp"
	"context"
	"errors"

	"basegate/budget/usage"
	"basegate/budget/usage/report"
	"basegate/identity"
)

// names are the names of the keys and accounts whose ids are in the ledger.
type names struct {
	lookUp   func(key string) (identity.Principal, bool) // false for a key that the user may not see
	emails   map[string]string
	accounts []identity.Account
}

// readNames returns the names that the user may see: those of the user's own account, or all for an administrator.
func (c *Console) readNames(ctx context.Context, a identity.Account) (names, error) {
	n := names{emails: map[string]string{a.ID: a.Email}}
	n.lookUp = func(key string) (identity.Principal, bool) {
		p, err := c.Keys.Lookup(key)
		if errors.Is(err, identity.ErrKeyUnknown) || !a.Admin && p.AccountID != a.ID {
			return identity.Principal{}, false
		}
		return p, true
	}
	if a.Admin {
		var err error
		if n.accounts, err = c.Accounts.List(ctx); err != nil {
			return n, err
		}
	}
	for _, other := range n.accounts {
		n.emails[other.ID] = other.Email
	}
	return n, nil
}

// ofReport returns the names for a report.
func (n names) ofReport() report.Names { return report.Names{Keys: n.lookUp, Emails: n.emails} }

func (n names) key(id string) string {
	p, _ := n.lookUp(id)
	return cmp.Or(p.KeyName, id)
}

func (n names) account(id string) string { return cmp.Or(n.emails[id], id) }

// group returns the name of a group, and the prefix of its key if it is one.
func (n names) group(r *usage.Row, by usage.Grouping) (name, note string) {
	switch by {
	case usage.ByModel:
		return r.Model, ""
	case usage.ByKey:
		key, _ := n.lookUp(r.KeyID)
		return cmp.Or(key.KeyName, r.KeyID), key.KeyPrefix
	case usage.ByWorkload:
		return cmp.Or(r.Workload, "Not set"), ""
	case usage.ByRun:
		return cmp.Or(r.Run, "Not set"), ""
	case usage.ByUser:
		return cmp.Or(r.User, "Not set"), ""
	case usage.ByAccount:
		return n.account(r.AccountID), ""
	case usage.ByEndpoint:
		return r.Endpoint, ""
	default:
		return "", ""
	}
}
