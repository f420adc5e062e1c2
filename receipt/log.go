// Package receipt is a transparency log of answers: an append-only Merkle tree with one entry for each request that asked
// for a receipt, whose heads are signed, and the documents that prove an entry.
//
// An entry says which model has given which answer to which request, without a text of either: it has the addresses (CIDs)
// of both, salted with a nonce. Whoever has the request, the answer and the receipt can verify all offline. The package
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
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/mod/sumdb/tlog"

	"basegate/database"
	"basegate/internal/wait"
)

// Settings configure a Log.
type Settings struct {
	Folder    string // of the signing key and the latest tree head
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
	failures atomic.Int64 // tree heads that could not be published

	mu   sync.Mutex // guards tree
	tree *tree

	published atomic.Pointer[signedHead]
	advanced  atomic.Pointer[chan struct{}] // closed when published advances

	wake       chan struct{} // capacity 1; holds a token if the sequencer should look for entries
	demand     chan struct{} // capacity 1; holds a token if somebody waits for the next tree head
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
	// pace is the least time between two runs of the sequencer: under load, many entries share one tree head.
	pace = 20 * time.Millisecond
	// lazyPace is how long entries wait for a tree head while nobody waits for it: a run writes and flushes two files.
	lazyPace = 200 * time.Millisecond
	// retryAfter is the time between two runs after one has failed.
	retryAfter = time.Second
	// roundLimit is the largest number of entries that one run adds.
	roundLimit = 4096
)

// Open opens the log of a database, which begins with it if there is none, and checks that it extends each tree head that
// was given out before: the one in the folder, and the published one. The caller must hold the lock of the database.
func Open(ctx context.Context, s Settings, db *database.DB, log *zap.Logger) (*Log, error) {
	l := &Log{settings: s, db: db, log: log, wake: make(chan struct{}, 1), demand: make(chan struct{}, 1)}
	advanced := make(chan struct{})
	l.advanced.Store(&advanced)
	stored, found, err := loadState(ctx, db)
	if err != nil {
		return nil, err
	}
	if l.key, err = openKey(s, stored.vkey); err != nil {
		return nil, err
	}
	if !found {
		if stored, err = begin(ctx, db, l.key); err != nil {
			return nil, err
		}
	}
	if err := l.resume(ctx, stored); err != nil {
		return nil, err
	}
	return l, nil
}

