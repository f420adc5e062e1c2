package prompts

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"basegate/database"
)

// stored is the row of a prompt.
type stored struct {
	Prompt
	object        string // with the document; empty: document has it
	documentBytes int64
	words         []byte // what a search finds
	document      []byte
}

const columns = `id, account_id, name, model, version, updated_at, bytes, share_id, object, document_bytes`

// scan scans columns, and the one that follows them.
func (p *stored) scan(scan func(...any) error, last any) error {
	var updated int64
	err := scan(
		&p.ID, &p.Account, &p.Name, &p.Model, &p.Version, &updated, &p.Bytes, &p.Share, &p.object, &p.documentBytes, last)
	p.Updated = time.UnixMicro(updated).UTC()
	return err
}

// selectPrompt returns the prompt that a condition selects, with its document if the row has it, or ErrNotFound.
func selectPrompt(ctx context.Context, from database.Reader, condition string, args ...any) (p stored, err error) {
	row := from.QueryRowContext(ctx, `SELECT `+columns+`, document FROM prompts WHERE `+condition, args...)
	switch err := p.scan(row.Scan, &p.document); {
	case errors.Is(err, sql.ErrNoRows):
		return p, ErrNotFound
	case err != nil:
		return p, fmt.Errorf("read prompt: %w", err)
	}
	return p, nil
}

// selectUsage returns the number of an account's prompts and the bytes that they take, without the prompt with the id
// except.
func selectUsage(ctx context.Context, from database.Reader, account, except string) (count, bytes int64, err error) {
	const text = `SELECT count(*), coalesce(sum(bytes), 0) FROM prompts WHERE account_id = $1 AND id <> $2`
	if err := from.QueryRowContext(ctx, text, account, except).Scan(&count, &bytes); err != nil {
		return 0, 0, fmt.Errorf("sum up prompts: %w", err)
	}
	return count, bytes, nil
}

// upsertPrompt inserts a prompt, or replaces all of it but its link.
func upsertPrompt(ctx context.Context, tx database.Tx, p *stored) error {
	const text = `
		INSERT INTO prompts (id, account_id, name, model, version, updated_at, object, document_bytes, bytes, words, document)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
		ON CONFLICT (id) DO UPDATE SET
			name = excluded.name, model = excluded.model, version = excluded.version, updated_at = excluded.updated_at,
			object = excluded.object, document_bytes = excluded.document_bytes, bytes = excluded.bytes,
			words = excluded.words, document = excluded.document`
	return database.Exec(ctx, tx, text, p.ID, p.Account, p.Name, p.Model, p.Version, p.Updated.UnixMicro(), p.object,
		p.documentBytes, p.Bytes, p.words, p.document)
}
