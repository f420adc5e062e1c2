package identity_test

import (
	"errors"
	"strings"
	"testing"

	"basegate/identity"
)

// Whatever somebody presents for a key, an invitation or a session, it is nobody's unless it is the very one that was
// given out.
func FuzzCredentials(f *testing.F) {
	d := newDirectory(f)
	_, secret := newKey(f, d, "k")
	_, invitation, err := d.Invite(f.Context(), "eve@example.org")
	must(f, err)
	f.Add("")
	f.Add(secret)
	f.Add(invitation)
	f.Add(strings.ToUpper(secret))
	f.Add(secret + " ")
	f.Add(secret[:len(secret)-1] + "\x00")
	f.Add("acs-bm-" + strings.Repeat("é", 22))
	f.Add("acs-bm-" + strings.Repeat("z", 43))
	f.Add("' OR 1=1 --")
	f.Add(strings.Repeat("x", 100_000))
	f.Fuzz(func(t *testing.T, text string) {
		i, err := d.Authenticate(text)
		switch {
		case text == secret:
			if err != nil || i.KeyID == "" {
				t.Errorf("the key is refused: %v", err)
			}
		case !errors.Is(err, identity.ErrMissing) && !errors.Is(err, identity.ErrMalformed) && !errors.Is(err, identity.ErrUnknown) || i.KeyID != "":
			t.Errorf("%q is a key: %v", text, err)
		}
		account, err := d.Invitation(t.Context(), text)
		switch {
		case text == invitation:
			if err != nil || account.Email != "eve@example.org" {
				t.Errorf("the invitation is refused: %v", err)
			}
		case !errors.Is(err, identity.ErrNoInvitation) || account.ID != "":
			t.Errorf("%q is an invitation: %v", text, err)
		}
		if account, err := d.Session(t.Context(), text); !errors.Is(err, identity.ErrNoSession) || account.ID != "" {
			t.Errorf("%q is a session: %v", text, err)
		}
	})
}
