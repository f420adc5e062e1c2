package receipt

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"
	"golang.org/x/mod/sumdb/tlog"

	"basegate/database"
	"basegate/internal/wait"
)

// A settlement, or Entry.Write, inserts a pending entry. The sequencer numbers pending entries, adds them to the tree and signs
// its head, all in one transaction: whatever becomes of a gateway, the rows, the tiles and the tree head fit together. The
// gateways of one PostgreSQL database all do so, in turns, since package database serializes their writes.

const (
	// pace is the least time between two rounds of the sequencer, so that under load many entries share a tree head.
	pace = 20 * time.Millisecond
	// idlePace is the time between two rounds while no request waits.
	idlePace = 250 * time.Millisecond
	// flushPace is the least time between two flushes of the file of the tree head.
	flushPace = time.Second
	// retryAfter is the time between two rounds after one has failed.
	retryAfter = time.Second
	// roundLimit is the number of entries that are added at a time.
	roundLimit = 1024
)

// wakeSequencer puts a token into the sequencer's channel.
func (l *Log) wakeSequencer() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// sequence adds pending entries to the log, and follows the tree heads of other gateways, until ctx ends; then it adds those that
// are left.
func (l *Log) sequence(ctx context.Context) {
	failing := false
	for ctx.Err() == nil {
		err := l.poll(ctx)
		pause := pace
		switch {
		case err != nil && !failing && ctx.Err() == nil:
			l.log.Error("entries cannot be added to the receipt log", zap.Error(err))
		case err == nil && failing:
			l.log.Info("entries are added to the receipt log again")
		}
		if failing = err != nil; failing {
			pause = retryAfter
		}
		wait.For(ctx, pause)
		idle, cancel := context.WithTimeout(ctx, idlePace-pace)
		select {
		case <-l.wake: // a request waits
		case <-idle.Done():
		}
		cancel()
	}
	if err := l.poll(context.WithoutCancel(ctx)); err != nil {
		l.log.Warn("entries are left to the next start of the receipt log", zap.Error(err))
	}
}

// poll publishes a tree head that is newer than the published one, and adds the entries that are pending.
func (l *Log) poll(ctx context.Context) error {
	s, err := loadState(ctx, l.db.Read())
	if err == nil && s.checkpoint != l.published.Load().checkpoint {
		var head *signedHead
		if head, err = l.loadHead(s, l.load); err == nil {
			err = l.install(ctx, head)
		}
	}
	for s.pending && err == nil {
		s.pending, err = l.addRound(ctx)
	}
	return err
}

// loadHead loads the tree of a state and checks that it has the root of its head and extends the published one.
func (l *Log) loadHead(s state, load tileLoader) (*signedHead, error) {
	before := l.published.Load()
	if before != nil && before.checkpoint == s.checkpoint {
		return &signedHead{before.TreeHead, before.checkpoint, before.tree.with(load)}, nil
	}
	if s.vkey != l.key.vkey {
		return nil, errOtherKey
	}
	head, err := openCheckpoint(s.checkpoint, l.key.verifier)
	if err != nil {
		return nil, fmt.Errorf("the receipt log in the database is damaged: check tree head: %w", err)
	}
	t, err := newTree(s.size, load)
	if err != nil {
		return nil, err
	}
	root, err := t.root(s.size)
	switch {
	case err != nil:
		return nil, err
	case root != head.Root || head.Size != s.size:
		return nil, errDamaged
	case before != nil:
		err = t.extends(&before.TreeHead, "the one that this gateway has published")
	}
	return &signedHead{head, s.checkpoint, t}, err
}

// addRound adds pending entries, at most roundLimit of them, and reports whether there may be more.
func (l *Log) addRound(ctx context.Context) (more bool, _ error) {
	var left bool
	var head *signedHead
	ctx = context.WithoutCancel(ctx)
	err := l.db.WriteGrouped(ctx, func(tx database.Tx) error {
		s, err := loadState(ctx, tx)
		if err != nil {
			return err
		}
		before, err := l.loadHead(s, tilesOf(ctx, tx))
		if err != nil {
			return err
		}
		var added int64
		added, left, err = numberPending(ctx, tx, before.Size)
		if err == nil && added > 0 {
			head, err = extend(ctx, tx, before.tree, before.Size+added, l.key)
		}
		return err
	})
	if err == nil && head != nil {
		err = l.install(ctx, head)
	}
	if err != nil {
		return false, fmt.Errorf("add pending entries: %w", err)
	}
	return left, nil
}

// extend adds the entries up to a place to a tree, and writes its tiles and its signed head.
func extend(ctx context.Context, tx database.Tx, t *tree, last int64, key *signingKey) (*signedHead, error) {
	t, err := t.addEntries(ctx, tx, last, func(id tlog.Tile, hashes []byte) error { return saveTile(ctx, tx, id, hashes) })
	if err != nil {
		return nil, err
	}
	head := &signedHead{TreeHead: TreeHead{Origin: key.verifier.Name(), Size: t.size}, tree: t}
	if head.Root, err = t.root(t.size); err != nil {
		return nil, err
	}
	if head.checkpoint, err = signTreeHead(&head.TreeHead, key.signer); err != nil {
		return nil, err
	}
	return head, saveState(ctx, tx, key.vkey, head)
}

// addEntries returns the tree with the entries up to a place. It calls store with each tile that changes, which load must
// return afterwards: the tree has no more than roundLimit entries in memory.
func (t *tree) addEntries(ctx context.Context, from database.Reader, last int64, store func(tlog.Tile, []byte) error) (*tree, error) {
	for t.size < last {
		before := t.size
		if err := t.appendStored(ctx, from, min(roundLimit, last-before)); err != nil {
			return nil, err
		}
		for _, id := range tlog.NewTiles(tileHeight, before, t.size) {
			hashes, err := tlog.ReadTileData(id, t)
			if err == nil {
				err = store(id, hashes)
			}
			if err != nil {
				return nil, err
			}
		}
		next, err := newTree(t.size, t.load)
		if err != nil {
			return nil, err
		}
		t, next.places = next, t.places
	}
	return t, nil
}

// tilesOf returns the loader of the tiles of a database, or of a transaction.
func tilesOf(ctx context.Context, from database.Reader) tileLoader {
	return func(id tlog.Tile) ([]byte, error) { return loadTile(ctx, from, id) }
}

// install lets a tree head that was committed be seen, after it is on disk.
func (l *Log) install(ctx context.Context, head *signedHead) error {
	if err := l.db.Flush(ctx); err != nil {
		return fmt.Errorf("flush tree head: %w", err)
	}
	if l.settings.Folder != "" {
		flush := time.Since(l.flushed) >= flushPace
		if err := saveHead(l.settings.Folder, head.checkpoint, flush); err != nil {
			return err
		}
		if flush {
			l.flushed = time.Now()
		}
	}
	head.tree.load = l.load
	l.published.Store(head)
	next := make(chan struct{})
	close(*l.advanced.Swap(&next))
	return nil
}
