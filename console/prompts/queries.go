package prompts

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"basegate/database"
)

// stored is the row of a version of a prompt.
type stored struct {
	Prompt
	object        string // with the document; empty: document has it
	documentBytes int64
	words         []byte // what a search finds
	document      []byte
}

const columns = `id, account_id, name, model, version, updated_at, bytes, share_id, everyone, origin, object, document_bytes`

// scan scans columns, and those that follow them.
func (p *stored) scan(scan func(...any) error, last ...any) error {
	var updated int64
	var origin string
	err := scan(append([]any{
		&p.ID, &p.Account, &p.Name, &p.Model, &p.Version, &updated, &p.Bytes, &p.Share, &p.Everyone, &origin, &p.object, &p.documentBytes,
	}, last...)...)
	p.Updated = time.UnixMicro(updated).UTC()
	if err == nil && origin != "" {
		err = json.Unmarshal([]byte(origin), &p.Origin)
	}
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

// usage is what the prompts of an account take.
type usage struct {
	prompts     int64
	latestBytes int64 // of the latest versions
	bytes       int64 // of all versions
}

func selectUsage(ctx context.Context, from database.Reader, account string) (u usage, err error) {
	const text = `
		SELECT count(*) FILTER (WHERE latest), coalesce(sum(bytes) FILTER (WHERE latest), 0), coalesce(sum(bytes), 0)
		FROM prompts WHERE account_id = $1`
	if err := from.QueryRowContext(ctx, text, account).Scan(&u.prompts, &u.latestBytes, &u.bytes); err != nil {
		return u, fmt.Errorf("sum up prompts: %w", err)
	}
	return u, nil
}

// insertPrompt inserts the latest version of a prompt, which has no other latest one.
func insertPrompt(ctx context.Context, tx database.Tx, p *stored) error {
	var origin []byte
	if p.Origin != (Origin{}) {
		var err error
		if origin, err = json.Marshal(p.Origin); err != nil {
			return err
		}
	}
	const text = `
		INSERT INTO prompts (id, account_id, name, model, version, updated_at, share_id, everyone, origin, object, document_bytes, bytes, words, document)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)`
	return database.Exec(ctx, tx, text, p.ID, p.Account, p.Name, p.Model, p.Version, p.Updated.UnixMicro(), p.Share, p.Everyone, string(origin),
		p.object, p.documentBytes, p.Bytes, p.words, p.document)
}
