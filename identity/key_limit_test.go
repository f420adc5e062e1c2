package identity_test

import (
	"crypto/rand"
	"errors"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"basegate/identity"
)

// expire lets a key have expired.
func expire(f *identity.Key) { f.ExpiresAt = time.Now().Add(-time.Hour) }

// revive lets a key be one that has not expired.
func revive(f *identity.Key) { f.ExpiresAt = time.Now().Add(time.Hour) }

func TestAnAccountHasALimitedNumberOfLiveKeys(t *testing.T) {
	s := identity.New(openDatabase(t, newPath(t)), zap.NewNop(), identity.Settings{PasswordCost: cheap, KeysPerAccount: 2})
	for _, email := range []string{ada, "eve@example.org"} {
		_, err := s.Accounts.Create(t.Context(), identity.Account{Email: email})
		must(t, err)
	}
	create := func(email string, expires time.Time) (identity.Key, error) {
		key, _, err := s.Keys.Create(t.Context(), identity.Key{Email: email, Name: rand.Text(), ExpiresAt: expires})
		return key, err
	}
	first, err := create(ada, time.Time{})
	must(t, err)
	expired, err := create(ada, time.Time{})
	must(t, err)
	_, err = s.Keys.Set(t.Context(), expired.ID, expire) // so it does not count
	must(t, err)
	second, err := create(ada, time.Now().Add(time.Hour))
	must(t, err)
	_, err = create(ada, time.Time{})
	wantError(t, err, identity.ErrTooManyKeys, "2 keys", "limits.keys_per_account")
	_, err = s.Keys.Set(t.Context(), expired.ID, revive)
	wantError(t, err, identity.ErrTooManyKeys, "2 keys")
	_, err = create("eve@example.org", time.Time{})
	must(t, err)
	_, err = s.Keys.Pause(t.Context(), second.ID) // still counts
	must(t, err)
	if _, err = create(ada, time.Time{}); !errors.Is(err, identity.ErrTooManyKeys) {
		t.Errorf("beside a paused key: got error %v, want %v", err, identity.ErrTooManyKeys)
	}
	_, err = s.Keys.Revoke(t.Context(), first.ID)
	must(t, err)
	_, err = create(ada, time.Time{})
	must(t, err)
	s.Keys.Reload(identity.Settings{KeysPerAccount: 3})
	_, err = create(ada, time.Time{})
	must(t, err)
}

func TestKeysCreatedAtOnceDoNotExceedTheLimit(t *testing.T) {
	path := newPath(t)
	var stores []*identity.Store
	for range 2 {
		stores = append(stores, identity.New(openDatabase(t, path), zap.NewNop(), identity.Settings{PasswordCost: cheap, KeysPerAccount: 5}))
	}
	_, err := stores[0].Accounts.Create(t.Context(), identity.Account{Email: ada})
	must(t, err)
	var creators sync.WaitGroup
	for i := range 20 {
		creators.Go(func() {
			_, _, err := stores[i%2].Keys.Create(t.Context(), identity.Key{Email: ada, Name: rand.Text()})
			if err != nil && !errors.Is(err, identity.ErrTooManyKeys) {
				t.Error(err)
			}
		})
	}
	creators.Wait()
	all, err := stores[0].Keys.List(t.Context())
	must(t, err)
	if len(all) != 5 {
		t.Errorf("got %d keys, want 5", len(all))
	}
}

func TestKeysCreatedAtOnceDoNotShareAName(t *testing.T) {
	path := newPath(t)
	stores := []*identity.Store{newStore(openDatabase(t, path)), newStore(openDatabase(t, path))}
	_, err := stores[0].Accounts.Create(t.Context(), identity.Account{Email: ada})
	must(t, err)
	var creators sync.WaitGroup
	for i := range 20 {
		creators.Go(func() {
			_, _, err := stores[i%2].Keys.Create(t.Context(), identity.Key{Email: ada, Name: "k"})
			if err != nil && !errors.Is(err, identity.ErrNameTaken) {
				t.Error(err)
			}
		})
	}
	creators.Wait()
	all, err := stores[0].Keys.List(t.Context())
	must(t, err)
	if len(all) != 1 {
		t.Errorf("got %d keys of one name, want 1", len(all))
	}
}

// Keys that expired long ago do not hide the one that may be used.
func TestUsableKeysAreFoundBehindManyThatHaveExpired(t *testing.T) {
	s := identity.New(openDatabase(t, newPath(t)), zap.NewNop(), identity.Settings{PasswordCost: cheap})
	_, err := s.Accounts.Create(t.Context(), identity.Account{Email: ada})
	must(t, err)
	for range identity.MaxListed {
		key, _ := createKey(t, s, rand.Text())
		_, err := s.Keys.Set(t.Context(), key.ID, expire)
		must(t, err)
	}
	want, _, err := s.Keys.Create(t.Context(), identity.Key{Email: ada, Name: "today"})
	must(t, err)
	paused, _, err := s.Keys.Create(t.Context(), identity.Key{Email: ada, Name: "paused"})
	must(t, err)
	_, err = s.Keys.Pause(t.Context(), paused.ID)
	must(t, err)
	got, err := s.Keys.Usable(t.Context(), want.AccountID)
	must(t, err)
	if len(got) != 1 || got[0].ID != want.ID {
		t.Errorf("got %d keys, want the one that is active and has not expired", len(got))
	}
}
