package identity_test

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"sync"
	"testing"

	"go.uber.org/zap"

	"basegate/budget/quota"
	"basegate/identity"
)

// operators has the contexts of the operator: the command line, and an administrator.
func operators(ctx context.Context) map[string]context.Context {
	boss := identity.Account{ID: "acc_boss", Email: "boss@example.org", Admin: true}
	return map[string]context.Context{"the command line": ctx, "an administrator": identity.WithActor(ctx, boss)}
}

// holder returns the context of ada, who is no administrator.
func holder(t *testing.T, s *identity.Store) context.Context {
	t.Helper()
	a, err := s.Accounts.Find(t.Context(), ada)
	must(t, err)
	return identity.WithActor(t.Context(), a)
}

// createOwnKey creates a key of ada by herself.
func createOwnKey(t *testing.T, s *identity.Store) identity.Key {
	t.Helper()
	key, _, err := s.Keys.Create(holder(t, s), identity.Key{Email: ada, Name: "own"})
	must(t, err)
	return key
}

// lastDetail returns the detail of the latest entry of the audit log, after the title of the key.
func lastDetail(t *testing.T, s *identity.Store) string {
	t.Helper()
	entries, _, err := s.AuditLog.Find(t.Context(), identity.AuditFilter{}, "", 1)
	must(t, err)
	_, detail, _ := strings.Cut(entries[0].Actor+" "+entries[0].Detail, "of ada@example.org: ")
	return entries[0].Actor + ": " + detail
}

func TestHolderCannotResumeAKeyThatTheOperatorHasPaused(t *testing.T) {
	s := startStoreWithAda(t)
	for name, operator := range operators(t.Context()) {
		key := createOwnKey(t, s)
		resume := func(want error) {
			t.Helper()
			got, err := s.Keys.Resume(holder(t, s), key.ID)
			if !errors.Is(err, want) || err == nil && got.State != identity.KeyActive {
				t.Errorf("%s: resume by the holder: got state %q, error %v; want error %v", name, got.State, err, want)
			}
		}
		pause := func(ctx context.Context) {
			t.Helper()
			got, err := s.Keys.Pause(ctx, key.ID)
			must(t, err)
			if got.State != identity.KeyPaused {
				t.Errorf("%s: got state %q after a pause", name, got.State)
			}
		}
		pause(holder(t, s))
		resume(nil)
		pause(operator)
		resume(identity.ErrSetByOperator)
		pause(holder(t, s)) // changes nothing
		resume(identity.ErrSetByOperator)
		_, err := s.Keys.Resume(operator, key.ID)
		must(t, err)
		pause(holder(t, s))
		pause(operator) // makes the pause the operator's
		if want := ": paused → paused by the operator"; !strings.HasSuffix(lastDetail(t, s), want) {
			t.Errorf("%s: got audit entry %q, want it to end with %q", name, lastDetail(t, s), want)
		}
		resume(identity.ErrSetByOperator)
		_, err = s.Keys.Revoke(holder(t, s), key.ID)
		must(t, err)
		if _, err := s.Keys.Resume(operator, key.ID); !errors.Is(err, identity.ErrKeyRevoked) {
			t.Errorf("%s: resume a revoked key: got error %v, want %v", name, err, identity.ErrKeyRevoked)
		}
	}
}

// However often the holder resumes a key meanwhile, it is paused after the operator has paused it.
func TestOperatorsPauseWinsAgainstConcurrentResumes(t *testing.T) {
	s := startStoreWithAda(t)
	key, secret := createKey(t, s, "k")
	ctx := holder(t, s)
	for range 20 {
		_, err := s.Keys.Resume(t.Context(), key.ID)
		must(t, err)
		var resumes sync.WaitGroup
		for range 4 {
			resumes.Go(func() {
				for range 5 {
					if _, err := s.Keys.Resume(ctx, key.ID); err != nil && !errors.Is(err, identity.ErrSetByOperator) {
						t.Error(err)
					}
					if _, err := s.Keys.Pause(ctx, key.ID); err != nil {
						t.Error(err)
					}
				}
			})
		}
		_, err = s.Keys.Pause(t.Context(), key.ID)
		must(t, err)
		resumes.Wait()
		if _, err := s.Keys.Authenticate(t.Context(), secret); !errors.Is(err, identity.ErrKeyPaused) {
			t.Fatalf("after the operator's pause: got error %v, want %v", err, identity.ErrKeyPaused)
		}
	}
}

