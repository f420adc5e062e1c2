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
	return s.save(ctx, Prompt{ID: "pr_" + rand.Text(), Account: account, Origin: d.Origin}, 0, d, true)
}

// Update stores another version of a prompt, also if there is a later one than that which the draft is based on, and returns its
// number. The caller has asked AllowSave. The error may be ErrNotFound or a *QuotaError.
func (s *Store) Update(ctx context.Context, account, id string, basedOn int64, d Draft) (int64, error) {
	p, err := s.save(ctx, Prompt{ID: id, Account: account}, basedOn, d, false)
	return p.Version, err
}

// save stores a document and its row. It checks before, so that a save that would be refused writes nothing, and again in the
// transaction.
func (s *Store) save(ctx context.Context, saved Prompt, basedOn int64, d Draft, isNew bool) (Prompt, error) {
	saved.Name, saved.Model = d.Name, d.Model
	saved.Updated = time.UnixMicro(time.Now().UnixMicro()).UTC() // the resolution of the database
	p := stored{Prompt: saved, words: searchWords(d), documentBytes: int64(len(d.Document))}
	p.Bytes = int64(len(d.Document) + len(p.words))
	if _, err := s.check(ctx, s.db.Read(), &p, basedOn, isNew); err != nil {
		return Prompt{}, fmt.Errorf("save prompt: %w", err)
	}
	keep := func(ctx context.Context, tx database.Tx, object string) error {
		oldest, err := s.check(ctx, tx, &p, basedOn, isNew)
		if err != nil {
			return err
		}
		p.object = object
		if err := s.supersede(ctx, tx, p.ID, oldest); err != nil {
			return err
		}
		return insertPrompt(ctx, tx, &p)
	}
	err := s.inTurn(ctx, saved.Account, "save prompt", func() error {
		if err := s.makeRoom(ctx, saved.Account, p.Bytes); err != nil {
			return err
		}
		if s.objects != nil {
			return s.objects.WriteObject(ctx, d.Document, keep)
		}
		p.document = d.Document
		return s.db.WriteGrouped(ctx, func(tx database.Tx) error { return keep(ctx, tx, "") })
	})
	if err != nil {
		return Prompt{}, err
	}
	return p.Prompt, nil
}

// check returns why a prompt cannot be saved. Else it completes the prompt by what follows from the latest version, and returns the
// oldest version that stays: the latest one goes for want of room, unless the draft is not based on it.
func (s *Store) check(ctx context.Context, from database.Reader, p *stored, basedOn int64, isNew bool) (oldest int64, err error) {
	var old stored
	if !isNew {
		if old, err = selectPrompt(ctx, from, latestOfAccount, p.Account, p.ID); err != nil {
			return 0, err
		}
		p.Share, p.Everyone, p.Origin = old.Share, old.Everyone, old.Origin
	}
	p.Version = old.Version + 1
	used, err := selectUsage(ctx, from, p.Account)
	limit, others, isSmaller := s.MaxBytesPerAccount(), used.latestBytes, false
	if basedOn == old.Version {
		others -= old.Bytes
		isSmaller = p.Bytes <= old.Bytes
	}
	switch {
	case err != nil:
		return 0, err
	case isNew && used.prompts >= MaxPrompts:
		return 0, ErrTooMany
	case used.latestBytes+p.Bytes <= limit:
		return p.Version - MaxVersions + 1, nil
	case others+p.Bytes <= limit || isSmaller: // to save less is always allowed
		return p.Version, nil
	}
	return 0, &QuotaError{Used: others, Size: p.Bytes, Max: limit}
}

// supersede makes the latest version of a prompt, if there is one, an earlier one, and deletes those before the oldest that stays.
func (s *Store) supersede(ctx context.Context, tx database.Tx, id string, oldest int64) error {
	const text = `
		UPDATE prompts SET latest = FALSE, share_id = '', everyone = FALSE, origin = '', words = $2, bytes = document_bytes
		WHERE id = $1 AND latest = TRUE`
	if err := database.Exec(ctx, tx, text, id, []byte{}); err != nil {
		return err
	}
	_, err := s.remove(ctx, tx, `id = $1 AND version < $2`, id, oldest)
	return err
}

// maxRemoved limits the versions that are deleted in one transaction, which other writes wait for.
const maxRemoved = 100

