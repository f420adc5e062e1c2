// Package receipt is a transparency log of answers: an append-only Merkle tree with one entry for each request that asked
// for a receipt, whose heads are signed, and the documents that prove an entry.
//
// An entry says which model has given which answer to which request, without a text of either: it has the addresses (CIDs)
// of both, salted with a nonce. With the request, the answer and the receipt, all can be verified offline. The package
// promises that a tree head extends each that anybody has seen before, whatever ends the process: an entry is inserted in
// the transaction that settles its request, a sequencer then adds it to the tree, and a tree head leaves the process only
// after it is on disk. The formats are those of the Go checksum database and of c2sp.org: tlog-tiles, tlog-checkpoint,
// signed notes.
//
// Which requests get a receipt, and when their answers count as finished, is decided by package proxy.
package receipt

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/mod/sumdb/tlog"

	"basegate/database"
	"basegate/internal/wait"
)

// Settings configure a Log.
type Settings struct {
	Folder    string // of the latest tree heads; not used on PostgreSQL, where they are in the database alone
	Key       string // the file of the signing key
	Origin    string // the name of a log that begins with this process
	Publish   string // a file or an http(s) URL that receives the tree heads; empty: they are not published
	Transport http.RoundTripper
}

// Log is a receipt log. It is safe for concurrent use.
type Log struct {
	settings Settings
	db       *database.DB
	log      *zap.Logger
	key      *signingKey
	load     TileSource
	flushed  time.Time    // when the file of the tree head was last flushed; the sequencer's
	failures atomic.Int64 // tree heads that could not be published

	published atomic.Pointer[signedHead]
	round     atomic.Pointer[chan struct{}] // closed when the next round of the sequencer has ended

	streams    atomic.Int64  // those that will ask for a receipt and do not wait for a tree head yet
	wake       chan struct{} // capacity 1; holds a token if a request waits for a tree head
	sequencer  wait.Loop
	publishing wait.Loop
}

// signedHead is a tree head that is on disk and may be given out, with its tree.
type signedHead struct {
	TreeHead

	checkpoint string
	tree       *tree
}

// Open opens the log of a database, which begins with it if there is none, and checks that it extends each tree head that
// was given out before: those in the folder, and the published one. The caller must hold the lock of a SQLite database.
func Open(ctx context.Context, s Settings, db *database.DB, log *zap.Logger) (*Log, error) {
	l := &Log{settings: s, db: db, log: log, wake: make(chan struct{}, 1)}
	// The readers of a SQLite database change when its file is opened again.
	l.load = func(id tlog.Tile) ([]byte, error) { return loadTile(context.WithoutCancel(ctx), db.Read(), id) }
	round := make(chan struct{})
	l.round.Store(&round)
	if db.Postgres() != nil { // SQLite loses nothing that it has flushed
		if err := checkDurability(ctx, db.Read()); err != nil {
			return nil, err
		}
	}
	stored, err := loadState(ctx, db.Read())
	if err != nil && !errors.Is(err, ErrNoLog) {
		return nil, err
	}
	begun := err == nil
	if l.key, err = openKey(s, stored.vkey); err != nil {
		return nil, err
	}
	if !begun {
		if err := begin(ctx, db, l.key, false); err != nil {
			return nil, err
		}
	}
	if s.Folder != "" { // it may have no key
		if err := os.MkdirAll(s.Folder, 0o700); err != nil {
			return nil, fmt.Errorf("make folder of the receipt log: %w", err)
		}
	}
	head, err := verifyStored(ctx, db, s, l.key.vkey, false)
	if err != nil {
		return nil, err
	}
	return l, l.install(ctx, head)
}

// checkDurability returns an error if PostgreSQL may lose what it has committed. After a failover to a standby that lacked
// entries, the same key would sign two different logs.
func checkDurability(ctx context.Context, from database.Reader) error {
	const text = `
		SELECT current_setting('synchronous_commit'), current_setting('synchronous_standby_names') = '',
			(SELECT count(*) FROM pg_stat_replication WHERE state IS DISTINCT FROM 'backup')
				+ (SELECT count(*) FROM pg_replication_slots WHERE slot_type = 'physical')`
	var commit string
	var unnamed bool
	var standbys int
	if err := from.QueryRowContext(ctx, text).Scan(&commit, &unnamed, &standbys); err != nil {
		return fmt.Errorf("read the replication of the database: %w", err)
	}
	switch {
	case commit == "off":
		return errors.New("receipts.enabled: synchronous_commit of PostgreSQL is off, so an answer is finished before its entry is on disk: set it to on")
	case standbys > 0 && (unnamed || commit == "local"):
		return errors.New("receipts.enabled: PostgreSQL has standbys and waits for none of them (synchronous_standby_names, synchronous_commit), " +
			"so a failover could lose entries that signed tree heads cover: make a standby synchronous, or set receipts.enabled to false")
	}
	return nil
}

