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
	c := newContent(d)
	p := Prompt{
		ID: "pr_" + rand.Text(), Name: d.Name, Model: d.Model, Version: 1, Updated: now(), Bytes: c.size(), Account: account,
	}
	check := func(ctx context.Context, q querier) error {
		count, used, err := selectUsage(ctx, q, account, "")
		if err != nil {
			return err
		}
		if count >= MaxPrompts {
			return ErrTooMany
		}
		return s.checkQuota(used, p.Bytes)
	}
	publish := func(ctx context.Context, tx database.Tx) error {
		if err := check(ctx, tx); err != nil {
			return err
		}
		return insertPrompt(ctx, tx, account, p, c)
	}
	if err := s.save(ctx, account, c, check, publish); err != nil {
		return Prompt{}, fmt.Errorf("save prompt: %w", err)
	}
	return p, nil
}

// Update replaces a prompt, unless it was changed since the version that the draft is based on, and returns the new
// version. The caller has asked AllowSave. The error may be ErrNotFound, ErrConflict or a *QuotaError.
func (s *Store) Update(ctx context.Context, account, id string, version int64, d Draft) (int64, error) {
	c := newContent(d)
	p := Prompt{ID: id, Name: d.Name, Model: d.Model, Version: version + 1, Updated: now(), Bytes: c.size()}
	var old stored
	check := func(ctx context.Context, q querier) (err error) {
		if old, err = selectStored(ctx, q, account, id); err != nil {
			return err
		}
		if old.version != version {
			return ErrConflict
		}
		_, used, err := selectUsage(ctx, q, account, id)
		if err != nil || p.Bytes <= old.bytes { // to save less is always allowed
			return err
		}
		return s.checkQuota(used, p.Bytes)
	}
	publish := func(ctx context.Context, tx database.Tx) error {
		if err := check(ctx, tx); err != nil {
			return err
		}
		if err := updatePrompt(ctx, tx, p, c); err != nil {
			return err
		}
		return discard(ctx, tx, old)
	}
	if err := s.save(ctx, account, c, check, publish); err != nil {
		return 0, fmt.Errorf("save prompt: %w", err)
	}
	s.removeDiscarded(ctx, account, old)
	return p.Version, nil
}

// Delete deletes a prompt. When it returns nil, the bytes of the prompt are overwritten; if that fails, the cleaner tries
// again. The error may be ErrNotFound.
func (s *Store) Delete(ctx context.Context, account, id string) error {
	var old stored
	err := s.write(ctx, account, func(ctx context.Context, tx database.Tx) (err error) {
		if old, err = selectStored(ctx, tx, account, id); err != nil {
			return err
		}
		if err := deletePrompt(ctx, tx, id); err != nil {
			return err
		}
		return discard(ctx, tx, old)
	})
	if err != nil {
		return fmt.Errorf("delete prompt: %w", err)
	}
	s.removeDiscarded(ctx, account, old)
	return nil
}

// checkQuota returns a *QuotaError if a prompt does not fit beside the account's others.
func (s *Store) checkQuota(used, size int64) error {
	if limit := s.MaxBytesPerAccount(); used+size > limit {
		return &QuotaError{Used: used, Size: size, Max: limit}
	}
	return nil
}

// save stores a content and publishes it. It calls check first, so that a save that would be refused writes nothing;
// publish checks again in its transaction.
func (s *Store) save(
	ctx context.Context, account string, c content,
	check func(context.Context, querier) error, publish func(context.Context, database.Tx) error,
) error {
	if c.documentBytes == 0 {
		return errEmpty
	}
	if err := check(ctx, s.db.Read()); err != nil {
		return err
	}
	return s.writeContent(ctx, account, c, publish)
}

// now returns the current time at the database's resolution of a microsecond.
func now() time.Time { return time.UnixMicro(time.Now().UnixMicro()).UTC() }

var (
	errEmpty   = errors.New("the document is empty")
	errOverdue = errors.New("the content has been removed, because the save took too long")
)

// Share returns the id of a prompt's link, which it makes if there is none. Everyone who knows the id can read the prompt
// until Unshare or Delete. The error may be ErrNotFound.
func (s *Store) Share(ctx context.Context, account, id string) (string, error) {
	var share string
	err := s.write(ctx, account, func(ctx context.Context, tx database.Tx) (err error) {
		if share, err = selectShare(ctx, tx, account, id); err != nil || share != "" {
			return err
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
