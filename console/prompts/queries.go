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

// stored is the row of a prompt.
type stored struct {
	Prompt
	object        string // with the document; empty: document has it
	documentBytes int64
	words         []byte // what a search finds
	document      []byte
}

const columns = `id, account_id, name, model, version, updated_at, bytes, share_id, object, document_bytes`

// scan scans columns and what follows them.
func (p *stored) scan(scan func(...any) error, more ...any) error {
	var updated int64
	err := scan(append([]any{
		&p.ID, &p.Account, &p.Name, &p.Model, &p.Version, &updated, &p.Bytes, &p.Share, &p.object, &p.documentBytes,
	}, more...)...)
	p.Updated = time.UnixMicro(updated).UTC()
	return err
}

// selectPrompts calls found with the prompts of an account, the last changed first, until it returns false. It must not keep
// the words, which are read only if they are asked for.
func selectPrompts(ctx context.Context, q querier, account string, words bool, found func(p *stored) (more bool)) error {
	text := `SELECT ` + columns
	if words {
		text += `, words`
	}
	rows, err := q.QueryContext(ctx, text+` FROM prompts WHERE account_id = $1 ORDER BY updated_at DESC, id`, account)
	if err != nil {
		return fmt.Errorf("list prompts: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var p stored
		var raw sql.RawBytes
		var more []any
		if words {
			more = append(more, &raw)
		}
		if err := p.scan(rows.Scan, more...); err != nil {
			return fmt.Errorf("list prompts: %w", err)
		}
		if p.words = raw; !found(&p) {
			return nil
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("list prompts: %w", err)
	}
	return nil
}

// selectPrompt returns the prompt that a condition selects, with its document if the row has it, or ErrNotFound.
func selectPrompt(ctx context.Context, q querier, condition string, args ...any) (p stored, err error) {
	err = p.scan(q.QueryRowContext(ctx, `SELECT `+columns+`, document FROM prompts WHERE `+condition, args...).Scan, &p.document)
	if errors.Is(err, sql.ErrNoRows) {
		return p, ErrNotFound
	}
	if err != nil {
		return p, fmt.Errorf("read prompt: %w", err)
	}
	return p, nil
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

func insertPrompt(ctx context.Context, tx database.Tx, p *stored) error {
	const text = `
		INSERT INTO prompts (id, account_id, name, model, version, updated_at, object, document_bytes, bytes, words, document)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`
	_, err := tx.ExecContext(ctx, text, p.ID, p.Account, p.Name, p.Model, p.Version, p.Updated.UnixMicro(), p.object,
		p.documentBytes, p.Bytes, p.words, p.document)
	return err
}

func updatePrompt(ctx context.Context, tx database.Tx, p *stored) error {
	const text = `
		UPDATE prompts SET name = $2, model = $3, version = $4, updated_at = $5, object = $6, document_bytes = $7, bytes = $8,
		                   words = $9, document = $10
		WHERE id = $1`
	_, err := tx.ExecContext(ctx, text, p.ID, p.Name, p.Model, p.Version, p.Updated.UnixMicro(), p.object, p.documentBytes,
		p.Bytes, p.words, p.document)
	return err
}

func deletePrompt(ctx context.Context, tx database.Tx, id string) error {
	_, err := tx.ExecContext(ctx, `DELETE FROM prompts WHERE id = $1`, id)
	return err
}

// updateShare sets the link of a prompt. It returns ErrNotFound if the account has no such prompt.
func updateShare(ctx context.Context, tx database.Tx, account, id, share string) error {
	result, err := tx.ExecContext(ctx, `UPDATE prompts SET share_id = $3 WHERE account_id = $1 AND id = $2`, account, id, share)
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n == 0 {
		return errors.Join(err, ErrNotFound)
	}
	return nil
}
