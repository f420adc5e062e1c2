package identity_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"basegate/identity"
	"basegate/internal/poll"
)

// slowPolls returns a started store that does not poll within a test.
func slowPolls(t *testing.T, path string) *identity.Store {
	t.Helper()
	s := identity.New(openDatabase(t, path), zap.NewNop(), identity.Settings{PollInterval: time.Hour})
	must(t, s.Keys.Start(t.Context()))
	t.Cleanup(s.Keys.Close)
	return s
}

// A new key was refused until the next poll, for up to 100 milliseconds.
func TestKeyWorksFromTheMomentItsCreationWasConfirmed(t *testing.T) {
	path := newPath(t)
	here, there := newStore(openDatabase(t, path)), slowPolls(t, path)
	_, err := here.Accounts.Create(t.Context(), identity.Account{Email: ada})
	must(t, err)
	for i := range 3 {
		key, secret := createKey(t, here, fmt.Sprint("laptop ", i))
		if got, err := there.Keys.Authenticate(t.Context(), secret); err != nil || got.KeyID != key.ID {
			t.Errorf("a key that another process has created: got %+v, error %v", got, err)
		}
		_, secret, err := here.Keys.Rotate(t.Context(), key.ID, time.Hour)
		must(t, err)
		if got, err := there.Keys.Authenticate(t.Context(), secret); err != nil || got.KeyID != key.ID {
			t.Errorf("a secret that another process has rotated: got %+v, error %v", got, err)
		}
		other, _ := createKey(t, here, fmt.Sprint("phone ", i))
		if got, err := there.Keys.Identify(t.Context(), other.AccountID, other.ID); err != nil || got.KeyID != other.ID {
			t.Errorf("a key of the console: got %+v, error %v", got, err)
		}
	}
}

func TestGuessesCostTheDatabaseAtMostOneReadAtATime(t *testing.T) {
	path := newPath(t)
	here, there := newStore(openDatabase(t, path)), slowPolls(t, path)
	_, err := here.Accounts.Create(t.Context(), identity.Account{Email: ada})
	must(t, err)
	before := there.Keys.CatchUps()
	began := time.Now()
	var guesses sync.WaitGroup
	for i := range 2000 {
		guesses.Go(func() {
			guess := "acs-bm-" + strings.Repeat(string(rune('a'+i%26)), 40) + string([]byte{'0' + byte(i/26/10%8), '0' + byte(i/26%10), 'x'})
			if _, err := there.Keys.Authenticate(t.Context(), guess); !errors.Is(err, identity.ErrKeyUnknown) {
				t.Errorf("a guess: got error %v", err)
			}
		})
	}
	_, secret := createKey(t, here, "laptop")
	if _, err := there.Keys.Authenticate(t.Context(), secret); err != nil {
		t.Errorf("a new key during guesses: got error %v", err)
	}
	guesses.Wait()
	if reads, most := there.Keys.CatchUps()-before, int(time.Since(began)/(10*time.Millisecond))+2; reads > most {
		t.Errorf("the guesses caused %d reads of the database, want at most %d", reads, most)
	}
	before = there.Keys.CatchUps()
	for range 100 {
		_, _ = there.Keys.Authenticate(t.Context(), "acs-bm-"+strings.Repeat("a", 40)+"00x")
	}
	if reads := there.Keys.CatchUps() - before; reads > 1 {
		t.Errorf("a secret that was refused before caused %d reads, want at most 1", reads)
	}
}

func TestUnknownKeyIsNotRefusedWhileTheDatabaseCannotBeRead(t *testing.T) {
	db := openDatabase(t, filepath.Join(t.TempDir(), "base.db"))
	s := identity.New(db, zap.NewNop(), identity.Settings{PollInterval: time.Hour})
	must(t, s.Keys.Start(t.Context()))
	t.Cleanup(s.Keys.Close)
	refused := "acs-bm-" + strings.Repeat("1", 43)
	if _, err := s.Keys.Authenticate(t.Context(), refused); !errors.Is(err, identity.ErrKeyUnknown) {
		t.Errorf("before the outage: got error %v, want ErrKeyUnknown", err)
	}
	must(t, db.Read().Close())
	for _, secret := range []string{"acs-bm-" + strings.Repeat("0", 43), refused} {
		_, err := s.Keys.Authenticate(t.Context(), secret)
		if !errors.Is(err, identity.ErrKeysUnreadable) || errors.Is(err, identity.ErrKeyUnknown) {
			t.Errorf("%s: got error %v, want ErrKeysUnreadable", secret, err)
		}
	}
}

func TestUnknownKeyGetsAResponseWhileTheDatabaseHangs(t *testing.T) {
	t.Parallel() // it waits
	path := newPath(t)
	db, proxy := openThroughProxy(t, path)
	there := startStore(t, db, zap.NewNop()) // its polls hang too
	here := newStore(openDatabase(t, path))
	_, err := here.Accounts.Create(t.Context(), identity.Account{Email: ada})
	must(t, err)
	proxy.Pause()
	t.Cleanup(proxy.Resume) // before the database is closed
	_, secret := createKey(t, here, "laptop")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := there.Keys.Authenticate(ctx, secret); !errors.Is(err, identity.ErrKeysUnreadable) {
		t.Errorf("while the database hangs: got error %v, want ErrKeysUnreadable", err)
	}
	proxy.Resume()
	poll.Until(t, "the new key works", func() bool {
		_, err := there.Keys.Authenticate(ctx, secret)
		return err == nil
	})
}

