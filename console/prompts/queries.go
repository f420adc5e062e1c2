package prompts

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"basegate/database"
)

// querier runs queries: a pool of read connections, or a transaction.
type querier interface {
	QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, text string, args ...any) *sql.Row
}

// listed is a prompt and where its searchable text is.
type listed struct {
	Prompt
	contentID     string
	documentBytes int64
}

// selectPrompts returns all prompts of an account, the last changed first.
func selectPrompts(ctx context.Context, q querier, account string) (all []listed, err error) {
	const text = `
		SELECT id, name, model, version, updated_at, bytes, share_id, content_id, document_bytes
		FROM prompts WHERE account_id = $1 ORDER BY updated_at DESC, id`
	rows, err := q.QueryContext(ctx, text, account)
	if err != nil {
		return nil, fmt.Errorf("list prompts: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var p listed
		var updated int64
		err := rows.Scan(&p.ID, &p.Name, &p.Model, &p.Version, &updated, &p.Bytes, &p.Share, &p.contentID, &p.documentBytes)
		if err != nil {
			return nil, fmt.Errorf("list prompts: %w", err)
		}
		p.Updated, p.Account = time.UnixMicro(updated).UTC(), account
		all = append(all, p)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("list prompts: %w", err)
	}
	return all, nil
}

// selectPromptWithDocument returns ErrNotFound if the account has no such prompt. It is one statement, so the prompt and
// its document match.
func selectPromptWithDocument(ctx context.Context, q querier, account, id string) (p Prompt, document []byte, err error) {
	const text = `
		SELECT p.name, p.model, p.version, p.updated_at, p.bytes, p.share_id, p.document_bytes, c.data
		FROM prompts p JOIN prompt_chunks c ON c.content_id = p.content_id
		WHERE p.account_id = $1 AND p.id = $2 AND c.n * $3 < p.document_bytes ORDER BY c.n`
	rows, err := q.QueryContext(ctx, text, account, id, chunkBytes)
	if err != nil {
		return Prompt{}, nil, fmt.Errorf("read prompt: %w", err)
	}
	defer rows.Close()
	p.ID, p.Account = id, account
	var updated, documentBytes int64
	var chunk sql.RawBytes
	for rows.Next() {
		if err := rows.Scan(&p.Name, &p.Model, &p.Version, &updated, &p.Bytes, &p.Share, &documentBytes, &chunk); err != nil {
			return Prompt{}, nil, fmt.Errorf("read prompt: %w", err)
		}
		document = append(document, chunk[:min(int64(len(chunk)), documentBytes-int64(len(document)))]...)
	}
	if err := rows.Err(); err != nil {
		return Prompt{}, nil, fmt.Errorf("read prompt: %w", err)
	}
	switch {
	case document == nil:
		return Prompt{}, nil, ErrNotFound
	case int64(len(document)) != documentBytes:
		return Prompt{}, nil, fmt.Errorf("read prompt %s: it has %d of %d bytes", id, len(document), documentBytes)
	}
	p.Updated = time.UnixMicro(updated).UTC()
	return p, document, nil
}

// selectUsage returns the number of an account's prompts and the bytes that they take, without the prompt with the id
// except.
func selectUsage(ctx context.Context, q querier, account, except string) (count, bytes int64, err error) {
	const text = `SELECT count(*), coalesce(sum(bytes), 0) FROM prompts WHERE account_id = $1 AND id <> $2`
	if err := q.QueryRowContext(ctx, text, account, except).Scan(&count, &bytes); err != nil {
		return 0, 0, fmt.Errorf("sum up prompts: %w", err)
	}
	return count, bytes, nil
}

// stored says which version of a prompt is stored, and where.
type stored struct {
	version   int64
	contentID string
	bytes     int64
}

// selectStored returns ErrNotFound if the account has no such prompt.
func selectStored(ctx context.Context, q querier, account, id string) (s stored, err error) {
	const text = `SELECT version, content_id, bytes FROM prompts WHERE account_id = $1 AND id = $2`
	err = q.QueryRowContext(ctx, text, account, id).Scan(&s.version, &s.contentID, &s.bytes)
	if errors.Is(err, sql.ErrNoRows) {
		return stored{}, ErrNotFound
	}
	if err != nil {
		return stored{}, fmt.Errorf("read version: %w", err)
	}
	return s, nil
}

func insertPrompt(ctx context.Context, tx database.Tx, account string, p Prompt, c content) error {
	const text = `
		INSERT INTO prompts (id, account_id, name, model, version, updated_at, content_id, document_bytes, bytes)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`
	_, err := tx.ExecContext(ctx, text,
		p.ID, account, p.Name, p.Model, p.Version, p.Updated.UnixMicro(), c.id, c.documentBytes, p.Bytes)
	return err
}

func updatePrompt(ctx context.Context, tx database.Tx, p Prompt, c content) error {
	const text = `
		UPDATE prompts SET name = $2, model = $3, version = $4, updated_at = $5,
		                   content_id = $6, document_bytes = $7, bytes = $8
		WHERE id = $1`
	_, err := tx.ExecContext(ctx, text,
		p.ID, p.Name, p.Model, p.Version, p.Updated.UnixMicro(), c.id, c.documentBytes, p.Bytes)
	return err
}

func deletePrompt(ctx context.Context, tx database.Tx, id string) error {
	_, err := tx.ExecContext(ctx, `DELETE FROM prompts WHERE id = $1`, id)
	return err
}

// Links.

// selectShared returns ErrNotFound if there is no such link.
func selectShared(ctx context.Context, q querier, share string) (account, id string, err error) {
	const text = `SELECT account_id, id FROM prompts WHERE share_id = $1 AND share_id <> ''`
	err = q.QueryRowContext(ctx, text, share).Scan(&account, &id)
	if errors.Is(err, sql.ErrNoRows) {
		return "", "", ErrNotFound
	}
	if err != nil {
		return "", "", fmt.Errorf("read link of prompt: %w", err)
	}
	return account, id, nil
}

// selectShare returns the id of a prompt's link, which is empty if there is none, or ErrNotFound.
func selectShare(ctx context.Context, q querier, account, id string) (share string, err error) {
	err = q.QueryRowContext(ctx, `SELECT share_id FROM prompts WHERE account_id = $1 AND id = $2`, account, id).Scan(&share)
	if errors.Is(err, sql.ErrNoRows) {
		return "", ErrNotFound
	}
	if err != nil {
		return "", fmt.Errorf("read link of prompt: %w", err)
	}
	return share, nil
}

// updateShare sets the link of a prompt. It returns ErrNotFound if the account has no such prompt.
func updateShare(ctx context.Context, tx database.Tx, account, id, share string) error {
	const text = `UPDATE prompts SET share_id = $3 WHERE account_id = $1 AND id = $2`
	updated, err := affects(tx.ExecContext(ctx, text, account, id, share))
	if err == nil && !updated {
		return ErrNotFound
	}
	return err
}

// Chunks.

func insertChunk(ctx context.Context, tx database.Tx, contentID string, n int, data []byte) error {
	const text = `INSERT INTO prompt_chunks (content_id, n, data) VALUES ($1, $2, $3)`
	_, err := tx.ExecContext(ctx, text, contentID, n, data)
	return err
}

// insertLeftoverChunk returns errOverdue if the content is not left over any more.
func insertLeftoverChunk(ctx context.Context, tx database.Tx, contentID string, n int, data []byte) error {
	const text = `
		INSERT INTO prompt_chunks (content_id, n, data)
		SELECT content_id, $2, $3 FROM prompt_leftovers WHERE content_id = $1`
	inserted, err := affects(tx.ExecContext(ctx, text, contentID, n, data))
	if err == nil && !inserted {
		return errOverdue
	}
	return err
}

// readChunks passes the chunks of a content to read, from the chunk with the number first, until it returns false. read
// must not keep the bytes.
func readChunks(ctx context.Context, q querier, contentID string, first int64, read func([]byte) (more bool)) error {
	const text = `SELECT data FROM prompt_chunks WHERE content_id = $1 AND n >= $2 ORDER BY n`
	rows, err := q.QueryContext(ctx, text, contentID, first)
	if err != nil {
		return fmt.Errorf("read prompt: %w", err)
	}
	defer rows.Close()
	var data sql.RawBytes
	for rows.Next() {
		if err := rows.Scan(&data); err != nil {
			return fmt.Errorf("read prompt: %w", err)
		}
		if !read(data) {
			return nil
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read prompt: %w", err)
	}
	return nil
}

func deleteChunks(ctx context.Context, tx database.Tx, contentID string) error {
	_, err := tx.ExecContext(ctx, `DELETE FROM prompt_chunks WHERE content_id = $1`, contentID)
	return err
}

// deleteLeftoverChunk deletes the last chunk of a content that is left over, and reports whether there was one.
func deleteLeftoverChunk(ctx context.Context, tx database.Tx, contentID string) (found bool, err error) {
	const text = `
		DELETE FROM prompt_chunks
		WHERE content_id = $1 AND n = (SELECT max(n) FROM prompt_chunks WHERE content_id = $1)
		  AND EXISTS (SELECT 1 FROM prompt_leftovers WHERE content_id = $1)`
	return affects(tx.ExecContext(ctx, text, contentID))
}

// Leftovers.

func insertLeftover(ctx context.Context, tx database.Tx, contentID string, deleteAfter time.Time) error {
	const text = `INSERT INTO prompt_leftovers (content_id, delete_after) VALUES ($1, $2)`
	_, err := tx.ExecContext(ctx, text, contentID, deleteAfter.UnixMicro())
	return err
}

// deleteLeftover makes a content count as used, or as removed. It returns errOverdue if it is not left over any more.
func deleteLeftover(ctx context.Context, tx database.Tx, contentID string) error {
	deleted, err := affects(tx.ExecContext(ctx, `DELETE FROM prompt_leftovers WHERE content_id = $1`, contentID))
	if err == nil && !deleted {
		return errOverdue
	}
	return err
}

// selectLeftovers returns the contents that are to be removed at a time.
func selectLeftovers(ctx context.Context, q querier, at time.Time) (ids []string, err error) {
	const text = `SELECT content_id FROM prompt_leftovers WHERE delete_after <= $1 ORDER BY delete_after`
	rows, err := q.QueryContext(ctx, text, at.UnixMicro())
	if err != nil {
		return nil, fmt.Errorf("list leftovers: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return nil, fmt.Errorf("list leftovers: %w", err)
		}
		ids = append(ids, id)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("list leftovers: %w", err)
	}
	return ids, nil
}

// affects reports whether a statement has changed a row.
func affects(result sql.Result, err error) (bool, error) {
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	return n > 0, err
}
