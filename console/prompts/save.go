package prompts

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"basegate/database"
)

// AllowSave returns a *RateError if an account has saved too much lately. It is asked before a save whose body has so many
// bytes is read.
func (s *Store) AllowSave(account string, bytes int64) error {
	if retryIn := s.rate.Take(account, int(min(max(bytes, minCost), rateBurst))); retryIn > 0 {
		return &RateError{RetryIn: retryIn}
	}
	return nil
}

// Create stores a new prompt of an account, whose caller has asked AllowSave. The error may be ErrTooMany or a *QuotaError.
func (s *Store) Create(ctx context.Context, account string, d Draft) (Prompt, error) {
	p := newStored(d, Prompt{ID: "pr_" + rand.Text(), Version: 1, Account: account})
	err := s.save(ctx, account, d.Document, &p, func(ctx context.Context, q querier) error {
		count, used, err := selectUsage(ctx, q, account, "")
		if err != nil {
			return err
		}
		if count >= MaxPrompts {
			return ErrTooMany
		}
		return s.checkQuota(used, p.Bytes)
	}, func(ctx context.Context, tx database.Tx) error { return insertPrompt(ctx, tx, &p) })
	if err != nil {
		return Prompt{}, fmt.Errorf("save prompt: %w", err)
	}
	return p.Prompt, nil
}

// Update replaces a prompt, unless it was changed since the version that the draft is based on, and returns the new
// version. The caller has asked AllowSave. The error may be ErrNotFound, ErrConflict or a *QuotaError.
func (s *Store) Update(ctx context.Context, account, id string, version int64, d Draft) (int64, error) {
	p := newStored(d, Prompt{ID: id, Version: version + 1, Account: account})
	var old stored
	err := s.save(ctx, account, d.Document, &p, func(ctx context.Context, q querier) (err error) {
		if old, err = selectPrompt(ctx, q, ofAccount, account, id); err != nil {
			return err
		}
		if old.Version != version {
			return ErrConflict
		}
		_, used, err := selectUsage(ctx, q, account, id)
		if err != nil || p.Bytes <= old.Bytes { // to save less is always allowed
			return err
		}
		return s.checkQuota(used, p.Bytes)
	}, func(ctx context.Context, tx database.Tx) error {
		if err := updatePrompt(ctx, tx, &p); err != nil {
			return err
		}
		return s.discard(ctx, tx, old.object)
	})
	if err != nil {
		return 0, fmt.Errorf("save prompt: %w", err)
	}
	return p.Version, nil
}

// newStored returns a prompt as it will be stored.
func newStored(d Draft, p Prompt) stored {
	p.Name, p.Model, p.Updated = d.Name, d.Model, now()
	words := searchWords(d)
	p.Bytes = int64(len(d.Document) + len(words))
	return stored{Prompt: p, words: words, documentBytes: int64(len(d.Document))}
}

// save stores a document and calls put in the transaction with which it counts. It calls check before, so that a save that
// would be refused writes nothing, and again in the transaction.
func (s *Store) save(
	ctx context.Context, account string, document []byte, p *stored,
	check func(context.Context, querier) error, put func(context.Context, database.Tx) error,
) error {
	if len(document) == 0 {
		return errEmpty
	}
	if err := check(ctx, s.db.Read()); err != nil {
		return err
	}
	publish := func(ctx context.Context, tx database.Tx, object string) error {
		if err := check(ctx, tx); err != nil {
			return err
		}
		p.object = object
		return put(ctx, tx)
	}
	if s.objects == nil {
		p.document = document
		return s.write(ctx, account, func(ctx context.Context, tx database.Tx) error { return publish(ctx, tx, "") })
	}
	return s.inTurn(ctx, account, func() error { return s.objects.WriteObject(ctx, document, publish) })
}

// inTurn makes one write of the store at a time. Accounts write in turn.
func (s *Store) inTurn(ctx context.Context, account string, write func() error) error {
	turn, err := s.writes.Acquire(ctx, account)
	if err != nil {
		return fmt.Errorf("wait to write: %w", err)
	}
	defer turn.Release()
	return write()
}

// write makes a small write of an account in a transaction that it may share with writes of other packages.
func (s *Store) write(ctx context.Context, account string, apply func(context.Context, database.Tx) error) error {
	return s.inTurn(ctx, account, func() error {
		applyCtx := context.WithoutCancel(ctx) // apply may run after ctx has ended
		return s.db.WriteGrouped(ctx, func(tx database.Tx) error { return apply(applyCtx, tx) })
	})
}

// Delete deletes a prompt. Its words are overwritten when it returns nil, and its object is deleted within a minute. The
// error may be ErrNotFound.
func (s *Store) Delete(ctx context.Context, account, id string) error {
	err := s.write(ctx, account, func(ctx context.Context, tx database.Tx) error {
		old, err := selectPrompt(ctx, tx, ofAccount, account, id)
		if err != nil {
			return err
		}
		if err := deletePrompt(ctx, tx, id); err != nil {
			return err
		}
		return s.discard(ctx, tx, old.object)
	})
	if err != nil {
		return fmt.Errorf("delete prompt: %w", err)
	}
	return nil
}

// discard lets the object of a replaced or deleted prompt be deleted. That of a storage which is not configured any more is
// left to the check of the database.
func (s *Store) discard(ctx context.Context, tx database.Tx, object string) error {
	if object == "" || s.objects == nil {
		return nil
	}
	return s.objects.DeleteObject(ctx, tx, object)
}

// checkQuota returns a *QuotaError if a prompt does not fit beside the account's others.
func (s *Store) checkQuota(used, size int64) error {
	if limit := s.MaxBytesPerAccount(); used+size > limit {
		return &QuotaError{Used: used, Size: size, Max: limit}
	}
	return nil
}

// now returns the current time at the database's resolution of a microsecond.
func now() time.Time { return time.UnixMicro(time.Now().UnixMicro()).UTC() }

var errEmpty = errors.New("the document is empty")

// Share returns the id of a prompt's link, which it makes if there is none. Everyone who knows the id can read the prompt
// until Unshare or Delete. The error may be ErrNotFound.
func (s *Store) Share(ctx context.Context, account, id string) (string, error) {
	var share string
	err := s.write(ctx, account, func(ctx context.Context, tx database.Tx) error {
		old, err := selectPrompt(ctx, tx, ofAccount, account, id)
		if err != nil {
			return err
		}
		if share = old.Share; share != "" {
			return nil
		}
		share = "sh_" + rand.Text()
		return updateShare(ctx, tx, account, id, share)
	})
	if err != nil {
		return "", fmt.Errorf("share prompt: %w", err)
	}
	return share, nil
}

// Unshare revokes the link of a prompt; a later one has another id. The error may be ErrNotFound.
func (s *Store) Unshare(ctx context.Context, account, id string) error {
	err := s.write(ctx, account, func(ctx context.Context, tx database.Tx) error {
		return updateShare(ctx, tx, account, id, "")
	})
	if err != nil {
		return fmt.Errorf("stop sharing prompt: %w", err)
	}
	return nil
}
