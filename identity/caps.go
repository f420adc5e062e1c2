package identity

import (
	"errors"
	"fmt"
	"strings"

	"basegate/budget/quota"
)

// Errors of caps.
var (
	ErrBadCap       = quota.ErrNegative
	ErrAboveAccount = errors.New("a key's budget may not exceed its account's")
)

// checkKeyCaps returns ErrAboveAccount if the caps of a key exceed those of its account.
func checkKeyCaps(c quota.Caps, a Account) error {
	if excess := c.Excess(a.Caps); excess != "" {
		return fmt.Errorf("%w: %s of %s", ErrAboveAccount, excess, a.Email)
	}
	return nil
}

// checkAccountCaps returns ErrAboveAccount, naming keys whose caps exceed the new caps of their account.
func checkAccountCaps(c quota.Caps, above []Key) error {
	if len(above) == 0 {
		return nil
	}
	var over []string
	for _, k := range above {
		over = append(over, fmt.Sprintf("%s (%s): %s", k.ID, k.Name, k.Caps.Excess(c)))
	}
	return fmt.Errorf("%w; lower or revoke these first: %s", ErrAboveAccount, strings.Join(over, "; "))
}
