package identity_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"basegate/budget/quota"
	"basegate/database"
	"basegate/identity"
	"basegate/internal/databasetest"
	"basegate/internal/poll"
)

func TestChangedStateIsSeenByAnotherProcess(t *testing.T) {
	ctx, path := t.Context(), newPath(t)
	here, there := startStore(t, openDatabase(t, path), zap.NewNop()), startStore(t, openDatabase(t, path), zap.NewNop())
	_, err := here.Accounts.Create(ctx, identity.Account{Email: ada})
	must(t, err)
	key, secret := createKey(t, here, "laptop")
	waitFor := func(want error) {
		t.Helper()
		poll.Until(t, "the change is seen", func() bool {
			_, err := there.Keys.Authenticate(t.Context(), secret)
			return errors.Is(err, want)
		})
	}
	waitFor(nil)
	_, err = here.Keys.Pause(ctx, key.ID)
	must(t, err)
	waitFor(identity.ErrKeyPaused)
	_, err = here.Keys.Resume(ctx, key.ID)
	must(t, err)
	waitFor(nil)
	_, err = here.Accounts.Disable(ctx, ada)
	must(t, err)
	waitFor(identity.ErrAccountDisabled)
	_, err = here.Accounts.Enable(ctx, ada)
	must(t, err)
	waitFor(nil)
	_, err = here.Keys.Revoke(ctx, key.ID)
	must(t, err)
	waitFor(identity.ErrKeyRevoked)
}

func TestChangedCapsAreSeenByAnotherProcess(t *testing.T) {
	path := newPath(t)
	here := startStore(t, openDatabase(t, path), zap.NewNop())
	_, err := here.Accounts.Create(t.Context(), identity.Account{Email: ada})
	must(t, err)
	key, secret := createKey(t, here, "k")
	elsewhere := newStore(openDatabase(t, path))
	_, err = elsewhere.Keys.Set(t.Context(), key.ID, func(f *identity.Key) { f.Caps[quota.DayTotal], f.Concurrency = quota.Limit(7), 2 })
	must(t, err)
	poll.Until(t, "the key's cap is seen", func() bool {
		p, err := here.Keys.Authenticate(t.Context(), secret)
		return err == nil && p.KeyCaps[quota.DayTotal] == quota.Limit(7) && p.Concurrency == 2
	})
	_, err = elsewhere.Accounts.Set(t.Context(), ada, func(f *identity.Account) { f.Caps[quota.DayTotal] = quota.Limit(70) })
	must(t, err)
	poll.Until(t, "the account's cap is seen", func() bool {
		p, err := here.Keys.Authenticate(t.Context(), secret)
		return err == nil && p.AccountCaps[quota.DayTotal] == quota.Limit(70)
	})
}

func TestAnAccountIsFoundWithItsAddressWhileAccountsAreRead(t *testing.T) {
	s := startStore(t, openDatabase(t, newPath(t)), zap.NewNop())
	ids := make([]string, 50000)
	for i := range ids {
		ids[i] = fmt.Sprint("acc_", i)
	}
	stored := make(chan struct{})
	go func() {
		defer close(stored)
		for _, id := range ids {
			s.Keys.StoreAccount(id, ada)
		}
	}()
	for _, id := range ids {
		for s.Keys.Email(id) == "" { // it panics if it finds an account without fields
			runtime.Gosched()
		}
	}
	<-stored
}

func TestChangedIsCalledWhenAChangeIsInForce(t *testing.T) {
	ctx := t.Context()
	var s *identity.Store
	var key string
	calls := make(chan error, 100)
	s = identity.New(openDatabase(t, newPath(t)), zap.NewNop(), identity.Settings{Changed: func() {
		_, err := s.Keys.Lookup(key)
		calls <- err
	}})
	must(t, s.Keys.Start(ctx))
	t.Cleanup(s.Keys.Close)
	_, err := s.Accounts.Create(ctx, identity.Account{Email: ada})
	must(t, err)
	created, _ := createKey(t, s, "laptop")
	for len(calls) > 0 {
		<-calls
	}
	key = created.ID
	for _, step := range []struct {
		change func(context.Context, string) (identity.Key, error)
		want   error
	}{{s.Keys.Pause, identity.ErrKeyPaused}, {s.Keys.Resume, nil}} {
		_, err = step.change(ctx, key)
		must(t, err)
		if got := <-calls; !errors.Is(got, step.want) {
			t.Errorf("at the call, Lookup returned error %v, want %v", got, step.want)
		}
	}
	if _, err := s.Keys.Lookup("unknown"); !errors.Is(err, identity.ErrKeyUnknown) {
		t.Errorf("look up an unknown key: got error %v, want %v", err, identity.ErrKeyUnknown)
	}
}

