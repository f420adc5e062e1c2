package identity_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"

	"basegate/budget/quota"
	"basegate/database"
	"basegate/identity"
)

// found is what a Store says of a secret.
type found struct {
	Principal identity.Principal
	Err       string
}

func lookUp(t *testing.T, s *identity.Store, secrets []string) (all []found) {
	t.Helper()
	for _, secret := range secrets {
		p, err := s.Keys.Authenticate(t.Context(), secret)
		all = append(all, found{p, fmt.Sprint(err)})
		byID, err := s.Keys.Lookup(p.KeyID)
		all = append(all, found{byID, fmt.Sprint(err)})
	}
	return all
}

// A snapshot that followed many changes one by one is the same as one that was read at once.
func TestFollowedChangesAddUpToWhatIsRead(t *testing.T) {
	ctx, path := t.Context(), newPath(t)
	here, there := startStore(t, openDatabase(t, path), zap.NewNop()), startStore(t, openDatabase(t, path), zap.NewNop())
	rng := rand.New(rand.NewPCG(1, 2))
	emails := []string{ada, "eve@example.org", "lea@example.org"}
	for _, email := range emails {
		_, err := here.Accounts.Create(ctx, identity.Account{Email: email})
		must(t, err)
	}
	var ids, secrets []string
	create := func(email string) {
		key, secret, err := here.Keys.Create(ctx, identity.Key{Email: email, Name: "k"})
		must(t, err)
		ids, secrets = append(ids, key.ID), append(secrets, secret)
	}
	for _, email := range emails {
		create(email)
	}
	for i := range 60 {
		email, id := emails[rng.IntN(len(emails))], ids[rng.IntN(len(ids))]
		var err error
		switch rng.IntN(9) {
		case 0:
			_, _, err = here.Keys.Create(ctx, identity.Key{Email: email, Name: fmt.Sprint("more ", i)})
		case 1:
			_, err = here.Keys.Pause(ctx, id)
		case 2:
			_, err = here.Keys.Resume(ctx, id)
		case 3:
			if rng.IntN(4) == 0 {
				_, err = here.Keys.Revoke(ctx, id)
			}
		case 4:
			var secret string
			if _, secret, err = here.Keys.Rotate(ctx, id, time.Duration(rng.IntN(2))*time.Hour); err == nil {
				secrets = append(secrets, secret)
			}
		case 5:
			_, err = here.Keys.Set(ctx, id, func(f *identity.Key) {
				f.Concurrency, f.Caps[quota.DayTotal] = 1+rng.IntN(50), quota.Limit(rng.Int64N(9))
			})
		case 6:
			_, err = here.Accounts.Set(ctx, email, func(f *identity.Account) { f.Concurrency = rng.IntN(50) })
		case 7:
			_, err = here.Accounts.Disable(ctx, email)
		case 8:
			_, err = here.Accounts.Enable(ctx, email)
		}
		_ = err // a revoked key, or a disabled account, changes nothing
		must(t, there.Keys.CatchUp(ctx))
	}
	fresh := lookUp(t, startStore(t, openDatabase(t, path), zap.NewNop()), secrets)
	for name, s := range map[string]*identity.Store{"the process of the changes": here, "another process": there} {
		if diff := cmp.Diff(fresh, lookUp(t, s, secrets)); diff != "" {
			t.Errorf("%s (-read at once +followed):\n%s", name, diff)
		}
	}
}

func TestAChangeOfOneKeyReadsNoOtherKey(t *testing.T) {
	db := openDatabase(t, newPath(t))
	s := startStore(t, db, zap.NewNop())
	_, err := s.Accounts.Create(t.Context(), identity.Account{Email: ada})
	must(t, err)
	changed, _ := createKey(t, s, "changed")
	other, secret := createKey(t, s, "other")
	execute := func(statements ...string) {
		t.Helper()
		must(t, db.WriteExclusive(t.Context(), func(tx database.Tx) error {
			for _, text := range statements {
				if _, err := tx.ExecContext(t.Context(), text); err != nil {
					return err
				}
			}
			return nil
		}))
		must(t, s.Keys.CatchUp(t.Context()))
	}
	name := func() string {
		p, err := s.Keys.Authenticate(t.Context(), secret)
		must(t, err)
		return p.KeyName
	}
	// A change that is recorded as one of another key is seen only if all keys are read.
	execute("UPDATE keys SET name = 'unread' WHERE id = '"+other.ID+"'",
		"UPDATE key_changes SET key_id = '"+changed.ID+"' WHERE key_id = '"+other.ID+"'")
	if got := name(); got != "other" {
		t.Errorf("after a change of one key, the other is %q, want %q: it was read", got, "other")
	}
	// As a failover to a server that has had other changes.
	execute("UPDATE key_changes SET tag = 'elsewhere'", "UPDATE keys SET name = 'changed' WHERE id = '"+changed.ID+"'")
	if got := name(); got != "unread" {
		t.Errorf("after changes that are not known, the key is %q, want %q: not all were read", got, "unread")
	}
	// As more changes than are recorded.
	execute("UPDATE keys SET name = 'late' WHERE id = '"+other.ID+"'", "UPDATE key_changes SET key_id = '"+changed.ID+"'",
		"DELETE FROM key_changes WHERE revision < (SELECT revision FROM keys_revision)")
	if got := name(); got != "late" {
		t.Errorf("after more changes than are recorded, the key is %q, want %q: not all were read", got, "late")
	}
}
