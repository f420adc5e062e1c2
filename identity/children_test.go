package identity_test

import (
	"database/sql"
	"errors"
	"maps"
	"testing"
	"time"

	"go.uber.org/zap"

	"basegate/budget/quota"
	"basegate/identity"
)

// family is a parent with the account ada.
type family struct {
	*identity.Store
	t      *testing.T
	parent identity.Key
}

func newFamily(t *testing.T, s identity.Settings, parent identity.Key) *family {
	t.Helper()
	s.PasswordCost = cheap
	store := identity.New(openDatabase(t, newPath(t)), zap.NewNop(), s)
	must(t, store.Keys.Start(t.Context()))
	t.Cleanup(store.Keys.Close)
	_, err := store.Accounts.Create(t.Context(), identity.Account{Email: ada})
	must(t, err)
	parent.Email, parent.Name = ada, "parent"
	f := &family{Store: store, t: t}
	f.parent, _, err = store.Keys.Create(t.Context(), parent)
	must(t, err)
	return f
}

// create creates a child as its parent does.
func (f *family) create(child identity.Key) (identity.Key, string, error) {
	child.Email, child.Parent = ada, f.parent.ID
	if child.Name == "" {
		child.Name = "child"
	}
	ctx := identity.WithActor(f.t.Context(), identity.Account{ID: f.parent.AccountID, Email: ada})
	return f.Keys.Create(ctx, child)
}

func (f *family) mustCreate(child identity.Key) (identity.Key, string) {
	f.t.Helper()
	key, secret, err := f.create(child)
	must(f.t, err)
	return key, secret
}

var mayMakeKeys = identity.Key{Children: sql.NullBool{Bool: true, Valid: true}}

func TestOnlyKeysWithTheRightMakeKeys(t *testing.T) {
	for name, c := range map[string]struct {
		byDefault bool
		key       identity.Key
		want      bool
	}{
		"by default":                  {false, identity.Key{}, false},
		"the right":                   {false, mayMakeKeys, true},
		"limits.children":             {true, identity.Key{}, true},
		"limits.children, but not it": {true, identity.Key{Children: sql.NullBool{Valid: true}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFamily(t, identity.Settings{Children: c.byDefault}, c.key)
			_, _, err := f.create(identity.Key{})
			if got := !errors.Is(err, identity.ErrNoChildren); got != c.want || c.want && err != nil {
				t.Errorf("got error %v, want it allowed: %t", err, c.want)
			}
			p, err := f.Keys.Lookup(f.parent.ID)
			must(t, err)
			if got := f.Keys.MayMakeKeys(&p); got != c.want {
				t.Errorf("MayMakeKeys: got %t", got)
			}
		})
	}
}

func TestChildIsAtMostItsParent(t *testing.T) {
	parent := mayMakeKeys
	parent.Concurrency, parent.Models = 4, "a,b"
	f := newFamily(t, identity.Settings{Children: true}, parent)
	_, _, err := f.create(identity.Key{Concurrency: 5})
	wantError(t, err, identity.ErrAboveConcurrency, "5 is above 4")
	_, _, err = f.create(identity.Key{Models: "b,c"})
	wantError(t, err, identity.ErrAboveParent, "makes it: c")
	_, _, err = f.create(identity.Key{Run: "no spaces"})
	wantError(t, err, identity.ErrBadRun)
	child, secret := f.mustCreate(identity.Key{Concurrency: 3, Models: "b", Run: "eval-7"})
	p, err := f.Keys.Authenticate(t.Context(), secret)
	must(t, err)
	if p.Parent == nil || p.Parent.KeyID != f.parent.ID || p.Run != "eval-7" || p.MaxRunning(8) != 3 {
		t.Errorf("got %+v", p)
	}
	f.parent.ID, _ = child.ID, f.parent
	_, _, err = f.create(identity.Key{})
	wantError(t, err, identity.ErrNoChildren)
}

func TestChildrenCountTheirParentsLimitAndNotTheAccounts(t *testing.T) {
	f := newFamily(t, identity.Settings{Children: true, ChildrenPerKey: 2, KeysPerAccount: 1}, identity.Key{})
	first, _ := f.mustCreate(identity.Key{ExpiresAt: time.Now().Add(time.Hour)})
	second, _ := f.mustCreate(identity.Key{}) // of the same name
	_, _, err := f.create(identity.Key{})
	if full, ok := errors.AsType[*identity.TooManyChildrenError](err); !ok || full.Most != 2 {
		t.Errorf("got error %v, want a *TooManyChildrenError of 2", err)
	}
	_, err = f.Keys.Set(t.Context(), first.ID, expire)
	must(t, err)
	third, _ := f.mustCreate(identity.Key{})
	_, err = f.Keys.Set(t.Context(), first.ID, revive)
	if full, ok := errors.AsType[*identity.TooManyChildrenError](err); !ok || full.Most != 2 {
		t.Errorf("a key that had expired: got error %v, want a *TooManyChildrenError of 2", err)
	}
	_, err = f.Keys.Revoke(t.Context(), second.ID)
	must(t, err)
	f.mustCreate(identity.Key{Run: "r"})
	all, err := f.Keys.Children(t.Context(), f.parent.ID, "", "", 10)
	must(t, err)
	if len(all) != 4 || all[3].ID != first.ID {
		t.Errorf("got %d children, the last one %+v; want the oldest last", len(all), all[len(all)-1])
	}
	live, err := f.Keys.LiveChildren(t.Context(), f.parent.AccountID)
	must(t, err)
	if want := map[string]int{f.parent.ID: 2}; !maps.Equal(live, want) {
		t.Errorf("got the live children %v, want %v", live, want)
	}
	page, err := f.Keys.Children(t.Context(), f.parent.ID, "", third.ID, 1)
	must(t, err)
	if len(page) != 1 || page[0].ID != second.ID {
		t.Errorf("after %s: got %+v, want %s", third.ID, page, second.ID)
	}
	of, err := f.Keys.Children(t.Context(), f.parent.ID, "r", "", 10)
	must(t, err)
	listed, err := f.Keys.ListOf(t.Context(), f.parent.AccountID, 0)
	must(t, err)
	if len(of) != 1 || len(listed) != 1 {
		t.Errorf("got %d children of the run and %d keys, want one of each", len(of), len(listed))
	}
}

