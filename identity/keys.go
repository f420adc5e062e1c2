package identity

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"go.uber.org/zap"

	"basegate/budget/quota"
	"basegate/database"
	"basegate/internal/wait"
)

// Errors of operations on keys.
var (
	ErrNoKey     = errors.New("there is no such key")
	ErrAmbiguous = errors.New("more than one key is meant")

	// ErrNameTaken is returned when another key of the account that is not revoked has the name.
	ErrNameTaken = errors.New("the account has another key of this name")

	// ErrPastExpiry is returned for a new key that would have expired already.
	ErrPastExpiry = errors.New("a new key cannot expire in the past")

	// ErrTooManyKeys is returned when an account has as many keys as Settings.KeysPerAccount allows.
	ErrTooManyKeys = errors.New("the account has as many keys as it may have")
)

// Keys stores API keys and authenticates requests with them.
type Keys struct {
	db       *database.DB
	log      *zap.Logger
	settings atomic.Pointer[Settings]
	snapshot atomic.Pointer[snapshot]
	unknown  catchUps

	refreshing chan struct{} // capacity 1; serializes refreshes, so that an older snapshot never replaces a newer one
	failing    atomic.Bool   // the last refresh failed, and that has been logged

	poller wait.Loop
}

func newKeys(db *database.DB, log *zap.Logger, s Settings) *Keys {
	k := &Keys{db: db, log: log, refreshing: make(chan struct{}, 1)}
	k.snapshot.Store(&snapshot{})
	k.Reload(s)
	return k
}

// Reload replaces the settings of keys. Another PollInterval counts only before Start.
func (k *Keys) Reload(s Settings) {
	s.PollInterval = cmp.Or(s.PollInterval, DefaultPollInterval)
	s.CatchUpInterval = cmp.Or(s.CatchUpInterval, DefaultCatchUpInterval)
	s.ConcurrencyPerKey = cmp.Or(s.ConcurrencyPerKey, DefaultConcurrencyPerKey)
	k.settings.Store(&s)
}

// KeyState says whether a key may be used.
type KeyState string

// The states of a key.
const (
	KeyActive  KeyState = "active"
	KeyPaused  KeyState = "paused"  // refused until it is resumed
	KeyRevoked KeyState = "revoked" // refused permanently
)

// refusal returns the error with which a key in this state is refused, or nil.
func (s KeyState) refusal() error {
	switch s {
	case KeyActive:
		return nil
	case KeyPaused:
		return ErrKeyPaused
	case KeyRevoked:
	}
	return ErrKeyRevoked
}

// Key is a key without its secret.
type Key struct {
	ID          string
	AccountID   string
	Email       string // of the account
	Name        string
	Prefix      string // the first characters of the secret
	State       KeyState
	Concurrency int // requests at a time; 0: the configured default
	Caps        quota.Caps
	ExpiresAt   time.Time // zero: never
	Models      ModelList
	CreatedAt   time.Time

	ReplacedUntil    time.Time // until when a secret that Rotate has replaced works; zero: there is none
	PausedByOperator bool      // only the operator can resume the key
	Operator         Limits    // what the operator has set; the holder cannot exceed it

	Parent   string       // id of the key that has made this one, a child; empty if none has
	Run      string       // of a child: the name of the run that its requests are part of; may be empty
	Children sql.NullBool // whether the key may make keys; not valid: Settings.Children says
	Adapters bool         // it may add LoRA adapters, as only the operator allows
	Stops    int64        // how often requests of the key that ran were ended
}

// Create creates a key for the account with n.Email, with the name and the limits of n, and returns it with its secret,
// which cannot be retrieved later. If the operator creates it, its limits are those of the operator. With n.Parent, the key is
// a child of that key. The error may be ErrNoAccount, ErrAccountDisabled, ErrAccountPending, ErrBadName, ErrNameTaken,
// ErrPastExpiry, ErrBadConcurrency, ErrBadCap, ErrAboveAccount or ErrTooManyKeys; for a child also what checkParent returns.
func (k *Keys) Create(ctx context.Context, n Key) (_ Key, secret string, _ error) {
	secret = newSecret()
	key, err := commit(ctx, k, "create key", func(tx database.Tx) (Key, error) {
		if err := n.validate(); err != nil {
			return Key{}, err
		}
		if hasPassed(n.ExpiresAt) {
			return Key{}, fmt.Errorf("%w: %s", ErrPastExpiry, expiryText(n.ExpiresAt))
		}
		account, err := selectAccount(ctx, tx, n.Email)
		if err != nil {
			return Key{}, err
		}
		if err := account.State.refusal(); err != nil {
			return Key{}, fmt.Errorf("%w: %s", err, account.Email)
		}
		key := Key{
			ID: newID("key"), AccountID: account.ID, Email: account.Email, Name: n.Name, Prefix: prefixOf(secret), State: KeyActive,
			Concurrency: n.Concurrency, Caps: n.Caps, ExpiresAt: normalizeTime(n.ExpiresAt), Models: n.Models, CreatedAt: now(),
			Parent: n.Parent, Run: n.Run, Children: n.Children, Adapters: n.Adapters,
		}
		if err := checkKeyCaps(key.Caps, account); err != nil {
			return Key{}, err
		}
		if holder, isHolder := holderOf(ctx); !isHolder {
			key.Operator = Limits{key.Concurrency, key.Caps, key.ExpiresAt, key.Models}
		} else if err := k.checkNewKeyOfHolder(holder, account, key); err != nil {
			return Key{}, err
		}
		if err := k.checkPlace(ctx, tx, account, key); err != nil {
			return Key{}, err
		}
		if err := insertKey(ctx, tx, key, hashSecret(secret)); err != nil {
			return Key{}, err
		}
		return key, insertAuditEntry(ctx, tx, "create key", key.ID, key.describe())
	})
	if err != nil {
		return Key{}, "", err
	}
	return key, secret, nil
}