func TestReplacedDatabaseIsReadEvenAtTheSameRevision(t *testing.T) {
	databasetest.SkipPostgres(t, "a database is not replaced by moving a file")
	path := newPath(t)
	createDatabase := func(path string) (secret string) {
		db, err := database.Open(t.Context(), databasetest.Settings(t, path), zap.NewNop())
		must(t, err)
		s := newStore(db)
		_, err = s.Accounts.Create(t.Context(), identity.Account{Email: ada})
		must(t, err)
		_, secret = createKey(t, s, "laptop")
		must(t, db.Close())
		return secret
	}
	oldSecret, newSecret := createDatabase(path), createDatabase(path+".new")
	s := startStore(t, openDatabase(t, path), zap.NewNop())
	_, err := s.Keys.Authenticate(t.Context(), oldSecret)
	must(t, err)
	for _, suffix := range []string{"-wal", "-shm"} {
		must(t, os.Remove(path+suffix))
	}
	must(t, os.Rename(path+".new", path))
	poll.Until(t, "the keys of the new database replace those of the old one", func() bool {
		_, newErr := s.Keys.Authenticate(t.Context(), newSecret)
		_, oldErr := s.Keys.Authenticate(t.Context(), oldSecret)
		return newErr == nil && errors.Is(oldErr, identity.ErrKeyUnknown)
	})
}

// A failover that has lost revisions may have made as many others by the time of the next poll.
func TestOtherChangesAreReadEvenAtTheSameRevision(t *testing.T) {
	db := openDatabase(t, newPath(t))
	s := startStore(t, db, zap.NewNop())
	_, err := s.Accounts.Create(t.Context(), identity.Account{Email: ada})
	must(t, err)
	key, secret := createKey(t, s, "laptop")
	must(t, db.WriteExclusive(t.Context(), func(tx database.Tx) error {
		for _, text := range []string{
			"UPDATE keys SET state = 'revoked' WHERE id = '" + key.ID + "'",
			"DELETE FROM key_changes WHERE revision = (SELECT revision FROM keys_revision)",
			"UPDATE keys_revision SET revision = revision - 1",
			"UPDATE key_changes SET tag = 'elsewhere' WHERE revision = (SELECT revision FROM keys_revision)",
		} {
			if _, err := tx.ExecContext(t.Context(), text); err != nil {
				return err
			}
		}
		return nil
	}))
	must(t, s.Keys.CatchUp(t.Context()))
	if _, err := s.Keys.Authenticate(t.Context(), secret); !errors.Is(err, identity.ErrKeyRevoked) {
		t.Errorf("got error %v, want %v", err, identity.ErrKeyRevoked)
	}
}

func TestLastSnapshotStaysInForceDuringADatabaseOutage(t *testing.T) {
	core, logged := observer.New(zap.InfoLevel)
	db := openDatabase(t, newPath(t))
	s := startStore(t, db, zap.New(core))
	_, err := s.Accounts.Create(t.Context(), identity.Account{Email: ada})
	must(t, err)
	_, secret := createKey(t, s, "laptop")
	must(t, db.WriteExclusive(t.Context(), func(tx database.Tx) error {
		_, err := tx.ExecContext(t.Context(), "ALTER TABLE keys_revision RENAME TO away")
		return err
	}))
	poll.Until(t, "the outage is logged", func() bool { return logged.FilterLevelExact(zap.WarnLevel).Len() > 0 })
	_, err = s.Keys.Authenticate(t.Context(), secret)
	must(t, err)
	must(t, db.WriteExclusive(t.Context(), func(tx database.Tx) error {
		_, err := tx.ExecContext(t.Context(), "ALTER TABLE away RENAME TO keys_revision")
		return err
	}))
	poll.Until(t, "the end of the outage is logged", func() bool { return logged.FilterMessage("keys can be read again").Len() > 0 })
	if n := logged.FilterLevelExact(zap.WarnLevel).Len(); n != 1 {
		t.Errorf("got %d warnings for one outage, want 1", n)
	}
}

func TestStartFailsWithoutADatabase(t *testing.T) {
	db := openDatabase(t, newPath(t))
	must(t, db.Close())
	s := newStore(db)
	if err := s.Keys.Start(t.Context()); err == nil {
		t.Error("Start returned no error")
	}
	s.Keys.Close()
	if _, err := s.Accounts.Create(t.Context(), identity.Account{Email: ada}); !errors.Is(err, database.ErrClosed) {
		t.Errorf("write: got error %v, want %v", err, database.ErrClosed)
	}
}
