package receipt

import (
	"context"
	"fmt"
	"math"
	"time"

	"go.uber.org/zap"
	"golang.org/x/mod/sumdb/tlog"

	"basegate/database"
	"basegate/internal/wait"
)

// wakeSequencer puts a token into the sequencer's channel.
func (l *Log) wakeSequencer() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// sequence signs the entries for which no request waits, and saves the tree, until ctx ends.
func (l *Log) sequence(ctx context.Context) {
	failing, saved := false, time.Time{}
	for {
		select {
		case <-l.wake:
		case <-ctx.Done():
			_ = l.save(ctx) // the next start tries again
			return
		}
		if !wait.For(ctx, lazyPace) {
			continue
		}
		var err error
		if time.Since(saved) < savePace {
			_, err = l.sign(ctx, everything)
			l.wakeSequencer()
		} else if err = l.save(ctx); err == nil {
			saved = time.Now()
		}
		switch {
		case err == nil && failing:
			l.log.Info("entries are added to the receipt log again")
		case err != nil:
			l.wakeSequencer()
			if !failing {
				l.log.Error("entries cannot be added to the receipt log", zap.Error(err))
			}
			wait.For(ctx, retryAfter)
		}
		failing = err != nil
	}
}

// enqueue records an entry that a transaction has inserted. It returns false if the entry is not the next one of the log.
func (l *Log) enqueue(seq int64, leaf Hash) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.queue.insert(seq, tlog.Hash(leaf))
}

// isConfirmed reports whether a later entry, or this one, has been confirmed: then those before it are on disk too, since
// places are assigned in the order of the transactions.
func (l *Log) isConfirmed(seq int64) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.queue.confirmed >= seq
}

// confirm records that the entries up to a place are on disk.
func (l *Log) confirm(seq int64) {
	l.mu.Lock()
	l.queue.confirm(seq)
	l.mu.Unlock()
	l.wakeSequencer()
}

// everything is a size that no tree has: sign then signs every entry that is confirmed.
const everything = math.MaxInt64

// sign adds the confirmed entries to the tree and signs its head, unless it has enough entries already. The first of the
// requests that wait signs for all of them. The head may still be too small for an entry that is not confirmed. If sign
// fails, the entries stay in the tree, and the next call signs it.
func (l *Log) sign(ctx context.Context, size int64) (*signedHead, error) {
	advanced := *l.advanced.Load()
	if size == everything {
		advanced = nil
	}
	if head := l.published.Load(); head.Size >= size {
		return head, nil
	}
	select {
	case l.signing <- struct{}{}:
	case <-advanced:
		return l.published.Load(), nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for tree head: %w", context.Cause(ctx))
	}
	defer func() { <-l.signing }()
	if head := l.published.Load(); head.Size >= size {
		return head, nil
	}
	head, err := l.addConfirmed()
	if err != nil || head.Size == l.published.Load().Size {
		return l.published.Load(), err
	}
	signed := &signedHead{TreeHead: head}
	if signed.checkpoint, err = signTreeHead(&head, l.key.signer); err != nil {
		return nil, err
	}
	if err := l.heads.saveNewest(signed.checkpoint); err != nil {
		return nil, err
	}
	l.publishHeadOf(signed)
	return signed, nil
}

// publishHeadOf lets a tree head that is on disk be seen.
func (l *Log) publishHeadOf(head *signedHead) {
	l.published.Store(head)
	next := make(chan struct{})
	close(*l.advanced.Swap(&next))
}

// addConfirmed adds the confirmed entries to the tree, and returns its head.
func (l *Log) addConfirmed() (head TreeHead, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, leaf := range l.queue.take() {
		l.tree.append(leaf)
	}
	head = TreeHead{Origin: l.key.verifier.Name(), Size: l.tree.size}
	head.Root, err = l.tree.root(head.Size)
	return head, err
}

// save signs a tree head with every confirmed entry, and saves it with the changed tiles. A tree head that was given out
// before is on disk already, and so are its entries, of which the next start would make the tiles again.
func (l *Log) save(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	head, err := l.sign(ctx, everything)
	if err != nil {
		return err
	}
	l.mu.Lock()
	tiles := l.tree.takeChanged()
	l.mu.Unlock()
	if len(tiles) == 0 {
		return nil
	}
	err = l.db.WriteGrouped(ctx, func(tx database.Tx) error {
		if err := saveTiles(ctx, tx, tiles); err != nil {
			return err
		}
		return saveState(ctx, tx, state{l.key.vkey, head.Size, head.checkpoint})
	})
	if err == nil {
		err = l.db.Flush(ctx)
	}
	l.mu.Lock()
	if err == nil {
		l.tree.forgetSaving()
	} else {
		l.tree.restoreChanged()
	}
	l.mu.Unlock()
	if err != nil {
		return fmt.Errorf("save tree: %w", err)
	}
	return l.heads.save(head.checkpoint)
}