func TestHolderCannotExceedTheCapsOfTheOperator(t *testing.T) {
	for cap, set := range setCap {
		for name, operator := range operators(t.Context()) {
			s := startStoreWithAda(t)
			key := createOwnKey(t, s)
			change := func(ctx context.Context, limit quota.Cap, want error) {
				t.Helper()
				got, err := s.Keys.Set(ctx, key.ID, func(f *identity.Key) { set(&f.Caps, limit) })
				var wanted quota.Caps
				set(&wanted, limit)
				if !errors.Is(err, want) || err == nil && got.Caps != wanted {
					t.Errorf("%s of %s, set to %s: got caps %s, error %v; want error %v", cap, name, limit, got.Caps, err, want)
				}
			}
			own := holder(t, s)
			change(own, quota.Limit(500), nil)
			change(own, quota.Unbounded(), nil)
			change(operator, quota.Limit(100), nil)
			change(own, quota.Limit(101), identity.ErrSetByOperator)
			change(own, quota.Unbounded(), identity.ErrSetByOperator)
			change(own, quota.Limit(20), nil)
			change(own, quota.Limit(100), nil)
			change(own, quota.Limit(50), nil)
			change(operator, quota.Limit(200), nil)
			change(own, quota.Limit(200), nil)
			change(operator, quota.Unbounded(), nil)
			change(own, quota.Limit(1000), nil)
			change(own, quota.Unbounded(), nil)
		}
	}
}

func TestChangeByTheOperatorOfOneCapLeavesTheOthersToTheHolder(t *testing.T) {
	s := startStoreWithAda(t)
	key := createOwnKey(t, s)
	own := holder(t, s)
	_, err := s.Keys.Set(own, key.ID, func(f *identity.Key) { f.Caps[quota.MonthTotal] = quota.Limit(500) })
	must(t, err)
	_, err = s.Keys.Set(t.Context(), key.ID, func(f *identity.Key) { f.Caps[quota.DayTotal] = quota.Limit(10) })
	must(t, err)
	got, err := s.Keys.Set(own, key.ID, func(f *identity.Key) {
		f.Caps[quota.MonthTotal], f.Caps[quota.DayTotal] = quota.Unbounded(), quota.Limit(9)
		f.Operator = identity.Limits{} // ignored
	})
	must(t, err)
	want := identity.Limits{Caps: quota.Caps{quota.DayTotal: quota.Limit(10)}}
	if got.Operator != want || got.Caps != (quota.Caps{quota.DayTotal: quota.Limit(9)}) {
		t.Errorf("got caps %s and limits of the operator %s, want daily budget 9 and %s", got.Caps, got.Operator, want)
	}
	if detail, want := lastDetail(t, s), "ada@example.org: monthly budget 500 → unbounded, daily budget 10 → 9"; detail != want {
		t.Errorf("got audit entry %q, want %q", detail, want)
	}
}

// The operator can set a limit to the value that the holder has chosen: from then on it is the operator's.
func TestOperatorClaimsALimitOfTheHolder(t *testing.T) {
	s := startStoreWithAda(t)
	key := createOwnKey(t, s)
	own := holder(t, s)
	_, err := s.Keys.Set(own, key.ID, func(f *identity.Key) { f.Caps[quota.DayTotal], f.Concurrency = quota.Limit(10), 4 })
	must(t, err)
	_, err = s.Keys.Set(t.Context(), key.ID, func(f *identity.Key) {
		f.Operator = identity.Limits{Concurrency: 4, Caps: quota.Caps{quota.DayTotal: quota.Limit(10)}}
	})
	must(t, err)
	for name, change := range map[string]func(*identity.Key){
		"a higher cap":            func(f *identity.Key) { f.Caps[quota.DayTotal] = quota.Limit(11) },
		"a lower concurrency":     func(f *identity.Key) { f.Concurrency = 3 },
		"the default concurrency": func(f *identity.Key) { f.Concurrency = 0 },
	} {
		if _, err := s.Keys.Set(own, key.ID, change); !errors.Is(err, identity.ErrSetByOperator) {
			t.Errorf("%s: got error %v, want %v", name, err, identity.ErrSetByOperator)
		}
	}
	_, err = s.Keys.Set(own, key.ID, func(f *identity.Key) { f.Name = "renamed" })
	must(t, err)
}

