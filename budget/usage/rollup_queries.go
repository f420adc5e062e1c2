package usage

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"basegate/database"
)

// seriesID returns the number of a series, and assigns one if it has none.
func seriesID(ctx context.Context, tx database.Tx, k seriesKey) (id int64, err error) {
	const (
		find = `
			SELECT id FROM usage_series
			WHERE account_id = $1 AND key_id = $2 AND model = $3 AND endpoint = $4 AND workload = $5`
		insert = `
			INSERT INTO usage_series (account_id, key_id, model, endpoint, workload) VALUES ($1, $2, $3, $4, $5)
			RETURNING id`
	)
	return findOrInsert(ctx, tx, find, insert, k.account, k.key, k.model, k.endpoint, k.workload)
}

// keyID returns the number of a key for rollups of user tags, and assigns one if it has none.
func keyID(ctx context.Context, tx database.Tx, k tagKey) (id int64, err error) {
	const (
		find   = `SELECT id FROM usage_keys WHERE account_id = $1 AND key_id = $2`
		insert = `INSERT INTO usage_keys (account_id, key_id) VALUES ($1, $2) RETURNING id`
	)
	return findOrInsert(ctx, tx, find, insert, k.account, k.key)
}

func findOrInsert(ctx context.Context, tx database.Tx, find, insert string, args ...any) (id int64, err error) {
	err = tx.QueryRowContext(ctx, find, args...).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		err = tx.QueryRowContext(ctx, insert, args...).Scan(&id)
	}
	return id, err
}

// selectTagID returns the number of a user tag, or otherTags if it has none.
func selectTagID(ctx context.Context, tx database.Tx, tag string) (id int64, err error) {
	err = tx.QueryRowContext(ctx, `SELECT id FROM usage_tags WHERE tag = $1`, tag).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		return otherTags, nil
	}
	return id, err
}

func insertTagID(ctx context.Context, tx database.Tx, tag string) (id int64, err error) {
	err = tx.QueryRowContext(ctx, `INSERT INTO usage_tags (tag) VALUES ($1) RETURNING id`, tag).Scan(&id)
	return id, err
}

// addRollup adds a change to a rollup of a series.
func addRollup(ctx context.Context, tx database.Tx, series int64, p levelPeriod, change *rollup) error {
	var encoded []byte
	find := `SELECT latency FROM ` + p.level.table + ` WHERE series = $1 AND period = $2`
	err := tx.QueryRowContext(ctx, find, series, p.period).Scan(&encoded)
	if errors.Is(err, sql.ErrNoRows) {
		insert := `
			INSERT INTO ` + p.level.table + ` (series, period, requests, errors, streams, prompt_tokens, completion_tokens, latency)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`
		_, err = tx.ExecContext(ctx, insert, series, p.period,
			change.requests, change.errors, change.streams, change.prompt, change.completion, change.latency.encode())
		return err
	}
	if err != nil {
		return err
	}
	if err := change.latency.mergeEncoded(encoded); err != nil {
		return fmt.Errorf("%s, series %d, period %d: %w", p.level.table, series, p.period, err)
	}
	update := `
		UPDATE ` + p.level.table + ` SET requests = requests + $3, errors = errors + $4, streams = streams + $5,
			prompt_tokens = prompt_tokens + $6, completion_tokens = completion_tokens + $7, latency = $8
		WHERE series = $1 AND period = $2`
	_, err = tx.ExecContext(ctx, update, series, p.period,
		change.requests, change.errors, change.streams, change.prompt, change.completion, change.latency.encode())
	return err
}

// updateTag adds a change to a rollup of a user tag, and reports whether it exists.
func updateTag(ctx context.Context, tx database.Tx, p tagPeriod, tag int64, change *counts) (found bool, err error) {
	text := `
		UPDATE ` + p.level.table + ` SET requests = requests + $4, errors = errors + $5, streams = streams + $6,
			prompt_tokens = prompt_tokens + $7, completion_tokens = completion_tokens + $8
		WHERE key = $1 AND period = $2 AND tag = $3`
	result, err := tx.ExecContext(ctx, text, p.key, p.period, tag,
		change.requests, change.errors, change.streams, change.prompt, change.completion)
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	return n > 0, err
}

func insertTag(ctx context.Context, tx database.Tx, p tagPeriod, tag int64, change *counts) error {
	text := `
		INSERT INTO ` + p.level.table + ` (key, period, tag, requests, errors, streams, prompt_tokens, completion_tokens)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`
	_, err := tx.ExecContext(ctx, text, p.key, p.period, tag,
		change.requests, change.errors, change.streams, change.prompt, change.completion)
	return err
}

// countTags returns how many user tags of a key have rollups of their own in a period.
func countTags(ctx context.Context, tx database.Tx, p tagPeriod) (n int64, err error) {
	text := `SELECT count(*) FROM ` + p.level.table + ` WHERE key = $1 AND period = $2 AND tag <> $3`
	err = tx.QueryRowContext(ctx, text, p.key, p.period, otherTags).Scan(&n)
	return n, err
}
