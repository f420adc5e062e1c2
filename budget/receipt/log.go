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
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/mod/sumdb/tlog"

	"basegate/database"
)

// Settings configure a Log.
type Settings struct {
	Folder    string // of the latest tree heads; not used on PostgreSQL, where they are in the database alone
	Key       string // the file of the signing key
	Holder    string // the name of this gateway among those that share the log on PostgreSQL
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
	heads    *headFiles
	shared   bool         // on PostgreSQL, by several gateways
	waiting  atomic.Int64 // requests that wait for a tree head of a shared log
	failures atomic.Int64 // tree heads that could not be published

	mu    sync.RWMutex // guards tree and queue
	tree  *tree
	queue queue

	gate      gate
	signing   chan struct{} // capacity 1; holds a token while a goroutine signs a tree head
	published atomic.Pointer[signedHead]
	advanced  atomic.Pointer[chan struct{}] // closed when published advances

	wake       chan struct{} // capacity 1; holds a token if there is something to sign or to save
	sequencer  task
	publishing task
}

// task is a goroutine that runs until it is stopped.
type task struct {
	stop context.CancelFunc
	done sync.WaitGroup
}

func (t *task) start(ctx context.Context, run func(context.Context)) {
	ctx, t.stop = context.WithCancel(context.WithoutCancel(ctx))
	t.done.Go(func() { run(ctx) })
}

// end stops the task, if it has been started, and waits for it.
func (t *task) end() {
	if t.stop != nil {
		t.stop()
	}
	t.done.Wait()
}

// signedHead is a tree head that is on disk and may be given out.
type signedHead struct {
	TreeHead

	checkpoint string
}

const (
	// pace is how long after the group before a group of streams waits for others that may end soon: under load, many share a
	// transaction and a tree head.
	pace = 10 * time.Millisecond
	// lazyPace is how long entries for which no request waits stay without a tree head.
	lazyPace = 200 * time.Millisecond
	// savePace is the least time between two runs of the sequencer that save the tree: each writes and flushes two files.
	savePace = time.Second
	// publishPace is the least time between two tree heads that are published to a file.
	publishPace = 20 * time.Millisecond
	// retryAfter is the time between two runs after one has failed.
	retryAfter = time.Second
	// roundLimit is the number of entries that are read at a time.
	roundLimit = 4096
)

