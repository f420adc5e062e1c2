package identity_test

import (
	"errors"
	"strings"
	"testing"

	"basegate/identity"
)

// No text but the one that was issued is accepted as a key, an invitation or a session.
func FuzzCredentials(f *testing.F) {
	s := startStoreWithAda(f)
	_, secret := createKey(f, s, "k")
	_, invitation, err := s.Accounts.Invite(f.Context(), "eve@example.org")
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
		p, err := s.Keys.Authenticate(t.Context(), text)
		switch {
		case text == secret:
			if err != nil || p.KeyID == "" {
				t.Errorf("the key is refused: %v", err)
			}
		case !errors.Is(err, identity.ErrKeyMissing) && !errors.Is(err, identity.ErrKeyMalformed) && !errors.Is(err, identity.ErrKeyUnknown) || p.KeyID != "":
			t.Errorf("%q is accepted as a key, or refused with another error: %v", text, err)
		}
		account, err := s.Sessions.InvitedAccount(t.Context(), text)
		switch {
		case text == invitation:
			if err != nil || account.Email != "eve@example.org" {
				t.Errorf("the invitation is refused: %v", err)
			}
		case !errors.Is(err, identity.ErrNoInvitation) || account.ID != "":
			t.Errorf("%q is accepted as an invitation, or refused with another error: %v", text, err)
		}
		if account, err := s.Sessions.Account(t.Context(), text); !errors.Is(err, identity.ErrNoSession) || account.ID != "" {
			t.Errorf("%q is accepted as a session, or refused with another error: %v", text, err)
		}
	})
}