// openKey reads the signing key, or makes it if the log has none.
func openKey(s Settings, vkey string) (*signingKey, error) {
	key, err := readKey(s.Folder)
	if errors.Is(err, ErrNoKey) && vkey == "" {
		return makeKey(s.Folder, s.Origin)
	}
	path := filepath.Join(s.Folder, keyFile)
	switch {
	case errors.Is(err, ErrNoKey):
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

// begin writes the empty tree of a new log.
func begin(ctx context.Context, db *database.DB, key *signingKey) (state, error) {
	head := TreeHead{Origin: key.verifier.Name()}
	var err error
	if head.Root, err = tlog.TreeHash(0, nil); err != nil {
		return state{}, fmt.Errorf("begin receipt log: %w", err)
	}
	checkpoint, err := signTreeHead(&head, key.signer)
	if err != nil {
		return state{}, err
	}
	s := state{vkey: key.vkey, checkpoint: checkpoint}
	err = db.WriteExclusive(ctx, func(tx database.Tx) error {
		return errors.Join(forgetTree(ctx, tx), saveState(ctx, tx, s))
	})
	if err != nil {
		return state{}, fmt.Errorf("begin receipt log: %w", err)
	}
	return s, nil
}

// resume loads the tree and checks it.
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
	for _, path := range []string{filepath.Join(l.settings.Folder, headFile), publishedFile(l.settings.Publish)} {
		if err := l.checkExtends(path); err != nil {
			return err
		}
	}
	if err := l.saveHead(s.checkpoint); err != nil {
		return err
	}
	l.published.Store(&signedHead{head, s.checkpoint})
	return nil
}

// saveHead writes a tree head to the folder before anybody sees it.
func (l *Log) saveHead(checkpoint string) error {
	if err := writeFile(filepath.Join(l.settings.Folder, headFile), []byte(checkpoint)); err != nil {
		return fmt.Errorf("save tree head: %w", err)
	}
	return nil
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

// checkExtends checks that the tree extends the tree head in a file, if there is one.
func (l *Log) checkExtends(path string) error {
	if path == "" {
		return nil
	}
	checkpoint, err := readFile(path)
	if err != nil {
		return fmt.Errorf("read tree head: %w", err)
	}
	if checkpoint == "" {
		return nil
	}
	head, err := openCheckpoint(checkpoint, l.key.verifier)
	if err != nil {
		return fmt.Errorf("%s is not a tree head of this receipt log: %w", path, err)
	}
	return l.tree.extends(&head, path)
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
	l.sequencer.start(ctx, l.sequence)
	l.publishing.start(ctx, l.publish)
	l.wakeSequencer()
}

// Close adds the entries that are left, publishes the last tree head to a file, and waits for the goroutines to exit.
func (l *Log) Close() {
	l.sequencer.end()
	l.publishing.end()
}

func (l *Log) wakeSequencer() { signal(l.wake) }

// signal puts a token into a channel of capacity 1.
func signal(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

// sequence adds entries to the tree until ctx ends.
func (l *Log) sequence(ctx context.Context) {
	failing := false
	for {
		select {
		case <-l.wake:
		case <-ctx.Done():
			_ = l.addAll(context.WithoutCancel(ctx)) // the next start tries again
			return
		}
		l.gather(ctx)
		pause := pace
		err := l.addAll(ctx)
		if err != nil {
			pause = retryAfter
			l.wakeSequencer()
			if !failing {
				l.log.Error("entries cannot be added to the receipt log", zap.Error(err))
			}
		} else if failing {
			l.log.Info("entries are added to the receipt log again")
		}
		failing = err != nil
		wait.For(ctx, pause)
	}
}

// gather waits for further entries until somebody needs a tree head.
func (l *Log) gather(ctx context.Context) {
	lazy := time.NewTimer(lazyPace)
	defer lazy.Stop()
	select {
	case <-l.demand:
	case <-lazy.C:
	case <-ctx.Done():
	}
}

// addAll adds all entries that are not in the tree yet.
func (l *Log) addAll(ctx context.Context) error {
	for {
		added, err := l.addEntries(ctx)
		if err != nil || added < roundLimit {
			return err
		}
	}
}

// addEntries adds up to roundLimit entries, signs the new tree head, and lets it be seen when it is on disk. If that fails,
// the entries stay in the tree in memory, which a later call saves: it is a function of the rows alone.
func (l *Log) addEntries(ctx context.Context) (added int64, err error) {
	l.mu.Lock()
	before := l.tree.size
	err = eachEntry(ctx, l.db, before, roundLimit, func(seq int64, leaf tlog.Hash, _ []byte) error {
		if seq != l.tree.size+1 {
			return &CutError{Have: l.tree.size, Size: seq, Source: "the entries in the database"}
		}
		l.tree.append(leaf)
		return nil
	})
	size, tiles := l.tree.size, l.tree.changed
	var head TreeHead
	if err == nil && size > l.published.Load().Size {
		head = TreeHead{Origin: l.key.verifier.Name(), Size: size}
		head.Root, err = l.tree.root(size)
	}
	l.mu.Unlock()
	if err != nil || head.Size == 0 {
		return 0, err
	}
	checkpoint, err := signTreeHead(&head, l.key.signer)
	if err != nil {
		return 0, err
	}
	// Only this goroutine changes the tree, so the write, for which it waits, may read tiles without the lock.
	ctx = context.WithoutCancel(ctx)
	err = l.db.WriteGrouped(ctx, func(tx database.Tx) error {
		return saveTree(ctx, tx, tiles, state{l.key.vkey, size, checkpoint})
	})
	if err == nil {
		err = l.db.Flush(ctx)
	}
	if err == nil {
		err = l.saveHead(checkpoint)
	}
	if err != nil {
		return 0, fmt.Errorf("save tree head: %w", err)
	}
	l.mu.Lock()
	clear(l.tree.changed)
	l.mu.Unlock()
	l.published.Store(&signedHead{head, checkpoint})
	next := make(chan struct{})
	close(*l.advanced.Swap(&next))
	return size - before, nil
}

// awaitInclusion waits until a tree head with the entry at a place is signed, and returns it.
func (l *Log) awaitInclusion(ctx context.Context, seq int64) (*signedHead, error) {
	for {
		advanced := *l.advanced.Load()
		if head := l.published.Load(); head.Size >= seq {
			return head, nil
		}
		signal(l.demand)
		select {
		case <-advanced:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for tree head: %w", context.Cause(ctx))
		}
	}
}

// prove returns the proof that a tree head has the entry at a place.
func (l *Log) prove(head *signedHead, seq int64) (tlog.RecordProof, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
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
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, inclusionTimeout)
	defer cancel()
	head, err := l.awaitInclusion(ctx, stored.seq)
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