// checkPlace returns an error if the account, or the parent of a child, may not have another key. The names of children are
// free: a run that is repeated has keys of the same names.
func (k *Keys) checkPlace(ctx context.Context, tx database.Tx, account Account, key Key) error {
	var err error
	if key.Parent != "" {
		err = k.checkParent(ctx, tx, account, key)
	} else {
		err = checkNameFree(ctx, tx, key)
	}
	if err != nil {
		return err
	}
	return k.checkCount(ctx, tx, account, key)
}

// checkCount returns ErrTooManyKeys or a *TooManyChildrenError if the account, or the parent of a child, has as many live keys as it may
// have. Writes follow each other, so that no key is created or revived between the count and what the caller writes.
func (k *Keys) checkCount(ctx context.Context, tx database.Tx, account Account, key Key) error {
	settings := k.settings.Load()
	owner, id, most := ofAccount, account.ID, settings.KeysPerAccount
	if key.Parent != "" {
		owner, id, most = ofParent, key.Parent, settings.ChildrenPerKey
	}
	if most == 0 {
		return nil
	}
	n, err := countLive(ctx, tx, owner, id, most)
	switch {
	case err != nil || n < most:
		return err
	case key.Parent != "":
		return &TooManyChildrenError{most}
	}
	return fmt.Errorf("%w: %s has %d keys that are neither revoked nor expired; revoke one, "+
		"or the operator raises limits.keys_per_account", ErrTooManyKeys, account.Email, most)
}

// checkNameFree returns ErrNameTaken if another key of the account, which is not revoked, has the key's name. Writes follow
// each other, also those of several gateways, so that no other key gets the name before this one.
func checkNameFree(ctx context.Context, tx database.Tx, key Key) error {
	named, err := selectKeysByName(ctx, tx, key.Name, key.AccountID)
	if err != nil {
		return err
	}
	for _, other := range named {
		if other.ID != key.ID && other.State != KeyRevoked && other.Parent == "" {
			return fmt.Errorf("%w: %q is %s of %s", ErrNameTaken, key.Name, other.ID, other.Email)
		}
	}
	return nil
}

// List returns all keys, ordered by their accounts' addresses, then by age, the oldest first.
func (k *Keys) List(ctx context.Context) ([]Key, error) {
	return database.List(ctx, k.db.Read(), scanKey, selectKey+` ORDER BY lower(a.email), k.created_at, k.id`)
}

// MaxListed is the number of keys that ListOf returns at a time.
const MaxListed = 200

// ListOf returns keys of the account with this id, at most MaxListed after those that are skipped: first those that are not
// revoked, then the revoked ones, the oldest first, and no children. An empty account is all, in no particular order.
func (k *Keys) ListOf(ctx context.Context, account string, skip int) ([]Key, error) {
	if account == "" {
		const text = selectKey + ` WHERE k.parent IS NULL ORDER BY k.id LIMIT $1 OFFSET $2`
		return database.List(ctx, k.db.Read(), scanKey, text, MaxListed, skip)
	}
	const text = selectKey + ` WHERE k.account_id = $1 AND k.parent IS NULL` + listedOrder + ` LIMIT $2 OFFSET $3`
	return database.List(ctx, k.db.Read(), scanKey, text, account, MaxListed, skip)
}

// listedOrder is the order of the index keys_listed.
const listedOrder = ` ORDER BY (k.state = 'revoked'), k.created_at, k.id`

const maxSearch = 400 // bytes: four times the longest name