func TestConcurrencyHasAnAccountsLimit(t *testing.T) {
	s := startStoreWithAda(t)
	key := createOwnKey(t, s)
	own := holder(t, s)
	set := func(ctx context.Context, n int) error {
		_, err := s.Keys.Set(ctx, key.ID, func(f *identity.Key) { f.Concurrency = n })
		return err
	}
	create := func(ctx context.Context, n int) error {
		_, _, err := s.Keys.Create(ctx, identity.Key{Email: ada, Name: rand.Text(), Concurrency: n})
		return err
	}
	for _, apply := range []func(context.Context, int) error{set, create} {
		must(t, apply(own, identity.DefaultConcurrencyPerKey))
		for _, n := range []int{identity.DefaultConcurrencyPerKey + 1, 65535} {
			wantError(t, apply(own, n), identity.ErrConcurrencyAboveAccount, "is above 8 of ada@example.org")
		}
	}
	_, err := s.Accounts.Set(t.Context(), ada, func(f *identity.Account) { f.Concurrency = 64 })
	must(t, err)
	for _, apply := range []func(context.Context, int) error{set, create} {
		must(t, apply(own, 64))
		wantError(t, apply(own, 65), identity.ErrConcurrencyAboveAccount, "65 is above 64")
	}
	must(t, set(t.Context(), 100)) // the operator is not bound by it
	wantError(t, set(own, 64), identity.ErrSetByOperator, "concurrency 100")
	must(t, set(t.Context(), 0)) // gives it back to the holder
	must(t, set(own, 64))
	s.Keys.Reload(identity.Settings{ConcurrencyPerKey: 2})
	_, err = s.Accounts.Set(t.Context(), ada, func(f *identity.Account) { f.Concurrency = 0 })
	must(t, err)
	wantError(t, set(own, 3), identity.ErrConcurrencyAboveAccount, "3 is above 2")
	if _, err := s.Accounts.Set(t.Context(), ada, func(f *identity.Account) { f.Concurrency = -1 }); !errors.Is(err, identity.ErrBadConcurrency) {
		t.Errorf("a negative limit: got error %v, want %v", err, identity.ErrBadConcurrency)
	}
}

func TestMaxRunningIsBoundedByTheAccountUnlessTheOperatorHasSetIt(t *testing.T) {
	const perKey = 8
	for _, c := range []struct {
		p    identity.Principal
		want int
	}{
		{identity.Principal{}, perKey},
		{identity.Principal{Concurrency: 3}, 3},
		{identity.Principal{Concurrency: 65535}, perKey}, // from before accounts had a limit
		{identity.Principal{Concurrency: 65535, AccountConcurrency: 20}, 20},
		{identity.Principal{Concurrency: 20, AccountConcurrency: 4}, 4}, // the limit was lowered
		{identity.Principal{AccountConcurrency: 4}, 4},
		{identity.Principal{AccountConcurrency: 20}, perKey},
		{identity.Principal{Concurrency: 100, ConcurrencyByOperator: true, AccountConcurrency: 4}, 100},
	} {
		if got := c.p.MaxRunning(perKey); got != c.want {
			t.Errorf("%+v: got %d, want %d", c.p, got, c.want)
		}
	}
}

func TestHolderChangesOnlyItsOwnKeys(t *testing.T) {
	s := startStoreWithAda(t)
	key, _ := createKey(t, s, "k")
	eve, err := s.Accounts.Create(t.Context(), identity.Account{Email: "eve@example.org"})
	must(t, err)
	ctx := identity.WithActor(t.Context(), eve)
	for name, change := range map[string]func() error{
		"pause":  func() error { _, err := s.Keys.Pause(ctx, key.ID); return err },
		"resume": func() error { _, err := s.Keys.Resume(ctx, key.ID); return err },
		"revoke": func() error { _, err := s.Keys.Revoke(ctx, key.ID); return err },
		"set": func() error {
			_, err := s.Keys.Set(ctx, key.ID, func(f *identity.Key) { f.Name = "x" })
			return err
		},
	} {
		if err := change(); !errors.Is(err, identity.ErrNoKey) {
			t.Errorf("%s another account's key: got error %v, want %v", name, err, identity.ErrNoKey)
		}
	}
	if _, _, err := s.Keys.Create(ctx, identity.Key{Email: ada, Name: "x"}); !errors.Is(err, identity.ErrNoAccount) {
		t.Errorf("create a key of another account: got error %v, want %v", err, identity.ErrNoAccount)
	}
}

// The operator's limits are in the database, so they hold in a process that did not set them.
func TestLimitsOfTheOperatorAreStored(t *testing.T) {
	path := newPath(t)
	s := startStore(t, openDatabase(t, path), zap.NewNop())
	_, err := s.Accounts.Create(t.Context(), identity.Account{Email: ada, Concurrency: 12})
	must(t, err)
	limits := identity.Limits{Concurrency: 3, Caps: quota.Caps{
		quota.MonthTotal: quota.Limit(1), quota.DayTotal: quota.Limit(2), quota.MonthInput: quota.Limit(3), quota.MonthOutput: quota.Limit(4),
	}}
	key, _, err := s.Keys.Create(t.Context(), identity.Key{Email: ada, Name: "k", Concurrency: limits.Concurrency, Caps: limits.Caps})
	must(t, err)
	_, err = s.Keys.Pause(t.Context(), key.ID)
	must(t, err)
	elsewhere := newStore(openDatabase(t, path))
	got, err := elsewhere.Keys.Find(t.Context(), key.ID)
	must(t, err)
	if got.Operator != limits || !got.PausedByOperator {
		t.Errorf("got %+v, want it paused by the operator, with the limits %+v", got, limits)
	}
	a, err := elsewhere.Accounts.Find(t.Context(), ada)
	must(t, err)
	if a.Concurrency != 12 {
		t.Errorf("got account %+v, want concurrency 12", a)
	}
}