func TestParentTakesItsChildrenWithIt(t *testing.T) {
	f := newFamily(t, identity.Settings{Children: true}, identity.Key{})
	child, secret := f.mustCreate(identity.Key{})
	refused := func(want error) {
		t.Helper()
		if p, err := f.Keys.Authenticate(t.Context(), secret); !errors.Is(err, want) || p.KeyID != child.ID {
			t.Errorf("got %s and error %v, want %v", p.KeyID, err, want)
		}
	}
	refused(nil)
	_, err := f.Keys.Pause(t.Context(), f.parent.ID)
	must(t, err)
	refused(identity.ErrKeyPaused)
	_, err = f.Keys.Resume(t.Context(), f.parent.ID)
	must(t, err)
	refused(nil)
	_, err = f.Keys.Set(t.Context(), child.ID, expire)
	must(t, err)
	refused(identity.ErrKeyExpired)
	_, err = f.Keys.Set(t.Context(), child.ID, func(k *identity.Key) { k.ExpiresAt = time.Time{} })
	must(t, err)
	_, err = f.Keys.Set(t.Context(), f.parent.ID, expire)
	must(t, err)
	refused(identity.ErrKeyExpired)
	_, err = f.Keys.Revoke(t.Context(), f.parent.ID)
	must(t, err)
	refused(identity.ErrKeyRevoked)
	_, _, err = f.create(identity.Key{})
	wantError(t, err, identity.ErrKeyRevoked)
}

func TestStopOfARunPausesItsKeysAndEndsWhatTheyRun(t *testing.T) {
	f := newFamily(t, identity.Settings{Children: true}, identity.Key{})
	life := quota.Caps{quota.LifeTotal: quota.Limit(100)}
	one, secret := f.mustCreate(identity.Key{Run: "r", Caps: life})
	f.mustCreate(identity.Key{Run: "r"})
	f.mustCreate(identity.Key{Run: "other"})
	account := f.parent.AccountID
	stopped, err := f.Keys.StopRun(t.Context(), account, "r")
	must(t, err)
	p, err := f.Keys.Authenticate(t.Context(), secret)
	if len(stopped) != 2 || p.Stops != 1 || !errors.Is(err, identity.ErrKeyPaused) {
		t.Errorf("got %d keys, %d stops, error %v; want 2 keys, one stop of each, and them paused", len(stopped), p.Stops, err)
	}
	holder := identity.WithActor(t.Context(), identity.Account{ID: account, Email: ada})
	_, err = f.Keys.ResumeRun(holder, account, "r")
	wantError(t, err, identity.ErrSetByOperator)
	_, err = f.Keys.ResumeRun(t.Context(), account, "r")
	must(t, err)
	if p, err := f.Keys.Authenticate(t.Context(), secret); err != nil || p.Stops != 1 {
		t.Errorf("after it was resumed: got %d stops, error %v", p.Stops, err)
	}
	_, err = f.Keys.RaiseRun(holder, account, "r", 50)
	must(t, err)
	raised, err := f.Keys.Get(t.Context(), one.ID)
	must(t, err)
	if got := raised.Caps[quota.LifeTotal]; got != quota.Limit(150) {
		t.Errorf("raised to %v, want 150", got)
	}
	if _, err := f.Keys.RevokeNow(t.Context(), one.ID); err != nil {
		t.Fatal(err)
	}
	if p, err := f.Keys.Lookup(one.ID); p.Stops != 2 || !errors.Is(err, identity.ErrKeyRevoked) {
		t.Errorf("after it was revoked: got %d stops, error %v", p.Stops, err)
	}
	_, err = f.Keys.StopRun(t.Context(), account, "nothing")
	wantError(t, err, identity.ErrNoRun)
	_, err = f.Keys.StopRun(identity.WithActor(t.Context(), identity.Account{ID: "acc_other", Email: "eve@example.org"}), account, "r")
	wantError(t, err, identity.ErrNoRun)
}