// Search returns the keys of an account whose name contains a text or whose secret begins with it, and with them those that keys
// have made: at most MaxListed after skip others, those that are not revoked first, and then the oldest.
func (k *Keys) Search(ctx context.Context, account, text string, skip int) ([]Key, error) {
	if len(text) > maxSearch || !utf8.ValidString(text) || strings.Contains(text, "\x00") {
		return nil, nil
	}
	const query = selectKey + `
		WHERE k.account_id = $1 AND (lower(k.name) LIKE $2 ESCAPE '\' OR k.prefix LIKE $3 ESCAPE '\')` + listedOrder + ` LIMIT $4 OFFSET $5`
	begins := likeEscaper.Replace(strings.TrimSuffix(text, "…")) + "%" // lists show a secret's beginning with an ellipsis
	return database.List(ctx, k.db.Read(), scanKey, query, account, "%"+strings.ToLower(begins), begins, MaxListed, skip)
}

// Usable returns the keys of an account with which requests may be sent, at most MaxListed, the oldest first.
func (k *Keys) Usable(ctx context.Context, account string) ([]Key, error) {
	const text = selectKey + `
		WHERE k.account_id = $1 AND k.state <> 'revoked' AND k.parent IS NULL AND k.state = 'active' AND (k.expires_at IS NULL OR k.expires_at > $2)
		LIMIT $3` // by the index keys_live
	keys, err := database.List(ctx, k.db.Read(), scanKey, text, account, now().UnixMicro(), MaxListed)
	slices.SortFunc(keys, func(a, b Key) int { return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID)) })
	return keys, err
}

// Count returns how many keys of each account are not revoked, without children, by the account's id.
func (k *Keys) Count(ctx context.Context) (map[string]int, error) {
	const text = `SELECT account_id, count(*) FROM keys WHERE state <> 'revoked' AND parent IS NULL GROUP BY account_id`
	counts := map[string]int{}
	err := database.Each(ctx, k.db.Read(), func(row *sql.Rows) error {
		var account string
		var n int
		err := row.Scan(&account, &n)
		counts[account] = n
		return err
	}, text)
	return counts, err
}

// Get returns the key with this id. The error may be ErrNoKey.
func (k *Keys) Get(ctx context.Context, id string) (Key, error) {
	key, err := database.One(ctx, k.db.Read(), scanKey, selectKey+` WHERE k.id = $1`, id)
	return orMissing(key, err, fmt.Errorf("%w: %s", ErrNoKey, quoteRedacted(id)))
}

// Find returns the key that ref names. A ref is the key's id, its secret, the beginning of its secret, up to the length of
// Key.Prefix, if only one key begins with it, or the name that only one key has; children and revoked keys are not counted if
// another has it. An ellipsis after the beginning is ignored, since lists show one. The error may be ErrNoKey or ErrAmbiguous.
func (k *Keys) Find(ctx context.Context, ref string) (Key, error) {
	return findKey(ctx, k.db.Read(), ref, "")
}

// findKey is Find, by name among the keys of one account; an empty account is all.
func findKey(ctx context.Context, q database.Reader, ref, account string) (Key, error) {
	if isWellFormed(ref) {
		return selectKeyByHash(ctx, q, hashSecret(ref))
	}
	found, err := selectKeysByID(ctx, q, ref)
	if err == nil && len(found) == 0 {
		found, err = selectKeysByPrefix(ctx, q, strings.TrimSuffix(ref, "…"))
	}
	if err == nil && len(found) == 0 {
		found, err = selectKeysByName(ctx, q, ref, account)
		if len(found) > 1 && found[0].nameRank() < found[1].nameRank() {
			found = found[:1]
		}
	}
	switch {
	case err != nil:
		return Key{}, err
	case len(found) == 0:
		return Key{}, fmt.Errorf("%w: %s", ErrNoKey, quoteRedacted(ref))
	case len(found) > 1:
		return Key{}, fmt.Errorf("%w: %s is %s (%s of %s) and %s (%s of %s)", ErrAmbiguous, quoteRedacted(ref),
			found[0].ID, found[0].Name, found[0].Email, found[1].ID, found[1].Name, found[1].Email)
	}
	return found[0], nil
}

// nameRank orders keys of one name: a lower one is meant, as selectKeysByName orders them.
func (k *Key) nameRank() (rank int) {
	if k.State == KeyRevoked {
		rank = 2
	}
	if k.Parent != "" {
		rank++
	}
	return rank
}

// quoteRedacted quotes a ref for an error. A ref may contain most of a secret, so it is cut to the length of
// Key.Prefix.
func quoteRedacted(ref string) string {
	if len(ref) > prefixLength && strings.HasPrefix(ref, secretTag) {
		ref = prefixOf(ref) + "…"
	}
	return strconv.Quote(ref)
}