// makeRoom deletes the oldest versions of an account, but no latest one, while so many bytes do not fit beside them.
func (s *Store) makeRoom(ctx context.Context, account string, bytes int64) error {
	const text = `
		SELECT id, version, bytes FROM prompts WHERE account_id = $1 AND latest = FALSE ORDER BY updated_at, id, version LIMIT $2`
	for removed := 1; removed > 0; {
		used, err := selectUsage(ctx, s.db.Read(), account)
		excess := used.bytes + bytes - s.MaxBytesPerAccount()
		if err != nil || excess <= 0 {
			return err
		}
		err = s.db.WriteGrouped(ctx, func(tx database.Tx) error {
			removed = 0
			oldest, err := database.List(ctx, tx, func(row database.Scanner) (p Prompt, err error) {
				err = row.Scan(&p.ID, &p.Version, &p.Bytes)
				return p, err
			}, text, account, maxRemoved)
			for ; err == nil && excess > 0 && removed < len(oldest); removed++ {
				p := oldest[removed]
				_, err = s.remove(ctx, tx, `id = $1 AND version = $2`, p.ID, p.Version)
				excess -= p.Bytes
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// inTurn makes one write of an account at a time, and maxWrites of all. Accounts write in turn. An error says what the write was to do.
func (s *Store) inTurn(ctx context.Context, account, what string, write func() error) error {
	turn, err := s.writes.Acquire(ctx, account)
	if err != nil {
		return fmt.Errorf("%s: wait to write: %w", what, err)
	}
	defer turn.Release()
	if err := write(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// write is inTurn for a small write in a transaction that it may share with writes of other packages.
func (s *Store) write(ctx context.Context, account, what string, apply func(database.Tx) error) error {
	return s.inTurn(ctx, account, what, func() error { return s.db.WriteGrouped(ctx, apply) })
}

// Delete deletes a prompt with its versions and its link. Its words are overwritten when it returns nil, and its objects are deleted
// within a minute. The error may be ErrNotFound.
func (s *Store) Delete(ctx context.Context, account, id string) error {
	return s.delete(ctx, account, ofAccount, account, id)
}

// DeleteVersion deletes an earlier version of a prompt. The error may be ErrNotFound.
func (s *Store) DeleteVersion(ctx context.Context, account, id string, version int64) error {
	return s.delete(ctx, account, ofAccount+` AND version = $3 AND latest = FALSE`, account, id, version)
}

func (s *Store) delete(ctx context.Context, account, condition string, args ...any) error {
	return s.write(ctx, account, "delete prompt", func(tx database.Tx) error {
		found, err := s.remove(ctx, tx, condition, args...)
		if err == nil && !found {
			err = ErrNotFound
		}
		return err
	})
}

// remove deletes versions, lets their objects be deleted, and reports whether there were any. The objects of a storage which is not
// configured any more are left to the check of the database.
func (s *Store) remove(ctx context.Context, tx database.Tx, condition string, args ...any) (found bool, err error) {
	objects, err := database.List(ctx, tx, func(row database.Scanner) (name string, err error) {
		err = row.Scan(&name)
		return name, err
	}, `DELETE FROM prompts WHERE `+condition+` RETURNING object`, args...)
	for _, name := range objects {
		if err == nil && name != "" && s.objects != nil {
			err = s.objects.DeleteObject(ctx, tx, name)
		}
	}
	return len(objects) > 0, err
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

// ShareWithEveryone lists the link of a prompt for all accounts, or for none. The error may be ErrNotFound, also for want of a link.
func (s *Store) ShareWithEveryone(ctx context.Context, account, id string, everyone bool) error {
	const text = `UPDATE prompts SET everyone = $3 WHERE ` + latestOfAccount + ` AND share_id <> '' RETURNING id`
	return s.updateLatest(ctx, "share prompt with everyone", text, &id, account, id, everyone)
}

// setShare sets the link of a prompt that has none, or removes it if the new one is empty. It returns the link.
func (s *Store) setShare(ctx context.Context, account, id, share string) (kept string, err error) {
	const text = `
		UPDATE prompts SET share_id = CASE WHEN share_id = '' OR $3 = '' THEN $3 ELSE share_id END, everyone = everyone AND $3 <> ''
		WHERE ` + latestOfAccount + ` RETURNING share_id`
	err = s.updateLatest(ctx, "share prompt", text, &kept, account, id, share)
	return kept, err
}

// updateLatest runs an UPDATE of an account's prompt, whose arguments begin with the account, and scans what it returns. The error is
// ErrNotFound if it finds none.
func (s *Store) updateLatest(ctx context.Context, what, text string, returned *string, account string, args ...any) error {
	return s.write(ctx, account, what, func(tx database.Tx) error {
		err := tx.QueryRowContext(ctx, text, append([]any{account}, args...)...).Scan(returned)
		if errors.Is(err, sql.ErrNoRows) {
			return ErrNotFound
		}
		return err
	})
}