// openKey reads the signing key, or makes it if the log has none.
func openKey(s Settings, vkey string) (*signingKey, error) {
	path := s.Key
	key, err := readKey(path)
	if errors.Is(err, ErrNoKey) && vkey == "" {
		return makeKey(path, s.Origin)
	}
	switch {
	case errors.Is(err, ErrNoKey):
		if s.Folder == "" {
			path += " (receipts.key, which another gateway of the database has too)"
		}
		return nil, fmt.Errorf("the signing key of the receipt log is missing: put %s back from its backup, "+
			"or begin a new log with basegate receipt log new", path)
	case err != nil:
		return nil, err
	case vkey != "" && key.vkey != vkey:
		return nil, fmt.Errorf("the signing key %s is not that of the receipt log in the database: put the right one back, "+
			"or begin a new log with basegate receipt log new", path)
	}
	return key, nil
}

// begin begins a log with the entries that the database has, all under its first tree head. Unless the log is to begin anew, one
// that another gateway has begun stays.
func begin(ctx context.Context, db *database.DB, key *signingKey, anew bool) error {
	err := db.WriteExclusive(ctx, func(tx database.Tx) error {
		if !anew {
			if _, err := loadState(ctx, tx); !errors.Is(err, ErrNoLog) {
				return err
			}
		}
		if err := database.Exec(ctx, tx, `DELETE FROM receipt_tiles`); err != nil {
			return err
		}
		_, last, _, err := countEntries(ctx, tx)
		if err != nil {
			return err
		}
		t, err := newTree(0, StoredTiles(ctx, tx))
		if err == nil {
			err = t.appendUpTo(ctx, tx, last, func(id tlog.Tile, hashes []byte) error { return saveTile(ctx, tx, id, hashes) })
		}
		if err == nil {
			_, err = saveTree(ctx, tx, t, key)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("begin receipt log: %w", err)
	}
	return nil
}

var errOtherKey = errors.New("another gateway has begun a receipt log with another signing key: copy its file of receipts.key to this one, and start again")

var errDamaged = errors.New("the receipt log in the database is damaged: its hash tiles do not have the root of its tree head; " +
	"basegate receipt log check says more")

var errUncovered = errors.New("the receipt log in the database is damaged: it has entries behind its latest tree head, which no gateway leaves there; " +
	"begin a new log with basegate receipt log new")

// CutError is returned for a log that has fewer entries than a tree head that was given out.
type CutError struct {
	Have, Size int64
	Source     string // of the tree head
}

// Error implements error.
func (e *CutError) Error() string {
	return fmt.Sprintf("the receipt log has lost its tail: it has %d entries, but a tree head of %d was signed (%s). "+
		"If the database was restored from a backup, begin a new log with basegate receipt log new", e.Have, e.Size, e.Source)
}

// ForkError is returned for a log whose entries are not those of a tree head that was given out.
type ForkError struct {
	Size   int64
	Source string // of the tree head
}

// Error implements error.
func (e *ForkError) Error() string {
	return fmt.Sprintf("the receipt log was rewritten: its first %d entries have another root hash than the tree head of %d that was signed (%s). "+
		"If the database was restored from a backup, begin a new log with basegate receipt log new", e.Size, e.Size, e.Source)
}

// VerifierKey returns the key that verifies the tree heads.
func (l *Log) VerifierKey() string { return l.key.vkey }

// Size returns the number of entries of the latest tree head.
func (l *Log) Size() int64 { return l.published.Load().Size }

// PublishFailures returns how many attempts to publish a tree head have failed.
func (l *Log) PublishFailures() int64 { return l.failures.Load() }

// Start starts the sequencer and the publisher.
func (l *Log) Start(ctx context.Context) {
	l.sequencer.Start(ctx, l.sequence)
	l.publishing.Start(ctx, l.publish)
}

// Close signs the entries that are left, publishes the last tree head to a file, and waits for the goroutines to exit.
func (l *Log) Close() {
	l.sequencer.Close()
	l.publishing.Close()
}

// inclusionTimeout limits how long a receipt waits for a signed tree head with its entry.
const inclusionTimeout = 2 * time.Second

// otherProcess is the place before which an entry of another process may be.
const otherProcess = -1

// prove returns the receipt of an entry with its newest proof, without the entry and the nonce, and the stored entry. It waits
// until a signed tree has the entry. The error is sql.ErrNoRows if there is no such entry.
//
// An entry of this process is behind the place after. If it is in the latest tree because of the latest round, it is not read, and its
// stored entry is incomplete.
func (l *Log) prove(ctx context.Context, leaf Hash, after int64) (r *Receipt, stored storedEntry, err error) {
	ctx, cancel := context.WithTimeout(ctx, inclusionTimeout)
	defer cancel()
	for {
		round, head := *l.round.Load(), l.published.Load()
		switch isRecent := after != otherProcess && head.tree.before <= after; {
		case isRecent:
			stored.seq = head.tree.places[leaf]
		case head.Size > after:
			if stored, err = findEntry(ctx, l.db.Read(), leaf); err != nil {
				return nil, stored, err
			}
		}
		if stored.seq != 0 && stored.seq <= head.Size {
			proof, err := tlog.ProveRecord(head.Size, stored.seq-1, head.tree)
			if err != nil {
				return nil, stored, fmt.Errorf("prove entry: %w", err)
			}
			r = &Receipt{Object: objectName, LeafHash: leaf, Log: l.key.vkey}
			r.addProof(stored.seq-1, proof, head.checkpoint)
			return r, stored, nil
		}
		wait.Wake(l.wake)
		select {
		case <-round:
		case <-ctx.Done():
			return nil, stored, fmt.Errorf("wait for tree head: %w", context.Cause(ctx))
		}
	}
}
