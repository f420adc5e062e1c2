package identity

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"basegate/database"
	"basegate/internal/wait"
)

// snapshot holds all keys and accounts as of a revision. Later revisions of the same database change it in place, key by
// key; another database gets a snapshot of its own.
type snapshot struct {
	source   *sql.DB  // the database it was read from; a database that replaced it may have the same revision
	byHash   sync.Map // secretHash → *snapshotEntry
	byID     sync.Map // id of a key → *snapshotEntry of its current secret
	accounts sync.Map // id → *atomic.Pointer[snapshotAccount]

	at change // the latest that it has; guarded by Keys.refreshing
}

// change is one revision of the keys and accounts.
type change struct {
	revision     int64
	tag          string // random; tells apart databases that have had different changes, as after a failover that lost some
	key, account string // ids; one of them is empty
}

// snapshotEntry is what Authenticate returns for a secret. It does not change.
type snapshotEntry struct {
	key           Principal // without what is in account
	state         KeyState
	parent        string                           // id; empty if the key has none
	account       *atomic.Pointer[snapshotAccount] // the keys of an account share it, so that a change of the account is one store
	replacedUntil time.Time                        // until when a secret works that Rotate has replaced; zero for the key's current secret
	secrets       []secretHash                     // all of the key; only of the current secret
}

// snapshotAccount is an account as the keys of the snapshot have it.
type snapshotAccount struct {
	Account

	granted int // see Principal.GrantedConcurrency
}

// read sets p to the key with its account and its parent, and returns the error with which the secret is refused at this moment,
// or nil. Results by value would make the stack of each request twice as large.
func (s *snapshot) read(e *snapshotEntry, p *Principal) error {
	a := e.account.Load()
	*p = e.key
	p.AccountID, p.Email, p.Admin, p.AccountCaps = a.ID, a.Email, a.Admin, a.Caps
	p.AccountConcurrency, p.GrantedConcurrency = a.Concurrency, a.granted
	if e.parent != "" {
		p.Parent = new(Principal)
		if err := s.readParent(e.parent, p.Parent); err != nil {
			return cmp.Or(e.state.refusal(), err)
		}
	}
	if err := e.state.refusal(); err != nil {
		return err
	}
	if err := a.State.refusal(); err != nil {
		return err
	}
	switch {
	case hasPassed(p.ExpiresAt):
		return ErrKeyExpired
	case hasPassed(e.replacedUntil):
		return ErrSecretReplaced
	default:
		return nil
	}
}

// readParent is read for the key that has made another. A child is refused when its parent is.
func (s *snapshot) readParent(id string, p *Principal) error {
	e, ok := find(&s.byID, id)
	if !ok {
		p.KeyID = id
		return ErrKeyUnknown
	}
	return s.read(e, p)
}

// find returns the entry of a secret in byHash, or of a key in byID.
func find[K secretHash | string](in *sync.Map, key K) (*snapshotEntry, bool) {
	found, ok := in.Load(key)
	if !ok {
		return nil, false
	}
	return found.(*snapshotEntry), true
}

// Start reads all keys, then polls for changes until Close.
func (k *Keys) Start(ctx context.Context) error {
	if err := k.refresh(ctx, readTimeout); err != nil {
		return err
	}
	k.poller.Start(ctx, func(ctx context.Context) {
		wait.Every(ctx, k.settings.Load().PollInterval, func(ctx context.Context) { k.logOutage(ctx, k.refresh(ctx, refreshTimeout)) })
	})
	return nil
}

// Close stops polling and waits for the poller to exit. The last snapshot stays in force.
func (k *Keys) Close() { k.poller.Close() }

// write makes a write of which an error says what it was to do.
func write(ctx context.Context, db *database.DB, what string, apply func(database.Tx) error) error {
	if err := db.WriteGrouped(ctx, apply); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// commit is Keys.write for a change with a result.
func commit[T any](ctx context.Context, k *Keys, what string, apply func(database.Tx) (T, error)) (T, error) {
	var result T
	err := k.write(ctx, what, func(tx database.Tx) (err error) {
		result, err = apply(tx)
		return err
	})
	if err != nil {
		var none T
		return none, err
	}
	return result, nil
}

// write commits a change to accounts or keys, then refreshes the snapshot. The change is on disk by then, so an error
// of the refresh is logged and not returned; the next poll tries again.
func (k *Keys) write(ctx context.Context, what string, apply func(database.Tx) error) error {
	if err := write(ctx, k.db, what, apply); err != nil {
		return err
	}
	if k.snapshot.Load().source != nil { // Start has been called
		k.logOutage(ctx, k.refresh(ctx, refreshTimeout))
	}
	return nil
}

// Limits of a refresh: a server that hangs does not obey its own.
const (
	refreshTimeout = 2 * time.Second  // to find out whether the keys have changed
	readTimeout    = 30 * time.Second // to read what has changed, after a failover all keys
)

// refresh brings the snapshot up to date if the database has changed since it was read. limit is how long that may take to find out.
func (k *Keys) refresh(ctx context.Context, limit time.Duration) error {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	select {
	case k.refreshing <- struct{}{}:
	case <-limited.Done():
		return fmt.Errorf("wait for another read of the keys: %w", context.Cause(limited))
	}
	defer func() { <-k.refreshing }()
	last, source := k.snapshot.Load(), k.db.Read()
	latest, err := selectLatestChange(limited, source)
	if err != nil {
		return err
	}
	if latest.revision == last.at.revision && latest.tag == last.at.tag && source == last.source {
		return nil
	}
	if err := k.read(ctx, last, source); err != nil {
		return err
	}
	if changed := k.settings.Load().Changed; changed != nil {
		changed()
	}
	return nil
}

// read reads what has changed since the last snapshot into it, or everything into a new one. What it reads may be newer than
// the revision; then it is read again.
func (k *Keys) read(ctx context.Context, last *snapshot, source *sql.DB) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	tx, err := source.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return fmt.Errorf("read keys: %w", err)
	}
	defer tx.Rollback()
	if source == last.source {
		changes, err := selectChanges(ctx, tx, last.at.revision)
		if err != nil {
			return err
		}
		if follow(changes, last.at) {
			return last.apply(ctx, tx, changes)
		}
	}
	next := &snapshot{source: source}
	if next.at, err = selectLatestChange(ctx, tx); err != nil {
		return err
	}
	if err := next.load(ctx, tx, nil, nil); err != nil {
		return err
	}
	k.snapshot.Store(next)
	return nil
}

