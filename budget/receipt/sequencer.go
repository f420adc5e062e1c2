package receipt

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"basegate/database"
	"basegate/internal/wait"
)

// A settlement, or Entry.Write, inserts an entry without a place. The sequencer numbers these, adds them to the tree and signs
// its head, all in one transaction: whatever becomes of a gateway, the rows, the tiles and the tree head fit together. The
// gateways of one PostgreSQL database all do so, in turns, since package database serializes their writes.

const (
	// pace is the least time between two rounds of the sequencer while streams run that may soon wait for one: under load many
	// entries share a tree head.
	pace = 10 * time.Millisecond
	// idlePace is the time between two rounds while no request waits.
	idlePace = 250 * time.Millisecond
	// flushPace is the least time between two flushes of the file of the tree head.
	flushPace = time.Second
	// retryAfter is the time between two rounds after one has failed.
	retryAfter = time.Second
	// roundLimit is the number of entries that are added at a time.
	roundLimit = 1024
)

// sequence adds pending entries to the log, and follows the tree heads of other gateways, until ctx ends; then it adds those that
// are left.
func (l *Log) sequence(ctx context.Context) {
	failing, woken := false, true
	for ctx.Err() == nil {
		err := l.poll(ctx, woken)
		next := make(chan struct{})
		close(*l.round.Swap(&next))
		switch {
		case err != nil && !failing && ctx.Err() == nil:
			l.log.Error("entries cannot be added to the receipt log", zap.Error(err))
		case err == nil && failing:
			l.log.Info("entries are added to the receipt log again")
		}
		if failing = err != nil; failing {
			wait.For(ctx, retryAfter)
		} else {
			woken = l.pause(ctx)
		}
	}
	if err := l.poll(context.WithoutCancel(ctx), false); err != nil {
		l.log.Warn("entries are left to the next start of the receipt log", zap.Error(err))
	}
}

// pause waits until a request waits for a tree head, and then for the streams that may end within pace of the round before. It
// reports whether one waits.
func (l *Log) pause(ctx context.Context) (woken bool) {
	paced, idle := time.NewTimer(pace), time.NewTimer(idlePace)
	defer paced.Stop()
	defer idle.Stop()
	select {
	case <-l.wake:
	case <-idle.C:
		return false
	case <-ctx.Done():
		return false
	}
	for l.streams.Load() > 0 {
		select {
		case <-l.wake:
		case <-paced.C:
			return true
		case <-ctx.Done():
			return true
		}
	}
	return true
}

// poll publishes a tree head that is newer than the published one, and adds the entries that are pending. It begins no transaction for
// nothing unless a request waits.
func (l *Log) poll(ctx context.Context, woken bool) error {
	if !woken {
		s, err := loadState(ctx, l.db.Read())
		if err != nil || !s.pending && s.checkpoint == l.published.Load().checkpoint {
			return err
		}
	}
	for more := true; more; {
		var err error
		if more, err = l.addRound(ctx); err != nil {
			return fmt.Errorf("add pending entries: %w", err)
		}
	}
	return nil
}

// loadHead returns the tree head of a state, and checks that it extends the published one.
func (l *Log) loadHead(s state, load TileSource) (*signedHead, error) {
	before := l.published.Load()
	switch {
	case before.checkpoint == s.checkpoint:
		return before, nil
	case s.vkey != l.key.vkey:
		return nil, errOtherKey
	}
	head, err := openHead(s, l.key.verifier)
	if err != nil {
		return nil, err
	}
	if head.tree, err = loadTree(&head.TreeHead, load); err != nil {
		return nil, err
	}
	return head, head.tree.extends(&before.TreeHead, "the one that this gateway has published")
}

// openHead returns the tree head of a state without its tree.
func openHead(s state, verifier note.Verifier) (*signedHead, error) {
	head, err := openCheckpoint(s.checkpoint, verifier)
	switch {
	case err != nil:
		return nil, fmt.Errorf("the receipt log in the database is damaged: check tree head: %w", err)
	case head.Size != s.size:
		return nil, errDamaged
	}
	return &signedHead{TreeHead: head, checkpoint: s.checkpoint}, nil
}

// loadTree returns the tree of a head from its tiles, whose root it checks.
func loadTree(head *TreeHead, load TileSource) (*tree, error) {
	t, err := newTree(head.Size, load)
	if err != nil {
		return nil, err
	}
	return t, t.hasRoot(head, errDamaged)
}

// addRound adds pending entries, at most roundLimit of them, and reports whether there may be more.
func (l *Log) addRound(ctx context.Context) (more bool, _ error) {
	var head *signedHead
	var full bool
	err := l.db.WriteGrouped(ctx, func(tx database.Tx) error {
		s, err := loadState(ctx, tx)
		if err == nil {
			head, err = l.loadHead(s, StoredTiles(ctx, tx))
		}
		if err != nil || !s.pending {
			return err
		}
		leaves, err := numberPending(ctx, tx, head.Size)
		if err != nil || len(leaves) == 0 {
			return err
		}
		t := head.tree.next()
		for _, leaf := range leaves {
			t.append(leaf)
			t.places[Hash(leaf)] = t.size
		}
		full = len(leaves) == roundLimit
		head, err = saveTree(ctx, tx, t, l.key)
		return err
	})
	if err == nil && head.checkpoint != l.published.Load().checkpoint {
		err = l.install(ctx, head)
	}
	return full && err == nil, err
}

// saveTree writes the tiles of a tree and its signed head.
func saveTree(ctx context.Context, tx database.Tx, t *tree, key *signingKey) (*signedHead, error) {
	err := t.save(func(id tlog.Tile, hashes []byte) error { return saveTile(ctx, tx, id, hashes) })
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

// appendUpTo adds the stored entries up to a place, and calls store with the tiles: the tree has no more than roundLimit entries in
// memory.
func (t *tree) appendUpTo(ctx context.Context, from database.Reader, last int64, store func(tlog.Tile, []byte) error) error {
	for t.size < last {
		if err := t.appendStored(ctx, from, min(roundLimit, last-t.size)); err != nil {
			return err
		}
		if err := t.save(store); err != nil {
			return err
		}
	}
	return nil
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
	return nil
}