func TestCallersDoNotWaitForReadsThatDoNotEnd(t *testing.T) {
	db := openDatabase(t, newPath(t))
	must(t, db.Read().Close())
	synctest.Test(t, func(t *testing.T) {
		s := newStore(db)
		s.Keys.DelayCatchUps(time.Hour)
		began := time.Now()
		err := s.Keys.CatchUp(t.Context())
		if waited := time.Since(began); !errors.Is(err, identity.ErrKeysUnreadable) || waited != 5*time.Second {
			t.Errorf("got error %v after %v, want ErrKeysUnreadable after 5 seconds", err, waited)
		}
		<-time.After(time.Hour) // until the read has ended
	})
}

func TestPauseAfterAReadIsBounded(t *testing.T) {
	const least = 10 * time.Millisecond
	for _, c := range []struct {
		name       string
		err        error
		took, want time.Duration
	}{
		{"fast", nil, time.Millisecond, least},
		{"slow", nil, 300 * time.Millisecond, 300 * time.Millisecond},
		{"hanging", nil, time.Minute, time.Second},
		{"failed", errors.New("the database hangs"), 2 * time.Second, least},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := identity.PauseAfter(c.err, c.took, least); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func TestExpiredKeyIsRefused(t *testing.T) {
	t.Parallel() // it waits
	s := startStoreWithAda(t)
	var soon time.Time
	var key identity.Key
	var secret string
	err := identity.ErrPastExpiry
	for life := 2 * time.Second; errors.Is(err, identity.ErrPastExpiry); life *= 2 {
		soon = time.Now().Add(life)
		key, secret, err = s.Keys.Create(t.Context(), identity.Key{Email: ada, Name: "short", ExpiresAt: soon})
	}
	must(t, err)
	if key.Operator.ExpiresAt != key.ExpiresAt || key.ExpiresAt.Sub(soon).Abs() > time.Millisecond {
		t.Errorf("got key %+v, want it to expire at %v by the operator", key, soon)
	}
	for time.Now().Before(soon) {
		<-time.After(time.Until(soon))
	}
	got, err := s.Keys.Authenticate(t.Context(), secret)
	if !errors.Is(err, identity.ErrKeyExpired) || got.KeyID != key.ID {
		t.Errorf("after the expiry: got %v, error %v, want ErrKeyExpired with the key, for the log", got, err)
	}
	if _, err := s.Keys.Lookup(key.ID); !errors.Is(err, identity.ErrKeyExpired) {
		t.Errorf("lookup after the expiry: got error %v, want ErrKeyExpired", err)
	}
	_, err = s.Keys.Set(t.Context(), key.ID, func(f *identity.Key) { f.ExpiresAt = time.Time{} })
	must(t, err)
	if _, err := s.Keys.Authenticate(t.Context(), secret); err != nil {
		t.Errorf("with the expiry removed: got error %v", err)
	}
}

func TestRotatedKeyHasTwoSecretsUntilTheGraceEnds(t *testing.T) {
	s := startStoreWithAda(t)
	key, first := createKey(t, s, "laptop")
	rotated, second, err := s.Keys.Rotate(t.Context(), key.Prefix, time.Hour)
	must(t, err)
	if rotated.ID != key.ID || rotated.Prefix == key.Prefix || !strings.HasPrefix(second, rotated.Prefix) || !rotated.ReplacedSecretWorks() {
		t.Errorf("got key %+v", rotated)
	}
	for _, secret := range []string{first, second} {
		if got, err := s.Keys.Authenticate(t.Context(), secret); err != nil || got.KeyID != key.ID || !strings.HasPrefix(secret, got.KeyPrefix) {
			t.Errorf("during the grace: got %+v, error %v", got, err)
		}
		if found, err := s.Keys.Find(t.Context(), secret); err != nil || found.ID != key.ID {
			t.Errorf("find by a secret: got %+v, error %v", found, err)
		}
	}

	_, third, err := s.Keys.Rotate(t.Context(), key.ID, 0)
	must(t, err)
	for _, secret := range []string{first, second} {
		if got, err := s.Keys.Authenticate(t.Context(), secret); !errors.Is(err, identity.ErrSecretReplaced) || got.KeyID != key.ID {
			t.Errorf("after the grace: got %+v, error %v, want ErrSecretReplaced", got, err)
		}
	}
	if _, err := s.Keys.Authenticate(t.Context(), third); err != nil {
		t.Errorf("the new secret: got error %v", err)
	}
	if p, err := s.Keys.Lookup(key.ID); err != nil || !strings.HasPrefix(third, p.KeyPrefix) {
		t.Errorf("lookup: got %+v, error %v, want the new prefix", p, err)
	}

	_, err = s.Keys.Pause(t.Context(), key.ID)
	must(t, err)
	_, fourth, err := s.Keys.Rotate(t.Context(), key.ID, time.Hour)
	must(t, err)
	for _, secret := range []string{third, fourth} {
		if _, err := s.Keys.Authenticate(t.Context(), secret); !errors.Is(err, identity.ErrKeyPaused) {
			t.Errorf("a secret of a paused key: got error %v, want ErrKeyPaused", err)
		}
	}
	_, _, err = s.Keys.Rotate(t.Context(), key.ID, -time.Second)
	wantError(t, err, identity.ErrBadGrace)
	_, _, err = s.Keys.Rotate(t.Context(), key.ID, identity.MaxGrace+1)
	wantError(t, err, identity.ErrBadGrace)
	_, err = s.Keys.Revoke(t.Context(), key.ID)
	must(t, err)
	_, _, err = s.Keys.Rotate(t.Context(), key.ID, 0)
	wantError(t, err, identity.ErrKeyRevoked)
	entries, _, err := s.AuditLog.Find(t.Context(), identity.AuditFilter{}, "", 100)
	must(t, err)
	for _, e := range entries {
		for _, secret := range []string{first, second, third, fourth} {
			if strings.Contains(e.Detail, secret) {
				t.Errorf("the audit log has a secret: %s", e.Detail)
			}
		}
	}
}

func TestModelListAllowsItsModelsOnly(t *testing.T) {
	list, err := identity.NewModelList([]string{"b", "a", "b"})
	must(t, err)
	if !slices.Equal(list.IDs(), []string{"a", "b"}) || list.Any() || !list.Allows("a") || list.Allows("c") || list.Allows("") || list.Allows("a,b") {
		t.Errorf("got list %v", list)
	}
	if any := identity.ModelList(""); !any.Any() || !any.Allows("x") || any.IDs() != nil || any.String() != "any" {
		t.Errorf("got %v, want any", any)
	}
	for _, ids := range [][]string{nil, {""}, {"a,b"}, {"a b"}, {strings.Repeat("x", 201)}} {
		_, err := identity.NewModelList(ids)
		wantError(t, err, identity.ErrBadModels)
	}
	s := startStoreWithAda(t)
	key, secret, err := s.Keys.Create(t.Context(), identity.Key{Email: ada, Name: "k", Models: list})
	must(t, err)
	if p, err := s.Keys.Authenticate(t.Context(), secret); err != nil || p.Models != list {
		t.Errorf("got %+v, error %v, want the models %s", p, err, list)
	}
	if found, err := s.Keys.Find(t.Context(), key.ID); err != nil || found != key {
		t.Errorf("got %+v, error %v, want %+v", found, err, key)
	}
}

// What the operator has set stands, as it does for caps: the holder of a key can only narrow it.
func TestHolderCannotExceedTheExpiryAndModelsOfTheOperator(t *testing.T) {
	s := startStoreWithAda(t)
	account, err := s.Accounts.Find(t.Context(), ada)
	must(t, err)
	holder := identity.WithActor(t.Context(), account)
	limit := time.Now().Add(48 * time.Hour)
	both, err := identity.NewModelList([]string{"a", "b"})
	must(t, err)
	one, err := identity.NewModelList([]string{"a"})
	must(t, err)
	other, err := identity.NewModelList([]string{"a", "c"})
	must(t, err)
	key, _ := createKey(t, s, "k")
	change := func(ctx context.Context, f func(*identity.Key)) error {
		_, err := s.Keys.Set(ctx, key.ID, f)
		return err
	}
	must(t, change(holder, func(f *identity.Key) { f.Models, f.ExpiresAt = other, limit }))
	must(t, change(holder, func(f *identity.Key) { f.Models, f.ExpiresAt = "", time.Time{} }))
	must(t, change(t.Context(), func(f *identity.Key) { f.Models, f.ExpiresAt = both, limit }))
	for what, f := range map[string]func(*identity.Key){
		"any model":      func(f *identity.Key) { f.Models = "" },
		"another model":  func(f *identity.Key) { f.Models = other },
		"no expiry":      func(f *identity.Key) { f.ExpiresAt = time.Time{} },
		"a later expiry": func(f *identity.Key) { f.ExpiresAt = limit.Add(time.Hour) },
	} {
		if err := change(holder, f); !errors.Is(err, identity.ErrSetByOperator) {
			t.Errorf("%s: got error %v, want ErrSetByOperator", what, err)
		}
	}
	must(t, change(holder, func(f *identity.Key) { f.Models, f.ExpiresAt = one, limit.Add(-time.Hour) }))
	must(t, change(holder, func(f *identity.Key) { f.Models, f.ExpiresAt = both, limit }))
	must(t, change(t.Context(), func(f *identity.Key) { f.Models, f.ExpiresAt = "", time.Time{} }))
	must(t, change(holder, func(f *identity.Key) { f.Models = other }))
	_, _, err = s.Keys.Rotate(identity.WithActor(t.Context(), identity.Account{ID: "acc_x", Email: "eve@example.org"}), key.ID, 0)
	wantError(t, err, identity.ErrNoKey)
}
