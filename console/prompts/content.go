package prompts

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"basegate/database"
)

const (
	// chunkBytes is the size of the chunks of a content, except its last. It must stay as it is, because the position of
	// a byte in the stored chunks is computed with it. A commit with a chunk takes about a millisecond.
	chunkBytes = 64 << 10
	// maxSaveTime is the time after which the content of an unfinished save counts as left over.
	maxSaveTime = time.Hour
	// cleanInterval is the time between searches for what is left over.
	cleanInterval = time.Minute
	// cleaner has the turns of the cleaner.
	cleaner = ""
)

// content is the stored form of a document: its bytes followed by those of its searchable text.
type content struct {
	id            string
	data          []byte
	documentBytes int64
}

func newContent(d Draft) content {
	return content{
		id:            rand.Text(),
		data:          append(slices.Clip(d.Document), searchText(d)...),
		documentBytes: int64(len(d.Document)),
	}
}

func (c content) size() int64 { return int64(len(c.data)) }

// write makes a small write of an account: the transaction is shared with writes of other packages, but not with another
// one of this store. Accounts write in turn.
func (s *Store) write(ctx context.Context, account string, apply func(context.Context, database.Tx) error) error {
	turn, err := s.writes.Acquire(ctx, account)
	if err != nil {
		return fmt.Errorf("wait to write: %w", err)
	}
	defer turn.Release()
	applyCtx := context.WithoutCancel(ctx) // apply may run after ctx has ended
	return s.db.WriteGrouped(ctx, func(tx database.Tx) error { return apply(applyCtx, tx) })
}

// writeContent stores the chunks of a content, each in a separate transaction, and calls publish in that of the last.
// Until then the content counts as left over, so that it is deleted if the save is interrupted.
func (s *Store) writeContent(ctx context.Context, account string, c content, publish func(context.Context, database.Tx) error) (err error) {
	chunks := slices.Collect(slices.Chunk(c.data, chunkBytes))
	last := len(chunks) - 1
	defer func() {
		if err != nil && last > 0 {
			s.remove(ctx, account, c.id)
		}
	}()
	for n, chunk := range chunks[:last] {
		err := s.write(ctx, account, func(ctx context.Context, tx database.Tx) error {
			if n == 0 {
				if err := insertLeftover(ctx, tx, c.id, now().Add(maxSaveTime)); err != nil {
					return err
				}
			}
			return insertLeftoverChunk(ctx, tx, c.id, n, chunk)
		})
		if err != nil {
			return err
		}
	}
	return s.write(ctx, account, func(ctx context.Context, tx database.Tx) error {
		if last > 0 {
			if err := deleteLeftover(ctx, tx, c.id); err != nil {
				return err
			}
		}
		if err := insertChunk(ctx, tx, c.id, last, chunks[last]); err != nil {
			return err
		}
		return publish(ctx, tx)
	})
}

// discard deletes a content that is one chunk, and makes a longer one left over: removeDiscarded deletes that.
func discard(ctx context.Context, tx database.Tx, old stored) error {
	if old.bytes <= chunkBytes {
		return deleteChunks(ctx, tx, old.contentID)
	}
	return insertLeftover(ctx, tx, old.contentID, now())
}

// removeDiscarded deletes what discard has left of a content.
func (s *Store) removeDiscarded(ctx context.Context, account string, old stored) {
	if old.bytes > chunkBytes {
		s.remove(ctx, account, old.contentID)
	}
}

// remove deletes a content that is left over, one chunk in a transaction. If that fails, the cleaner tries again. It
// continues if ctx ends, since a user who deletes a prompt and closes the browser wants it gone.
func (s *Store) remove(ctx context.Context, account, contentID string) {
	if err := s.removeChunks(context.WithoutCancel(ctx), account, contentID); err != nil {
		s.logFailedRemoval(err)
	}
}

func (s *Store) logFailedRemoval(err error) {
	s.log.Warn("a replaced or deleted prompt is not yet removed from the database", zap.Error(err))
}

// removeChunks deletes a content that is left over. It does nothing if the content has been published, even by a write
// that was queued when its caller gave up.
func (s *Store) removeChunks(ctx context.Context, account, contentID string) error {
	for removed := false; !removed; {
		err := s.write(ctx, account, func(ctx context.Context, tx database.Tx) error {
			found, err := deleteLeftoverChunk(ctx, tx, contentID)
			if err != nil || found {
				return err
			}
			removed = true
			if err := deleteLeftover(ctx, tx, contentID); !errors.Is(err, errOverdue) {
				return err
			}
			return nil // it has been published, or another call has removed it
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// clean removes what is left over, until ctx ends.
func (s *Store) clean(ctx context.Context) {
	defer close(s.done)
	ticker := time.NewTicker(cleanInterval)
	defer ticker.Stop()
	for {
		if err := s.removeLeftovers(ctx); err != nil && ctx.Err() == nil {
			s.logFailedRemoval(err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (s *Store) removeLeftovers(ctx context.Context) error {
	ids, err := selectLeftovers(ctx, s.db.Read(), now())
	if err != nil {
		return err
	}
	for _, id := range ids {
		if err := s.removeChunks(ctx, cleaner, id); err != nil {
			return err
		}
	}
	return nil
}
