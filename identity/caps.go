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

// AboveAccountError is ErrAboveAccount for a key, with the first cap that is above the account's.
type AboveAccountError struct {
	Cap  quota.ID
	text string
}

func (e *AboveAccountError) Error() string { return ErrAboveAccount.Error() + ": " + e.text }
func (*AboveAccountError) Unwrap() error   { return ErrAboveAccount }

// checkKeyCaps returns an *AboveAccountError if the caps of a key exceed those of its account.
func checkKeyCaps(c quota.Caps, a Account) error {
	if first, excess := c.Excess(a.Caps); excess != "" {
		return &AboveAccountError{first, excess + " of " + a.Email}
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
		_, excess := k.Caps.Excess(c)
		over = append(over, fmt.Sprintf("%s (%s): %s", k.ID, k.Name, excess))
	}
	return fmt.Errorf("%w; lower or revoke these first: %s", ErrAboveAccount, strings.Join(over, "; "))
}