// follow reports whether changes are a revision and all that came after it.
func follow(changes []change, last change) bool {
	if len(changes) == 0 || changes[0].tag != last.tag {
		return false
	}
	for i, c := range changes {
		if c.revision != last.revision+int64(i) {
			return false
		}
	}
	return true
}

// apply reads again what has changed. The first of the changes is known.
func (s *snapshot) apply(ctx context.Context, q database.Reader, changes []change) error {
	keys, accounts := map[string]bool{}, map[string]bool{}
	for _, c := range changes[1:] {
		if c.key != "" {
			keys[c.key] = true
		} else {
			accounts[c.account] = true
		}
	}
	for id := range keys { // of its account, by what the operator gives to a key
		if e, ok := find(&s.byID, id); ok {
			accounts[e.account.Load().ID] = true
		}
	}
	if err := s.load(ctx, q, keys, accounts); err != nil {
		return err
	}
	s.at = changes[len(changes)-1]
	return nil
}

// load reads keys and accounts by their ids; nil is all. Those that are not found are removed.
func (s *snapshot) load(ctx context.Context, q database.Reader, keys, accounts map[string]bool) error {
	read, err := selectSnapshotKeys(ctx, q, keys)
	if err != nil {
		return err
	}
	if accounts != nil {
		for i := range read {
			accounts[read[i].key.AccountID] = true
		}
	}
	// After the keys: the account of a key that was read is found.
	fields, err := selectSnapshotAccounts(ctx, q, accounts)
	if err != nil {
		return err
	}
	replaced, err := selectReplacedSecrets(ctx, q, keys)
	if err != nil {
		return err
	}
	for i := range fields {
		s.storeAccount(&fields[i])
		delete(accounts, fields[i].ID)
	}
	for id := range accounts {
		s.accounts.Delete(id)
	}
	for i := range read {
		if err := s.store(&read[i], replaced[read[i].key.KeyID]); err != nil {
			return err
		}
		delete(keys, read[i].key.KeyID)
	}
	for id := range keys {
		s.remove(id)
	}
	return nil
}

// storeAccount stores an account. Its entry has the fields before another goroutine can find it.
func (s *snapshot) storeAccount(fields *snapshotAccount) {
	entry := &atomic.Pointer[snapshotAccount]{}
	entry.Store(fields)
	if before, found := s.accounts.LoadOrStore(fields.ID, entry); found {
		before.(*atomic.Pointer[snapshotAccount]).Store(fields)
	}
}

// store stores a key with its secrets. The current one is the only one of read.
func (s *snapshot) store(read *snapshotEntry, replaced []replacedSecret) error {
	account, ok := s.accounts.Load(read.key.AccountID)
	if !ok {
		return fmt.Errorf("read keys: the account %s of the key %s is missing", read.key.AccountID, read.key.KeyID)
	}
	read.account = account.(*atomic.Pointer[snapshotAccount])
	before, _ := find(&s.byID, read.key.KeyID)
	s.byHash.Store(read.secrets[0], read)
	for _, r := range replaced {
		e := *read
		e.key.KeyPrefix, e.replacedUntil, e.secrets = r.prefix, r.until, nil
		s.byHash.Store(r.hash, &e)
		read.secrets = append(read.secrets, r.hash)
	}
	s.byID.Store(read.key.KeyID, read)
	if before != nil {
		s.removeSecrets(before.secrets, read.secrets)
	}
	return nil
}

func (s *snapshot) remove(key string) {
	if e, ok := find(&s.byID, key); ok {
		s.byID.Delete(key)
		s.removeSecrets(e.secrets, nil)
	}
}

func (s *snapshot) removeSecrets(all, but []secretHash) {
	for _, secret := range all {
		if !slices.Contains(but, secret) {
			s.byHash.Delete(secret)
		}
	}
}

// logOutage logs the first failed refresh of an outage, and the first one that succeeds after it.
func (k *Keys) logOutage(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	switch failed := k.failing.Swap(err != nil); {
	case err != nil && !failed:
		k.log.Warn("keys cannot be read; the last known ones stay in force", zap.Error(err))
	case err == nil && failed:
		k.log.Info("keys can be read again")
	}
}
