// Package identity stores accounts, API keys, console sessions and the audit log, and authenticates API requests.
//
// Keys.Authenticate reads an in-memory snapshot, without the database and without a lock. It costs a request next to
// nothing, and keeps working while the database cannot be read. Every change to accounts and keys increments a revision
// in the database. Each process polls the revision and reads the keys and accounts that have changed within a quarter of a
// second after a change by another process, and at once after a change of its own.
//
// The database holds no secrets: of a key it has the SHA-256, which cannot be reversed for 32 random bytes, and the
// first characters, by which people tell keys apart. Only Keys.Create returns a secret. Tokens of sessions and
// invitations are stored as hashes too, and passwords as argon2id hashes.
//
// The package stores caps and concurrency limits and returns them in a Principal. Package budget enforces them.
package identity

import (
	"time"

	"go.uber.org/zap"

	"basegate/database"
)

// Store holds the four parts that share one database. All are safe for concurrent use, also by several processes.
type Store struct {
	Keys     *Keys
	Accounts *Accounts
	Sessions *Sessions
	AuditLog *AuditLog
}

// Settings configure a Store.
type Settings struct {
	PollInterval      time.Duration // 0: DefaultPollInterval
	CatchUpInterval   time.Duration // 0: DefaultCatchUpInterval
	ConcurrencyPerKey int           // of a key without a concurrency of its own; 0: DefaultConcurrencyPerKey
	KeysPerAccount    int           // that are neither revoked nor expired, without children; 0: no limit
	ChildrenPerKey    int           // likewise of the keys that one key has made; 0: no limit
	Children          bool          // keys may make keys unless Key.Children says otherwise
	PasswordCost      PasswordCost  // of new passwords; zero: OWASP's recommendation, which only tests fall below

	// Changed is called, if not nil, when changes of keys or accounts are in force. Calls do not overlap. It must not
	// change accounts or keys: that would deadlock.
	Changed func()
}

// DefaultPollInterval keeps the snapshot within a quarter of a second of the database. A poll reads one row.
const DefaultPollInterval = 100 * time.Millisecond

// DefaultCatchUpInterval is the shortest time between two reads of the database because of unknown secrets. It limits what
// guesses cost the database to a hundred reads of one row a second.
const DefaultCatchUpInterval = 10 * time.Millisecond

// DefaultConcurrencyPerKey is the configuration's default.
const DefaultConcurrencyPerKey = 8

// New returns a Store. Every operation works at once, but the methods of Keys that read the snapshot know no key before
// Keys.Start.
func New(db *database.DB, log *zap.Logger, s Settings) *Store {
	keys := newKeys(db, log, s)
	return &Store{
		Keys:     keys,
		Accounts: &Accounts{db: db, keys: keys},
		Sessions: &Sessions{db: db, hasher: newPasswordHasher(s.PasswordCost)},
		AuditLog: &AuditLog{db: db},
	}
}

// now returns the current time at the database's resolution of a microsecond.
func now() time.Time { return time.UnixMicro(time.Now().UnixMicro()).UTC() }
