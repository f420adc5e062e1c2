package receipt

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"
	"golang.org/x/mod/sumdb/tlog"

	"basegate/database"
)

// insertEntry inserts an entry at the end of the log and returns its place, from 1.
func insertEntry(ctx context.Context, tx database.Execer, leaf Hash, entry []byte, nonce Hash, key string) (seq int64, err error) {
	const text = `INSERT INTO receipts (leaf_hash, entry, nonce, key_id) VALUES ($1, $2, $3, $4)`
	result, err := tx.ExecContext(ctx, text, leaf[:], entry, nonce[:], key)
	if err != nil {
		return 0, err //nolint:wrapcheck // package database classifies it
	}
	return result.LastInsertId() //nolint:wrapcheck // never fails
}

// storedEntry is a row of the table receipts.
type storedEntry struct {
	seq   int64
	leaf  Hash
	entry []byte
	nonce Hash
	key   string
}

// findEntry returns the entry with a leaf hash. The error is sql.ErrNoRows if there is none.
func findEntry(ctx context.Context, db *database.DB, leaf Hash) (e storedEntry, err error) {
	const text = `SELECT seq, entry, nonce, key_id FROM receipts WHERE leaf_hash = $1`
	var nonce []byte
	if err := db.Read().QueryRowContext(ctx, text, leaf[:]).Scan(&e.seq, &e.entry, &nonce, &e.key); err != nil {
		return e, fmt.Errorf("read entry: %w", err)
	}
	e.leaf = leaf
	copy(e.nonce[:], nonce)
	return e, nil
}

// eachEntry calls yield with the entries after a place, in their order, at most limit of them. The bytes are valid until yield
// returns.
func eachEntry(ctx context.Context, db *database.DB, after, limit int64, yield func(seq int64, leaf tlog.Hash, entry []byte) error) (err error) {
	const text = `SELECT seq, leaf_hash, entry FROM receipts WHERE seq > $1 ORDER BY seq LIMIT $2`
	rows, err := db.Read().QueryContext(ctx, text, after, limit)
	if err != nil {
		return fmt.Errorf("read entries: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var seq int64
		var leaf, entry sql.RawBytes
		if err := rows.Scan(&seq, &leaf, &entry); err != nil {
			return fmt.Errorf("read entries: %w", err)
		}
		if len(leaf) != tlog.HashSize {
			return fmt.Errorf("read entry %d: %w", seq, errHash)
		}
		if err := yield(seq, tlog.Hash(leaf), entry); err != nil {
			return err
		}
	}
	return rows.Err() //nolint:wrapcheck // of the database
}

// rowsQuerier runs a statement that returns rows.
type rowsQuerier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// eachLeaf calls yield with the leaf hashes of the entries after a place, in their order, at most limit of them.
func eachLeaf(ctx context.Context, from rowsQuerier, after, limit int64, yield func(seq int64, leaf tlog.Hash) error) (err error) {
	const text = `SELECT seq, leaf_hash FROM receipts WHERE seq > $1 ORDER BY seq LIMIT $2`
	rows, err := from.QueryContext(ctx, text, after, limit)
	if err != nil {
		return fmt.Errorf("read leaf hashes: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var seq int64
		var leaf sql.RawBytes
		if err := rows.Scan(&seq, &leaf); err != nil {
			return fmt.Errorf("read leaf hashes: %w", err)
		}
		if len(leaf) != tlog.HashSize {
			return fmt.Errorf("read leaf hash %d: %w", seq, errHash)
		}
		if err := yield(seq, tlog.Hash(leaf)); err != nil {
			return err
		}
	}
	return rows.Err() //nolint:wrapcheck // of the database
}

// loadTile reads a hash tile.
func loadTile(ctx context.Context, db *database.DB, id tileID) (*tile, error) {
	return loadTileFrom(ctx, db.Read(), id)
}

// rowQuerier runs a statement that returns one row.
type rowQuerier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

func loadTileFrom(ctx context.Context, from rowQuerier, id tileID) (*tile, error) {
	const text = `SELECT hashes FROM receipt_tiles WHERE level = $1 AND number = $2`
	var stored []byte
	err := from.QueryRowContext(ctx, text, id.level, id.number).Scan(&stored)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, fmt.Errorf("%w: level %d, number %d", errMissingTile, id.level, id.number)
	}
	if err != nil {
		return nil, fmt.Errorf("read hash tile: %w", err)
	}
	return parseTile(stored)
}

// state is the row of the table receipt_log.
type state struct {
	vkey       string
	size       int64
	checkpoint string
}

// loadState reads the state of the log; found is false before its first start.
func loadState(ctx context.Context, db *database.DB) (s state, found bool, err error) {
	const text = `SELECT verifier_key, size, checkpoint FROM receipt_log WHERE "only" = 1`
	err = db.Read().QueryRowContext(ctx, text).Scan(&s.vkey, &s.size, &s.checkpoint)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return s, false, nil
	case err != nil:
		return s, false, fmt.Errorf("read state of the receipt log: %w", err)
	}
	return s, true, nil
}

// countEntries returns the number of the rows, and the place of the last one.
func countEntries(ctx context.Context, db *database.DB) (rows, last int64, err error) {
	const text = `SELECT count(*), coalesce(max(seq), 0) FROM receipts`
	if err := db.Read().QueryRowContext(ctx, text).Scan(&rows, &last); err != nil {
		return 0, 0, fmt.Errorf("count entries: %w", err)
	}
	return rows, last, nil
}

// saveTiles writes the stored form of tiles.
func saveTiles(ctx context.Context, tx database.Tx, tiles map[tileID][]byte) error {
	const text = `
		INSERT INTO receipt_tiles (level, number, hashes) VALUES ($1, $2, $3)
		ON CONFLICT (level, number) DO UPDATE SET hashes = excluded.hashes`
	for id, stored := range tiles {
		if _, err := tx.ExecContext(ctx, text, id.level, id.number, stored); err != nil {
			return err //nolint:wrapcheck // package database classifies it
		}
	}
	return nil
}

func saveState(ctx context.Context, tx database.Tx, s state) error {
	const text = `
		INSERT INTO receipt_log ("only", verifier_key, size, checkpoint) VALUES (1, $1, $2, $3)
		ON CONFLICT ("only") DO UPDATE SET verifier_key = excluded.verifier_key, size = excluded.size, checkpoint = excluded.checkpoint`
	_, err := tx.ExecContext(ctx, text, s.vkey, s.size, s.checkpoint)
	return err //nolint:wrapcheck // package database classifies it
}

// forgetTree deletes the tiles, which the next start makes anew.
func forgetTree(ctx context.Context, tx database.Tx) error {
	_, err := tx.ExecContext(ctx, `DELETE FROM receipt_tiles`)
	return err //nolint:wrapcheck // package database classifies it
}

// decode returns the entry.
func (e *storedEntry) decode() (*Entry, error) {
	var decoded Entry
	if err := json.Unmarshal(e.entry, &decoded, json.RejectUnknownMembers(true)); err != nil {
		return nil, fmt.Errorf("decode entry %d: %w", e.seq, err)
	}
	return &decoded, nil
}
