package prompts

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"basegate/database"
)

// AllowSave returns when an account that has saved too much lately may save again; 0: at once. It is asked before a save whose
// body has so many bytes is read.
func (s *Store) AllowSave(account string, bytes int64) time.Duration {
	return s.rate.Take(account, int(min(max(bytes, minCost), rateBurst)))
}

// Create stores a new prompt of an account, whose caller has asked AllowSave. The error may be ErrTooMany or a *QuotaError.
func (s *Store) Create(ctx context.Context, account string, d Draft) (Prompt, error) {
	return s.save(ctx, Prompt{ID: "pr_" + rand.Text(), Version: 1, Account: account}, d, true)
}

// Update replaces a prompt, unless it was changed since the version that the draft is based on, and returns the new
// version. The caller has asked AllowSave. The error may be ErrNotFound, ErrConflict or a *QuotaError.
func (s *Store) Update(ctx context.Context, account, id string, version int64, d Draft) (int64, error) {
	p, err := s.save(ctx, Prompt{ID: id, Version: version + 1, Account: account}, d, false)
	return p.Version, err
}

// save stores a document and its row. It checks before, so that a save that would be refused writes nothing, and again in the
// transaction.
func (s *Store) save(ctx context.Context, saved Prompt, d Draft, isNew bool) (Prompt, error) {
	saved.Name, saved.Model = d.Name, d.Model
	saved.Updated = time.UnixMicro(time.Now().UnixMicro()).UTC() // the resolution of the database
	p := stored{Prompt: saved, words: searchWords(d), documentBytes: int64(len(d.Document))}
	p.Bytes = int64(len(d.Document) + len(p.words))
	if _, err := s.check(ctx, s.db.Read(), &p, isNew); err != nil {
		return Prompt{}, fmt.Errorf("save prompt: %w", err)
	}
	keep := func(ctx context.Context, tx database.Tx, object string) error {
		old, err := s.check(ctx, tx, &p, isNew)
		if err != nil {
			return err
		}
		p.object = object
		if err := upsertPrompt(ctx, tx, &p); err != nil {
			return err
		}
		return s.discard(ctx, tx, old.object)
	}
	var err error
	if s.objects == nil {
		p.document = d.Document
		err = s.write(ctx, saved.Account, func(ctx context.Context, tx database.Tx) error { return keep(ctx, tx, "") })
	} else {
		err = s.inTurn(ctx, saved.Account, func() error { return s.objects.WriteObject(ctx, d.Document, keep) })
	}
	if err != nil {
		return Prompt{}, fmt.Errorf("save prompt: %w", err)
	}
	return p.Prompt, nil
}

// check returns the row that a prompt replaces, or why the prompt cannot be saved.
func (s *Store) check(ctx context.Context, from database.Reader, p *stored, isNew bool) (old stored, err error) {
	if !isNew {
		if old, err = selectPrompt(ctx, from, ofAccount, p.Account, p.ID); err != nil {
			return old, err
		}
		if old.Version != p.Version-1 {
			return old, ErrConflict
		}
	}
	count, used, err := selectUsage(ctx, from, p.Account, p.ID)
	switch limit := s.MaxBytesPerAccount(); {
	case err != nil:
		return old, err
	case isNew && count >= MaxPrompts:
		return old, ErrTooMany
	case p.Bytes > old.Bytes && used+p.Bytes > limit: // to save less is always allowed
		return old, &QuotaError{Used: used, Size: p.Bytes, Max: limit}
	}
	return old, nil
}

// inTurn makes one write of an account at a time, and maxWrites of all. Accounts write in turn.
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
		return s.db.WriteGrouped(ctx, func(tx database.Tx) error { return apply(ctx, tx) })
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
		if _, err := tx.ExecContext(ctx, `DELETE FROM prompts WHERE id = $1`, id); err != nil {
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

// Share returns the id of a prompt's link, which it makes if there is none. Everyone who knows the id can read the prompt
// until Unshare or Delete. The error may be ErrNotFound.
func (s *Store) Share(ctx context.Context, account, id string) (share string, isNew bool, err error) {
	proposed := "sh_" + rand.Text()
	share, err = s.setShare(ctx, account, id, proposed)
	return share, share == proposed, err
}

// Unshare revokes the link of a prompt; a later one has another id. The error may be ErrNotFound.
func (s *Store) Unshare(ctx context.Context, account, id string) error {
	_, err := s.setShare(ctx, account, id, "")
	return err
}

// setShare sets the link of a prompt that has none, or removes it if the new one is empty. It returns the link.
func (s *Store) setShare(ctx context.Context, account, id, share string) (string, error) {
	const text = `
		UPDATE prompts SET share_id = CASE WHEN share_id = '' OR $3 = '' THEN $3 ELSE share_id END
		WHERE account_id = $1 AND id = $2 RETURNING share_id`
	var kept string
	err := s.write(ctx, account, func(ctx context.Context, tx database.Tx) error {
		err := tx.QueryRowContext(ctx, text, account, id, share).Scan(&kept)
		if errors.Is(err, sql.ErrNoRows) {
			return ErrNotFound
		}
		return err
	})
	if err != nil {
		return "", fmt.Errorf("share prompt: %w", err)
	}
	return kept, nil
}
