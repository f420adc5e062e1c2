package console

import (
	"cmp"
	"errors"

	"basegate/budget/usage"
	"basegate/budget/usage/report"
	"basegate/identity"
)

// names are the names of the keys and accounts whose ids are in the ledger.
type names struct{ report.Names }

// names returns the names that the user may see: those of the user's own account, or all for an administrator.
func (c *Console) names(r *request) names {
	a := r.account
	return names{report.Names{
		Keys: func(id string) (identity.Principal, bool) {
			p, err := c.Keys.Lookup(id)
			if errors.Is(err, identity.ErrKeyUnknown) || !a.Admin && p.AccountID != a.ID {
				return identity.Principal{}, false
			}
			return p, true
		},
		Email: func(account string) string {
			if !a.Admin && account != a.ID {
				return ""
			}
			return c.Keys.Email(account)
		},
	}}
}

func (n names) key(id string) string {
	p, _ := n.Keys(id)
	return cmp.Or(p.KeyName, id)
}

// group returns the name of a group, and the prefix of its key if it is one.
func (n names) group(r *usage.Row, by usage.Grouping) (name, note string) {
	value := groupings[by].value(r)
	switch by {
	case usage.ByKey:
		key, _ := n.Keys(value)
		return cmp.Or(key.KeyName, value), key.KeyPrefix
	case usage.ByAccount:
		return n.Account(value), ""
	case usage.ByModel, usage.ByEndpoint:
		return value, ""
	default:
		return cmp.Or(value, "Not set"), ""
	}
}