// Open opens the log of a database, which begins with it if there is none, and checks that it extends each tree head that
// was given out before: those in the folder, and the published one. The caller must hold the lock of the database.
func Open(ctx context.Context, s Settings, db *database.DB, log *zap.Logger) (*Log, error) {
	l := &Log{
		settings: s, db: db, log: log, shared: db.Postgres() != nil, heads: &headFiles{folder: s.Folder}, signing: make(chan struct{}, 1), wake: make(chan struct{}, 1),
	}
	advanced := make(chan struct{})
	l.advanced.Store(&advanced)
	if l.shared {
		if err := checkDurability(ctx, db); err != nil {
			return nil, err
		}
	}
	stored, found, err := loadState(ctx, db)
	if err != nil {
		return nil, err
	}
	if l.key, err = openKey(s, stored.vkey); err != nil {
		return nil, err
	}
	switch {
	case !found && l.shared:
		stored, err = beginShared(ctx, db, l.key)
	case !found:
		stored, err = begin(ctx, db, l.key)
	}
	if err == nil && !l.shared {
		err = os.MkdirAll(s.Folder, 0o700) // it may have no key
	}
	if err != nil {
		return nil, err
	}
	if err := l.resume(ctx, stored); err != nil {
		return nil, errors.Join(err, l.heads.close())
	}
	return l, nil
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

// emptyState returns the state of a new log.
func emptyState(key *signingKey) (state, error) {
	head := TreeHead{Origin: key.verifier.Name()}
	var err error
	if head.Root, err = tlog.TreeHash(0, nil); err != nil {
		return state{}, fmt.Errorf("begin receipt log: %w", err)
	}
	checkpoint, err := signTreeHead(&head, key.signer)
	if err != nil {
		return state{}, err
	}
	return state{vkey: key.vkey, checkpoint: checkpoint}, nil
}

// begin writes the empty tree of a new log.
func begin(ctx context.Context, db *database.DB, key *signingKey) (state, error) {
	s, err := emptyState(key)
	if err != nil {
		return s, err
	}
	err = db.WriteExclusive(ctx, func(tx database.Tx) error {
		return errors.Join(forgetTree(ctx, tx), saveState(ctx, tx, s))
	})
	if err != nil {
		return state{}, fmt.Errorf("begin receipt log: %w", err)
	}
	return s, nil
}

// resume loads the tree, adds the entries that it lacks, and checks it.
func (l *Log) resume(ctx context.Context, s state) error {
	head, err := openCheckpoint(s.checkpoint, l.key.verifier)
	if err != nil {
		return fmt.Errorf("the receipt log in the database is damaged: check tree head: %w", err)
	}
	rows, last, err := countEntries(ctx, l.db)
	switch {
	case err != nil:
		return err
	case rows != last || last < s.size || head.Size != s.size:
		return &CutError{Have: min(rows, last), Size: max(s.size, head.Size), Source: "the database's own tree head"}
	}
	load := func(id tileID) (*tile, error) { return loadTile(context.WithoutCancel(ctx), l.db, id) }
	if l.tree, err = newTree(s.size, load); err != nil {
		return err
	}
	root, err := l.tree.root(s.size)
	if err != nil {
		return err
	}
	if root != head.Root {
		return errDamaged
	}
	if !l.shared { // on PostgreSQL, entries get their places with a tree head
		if err := l.addStored(ctx); err != nil {
			return err
		}
	}
	given, err := givenHeads(l.settings, l.key.verifier)
	if err != nil {
		return err
	}
	for i := range given {
		if err := l.tree.extends(&given[i].TreeHead, given[i].path); err != nil {
			return err
		}
	}
	l.published.Store(&signedHead{head, s.checkpoint})
	if l.shared {
		return nil
	}
	newest, err := l.sign(ctx, everything)
	if err != nil {
		return err
	}
	return l.heads.save(newest.checkpoint)
}

// addStored adds the entries of the database that are not in the tree: those that were settled shortly before a process
// ended, or all of a log that begins anew. The tiles of many entries are written at once, so that they need no memory.
func (l *Log) addStored(ctx context.Context) error {
	for {
		before := l.tree.size
		err := eachLeaf(ctx, l.db.Read(), before, roundLimit, l.tree.appendNext)
		if err != nil || l.tree.size-before < roundLimit {
			l.queue.reset(l.tree.size)
			return err
		}
		if err := l.db.WriteExclusive(ctx, func(tx database.Tx) error { return saveTiles(ctx, tx, l.tree.takeChanged()) }); err != nil {
			return fmt.Errorf("save hash tiles: %w", err)
		}
		l.tree.forgetSaving()
	}
}

var errDamaged = errors.New("the receipt log in the database is damaged: its hash tiles do not have the root of its tree head; " +
	"basegate receipt log check says more")

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

// extends checks that the tree begins with the tree of a head.
func (t *tree) extends(head *TreeHead, source string) error {
	if head.Size > t.size {
		return &CutError{Have: t.size, Size: head.Size, Source: source}
	}
	root, err := t.root(head.Size)
	if err != nil {
		return err
	}
	if root != head.Root {
		return &ForkError{head.Size, source}
	}
	return nil
}

// VerifierKey returns the key that verifies the tree heads.
func (l *Log) VerifierKey() string { return l.key.vkey }

// Size returns the number of entries of the latest tree head.
func (l *Log) Size() int64 { return l.published.Load().Size }

// PublishFailures returns how many attempts to publish a tree head have failed.
func (l *Log) PublishFailures() int64 { return l.failures.Load() }

// Start starts the sequencer and the publisher.
func (l *Log) Start(ctx context.Context) {
	if l.shared {
		l.sequencer.start(ctx, l.sequenceShared)
	} else {
		l.sequencer.start(ctx, l.sequence)
	}
	l.publishing.start(ctx, l.publish)
	l.wakeSequencer()
}

// Close signs the entries that are left, publishes the last tree head to a file, and waits for the goroutines to exit.
func (l *Log) Close() {
	l.sequencer.end()
	l.publishing.end()
	if err := l.heads.close(); err != nil {
		l.log.Warn("the file of the newest tree head could not be closed", zap.Error(err))
	}
}

// awaitInclusion waits until a tree head with the entry at a place is signed, and returns it.
func (l *Log) awaitInclusion(ctx context.Context, seq int64) (*signedHead, error) {
	for ctx.Err() == nil {
		advanced := *l.advanced.Load()
		head, err := l.sign(ctx, seq)
		if err != nil || head.Size >= seq {
			return head, err
		}
		select { // until the entry is confirmed
		case <-advanced:
		case <-ctx.Done():
		}
	}
	return nil, fmt.Errorf("wait for tree head: %w", context.Cause(ctx))
}

// headWith waits for a tree head with an entry. On PostgreSQL it also sets the entry's place.
func (l *Log) headWith(ctx context.Context, seq *int64, leaf Hash) (head *signedHead, err error) {
	if !l.shared {
		return l.awaitInclusion(ctx, *seq)
	}
	head, *seq, err = l.awaitShared(ctx, leaf)
	return head, err
}

// prove returns the proof that a tree head has the entry at a place.
func (l *Log) prove(head *signedHead, seq int64) (tlog.RecordProof, error) {
	l.mu.RLock() // the streams of a group prove their entries at the same time
	defer l.mu.RUnlock()
	proof, err := tlog.ProveRecord(head.Size, seq-1, l.tree)
	if err != nil {
		return nil, fmt.Errorf("prove entry: %w", err)
	}
	return proof, nil
}

// find returns the receipt of an entry with its newest proof, without the entry and the nonce, and the stored entry. The
// error is sql.ErrNoRows if there is no such entry.
func (l *Log) find(ctx context.Context, leaf Hash) (*Receipt, *storedEntry, error) {
	stored, err := findEntry(ctx, l.db, leaf)
	if l.shared && isUnknown(err) {
		if err = l.awaitPending(ctx); err == nil {
			stored, err = findEntry(ctx, l.db, leaf)
		}
	}
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, inclusionTimeout)
	defer cancel()
	head, err := l.headWith(ctx, &stored.seq, leaf)
	if err != nil {
		return nil, nil, err
	}
	proof, err := l.prove(head, stored.seq)
	if err != nil {
		return nil, nil, err
	}
	r := &Receipt{Object: objectName, LeafHash: leaf, Log: l.key.vkey}
	r.prove(stored.seq-1, proof, head.checkpoint)
	return r, &stored, nil
}

// inclusionTimeout limits how long an answer waits for a signed tree head with its entry.
const inclusionTimeout = 2 * time.Second

// isUnknown reports whether an error of find says that there is no such entry.
func isUnknown(err error) bool { return errors.Is(err, sql.ErrNoRows) }
