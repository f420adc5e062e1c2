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

// insertPending inserts what Entry.Pending returns, as a settlement does.
func insertPending(ctx context.Context, tx database.Execer, request, key string, pending []byte) error {
	const text = `INSERT INTO pending_receipts (request_id, key_id, receipt) VALUES ($1, $2, $3)`
	_, err := tx.ExecContext(ctx, text, request, key, pending)
	return err
}

// errRepeated is returned by numberPending for an entry that is pending twice, or is in the log already: a settlement is sent again
// after a failover.
var errRepeated = errors.New("an entry is pending twice")

// numberPending moves pending entries, at most roundLimit of them, to the end of a log with a size, and returns their leaf hashes.
//
// On PostgreSQL settlements are committed between the two statements, so an entry is deleted for being in the log alone.
func numberPending(ctx context.Context, tx database.Tx, size int64) (leaves []tlog.Hash, err error) {
	const number = `
		INSERT INTO receipts (seq, leaf_hash, entry, nonce, key_id)
		SELECT $1 + n, substr(receipt, 1, 32), substr(receipt, 65), substr(receipt, 33, 32), key_id
		FROM (
			SELECT seq, row_number() OVER (ORDER BY seq) AS n FROM (SELECT seq FROM pending_receipts ORDER BY seq LIMIT $2) AS oldest
		) AS numbered JOIN pending_receipts USING (seq) WHERE true ON CONFLICT (leaf_hash) DO NOTHING RETURNING seq, leaf_hash`
	const remove = `
		DELETE FROM pending_receipts WHERE seq IN (SELECT seq FROM pending_receipts ORDER BY seq LIMIT $1)
			AND EXISTS (SELECT 1 FROM receipts WHERE leaf_hash = substr(receipt, 1, 32))`
	numbered := map[int64]tlog.Hash{} // RETURNING has no order
	err = database.Each(ctx, tx, func(rows *sql.Rows) error {
		var seq int64
		var leaf sql.RawBytes
		if err := rows.Scan(&seq, &leaf); err != nil {
			return err
		}
		numbered[seq] = tlog.Hash(leaf)
		return nil
	}, number, size, roundLimit)
	if err != nil {
		return nil, err
	}
	for range numbered {
		leaf, found := numbered[size+int64(len(leaves))+1]
		if !found {
			return nil, errRepeated
		}
		leaves = append(leaves, leaf)
	}
	_, err = tx.ExecContext(ctx, remove, roundLimit)
	return leaves, err
}

// removeRepeated deletes pending entries that are in the log already, or that are pending twice.
func removeRepeated(ctx context.Context, tx database.Execer) error {
	const text = `
		DELETE FROM pending_receipts WHERE seq NOT IN (SELECT min(seq) FROM pending_receipts GROUP BY receipt)
			OR EXISTS (SELECT 1 FROM receipts WHERE leaf_hash = substr(receipt, 1, 32))`
	_, err := tx.ExecContext(ctx, text)
	return err
}

// storedEntry is a row of the table receipts, or of pending_receipts.
type storedEntry struct {
	seq   int64 // its place in the log, from 1; 0 if it is pending
	entry []byte
	nonce Hash
	key   string
}

// findEntry returns the entry with a leaf hash. The error is sql.ErrNoRows if there is none.
func findEntry(ctx context.Context, from database.Reader, leaf Hash) (e storedEntry, err error) {
	const text = `
		SELECT seq, entry, nonce, key_id FROM receipts WHERE leaf_hash = $1
		UNION ALL
		SELECT 0, substr(receipt, 65), substr(receipt, 33, 32), key_id FROM pending_receipts WHERE substr(receipt, 1, 32) = $1
		ORDER BY seq DESC LIMIT 1`
	var nonce []byte
	if err := from.QueryRowContext(ctx, text, leaf[:]).Scan(&e.seq, &e.entry, &nonce, &e.key); err != nil {
		return e, fmt.Errorf("read entry: %w", err)
	}
	copy(e.nonce[:], nonce)
	return e, nil
}

// decode returns what the entry says.
func (e *storedEntry) decode() (*Record, error) {
	var decoded Record
	if err := json.Unmarshal(e.entry, &decoded, json.RejectUnknownMembers(true)); err != nil {
		return nil, fmt.Errorf("decode entry %d: %w", e.seq, err)
	}
	return &decoded, nil
}

// appendStored adds the entries at the next places of the log to the tree, at most limit of them, if they have the leaf hashes
// that the log recorded.
func (t *tree) appendStored(ctx context.Context, from database.Reader, limit int64) error {
	const text = `SELECT seq, leaf_hash, entry FROM receipts WHERE seq > $1 ORDER BY seq LIMIT $2`
	before := t.size
	err := database.Each(ctx, from, func(rows *sql.Rows) error {
		var seq int64
		var leaf, entry sql.RawBytes
		if err := rows.Scan(&seq, &leaf, &entry); err != nil {
			return err
		}
		computed := tlog.RecordHash(entry)
		if seq != t.size+1 || string(leaf) != string(computed[:]) {
			return fmt.Errorf("%w: entry %d", errChanged, t.size)
		}
		t.append(computed)
		return nil
	}, text, t.size, limit)
	switch {
	case err != nil:
		return fmt.Errorf("read entries: %w", err)
	case t.size == before:
		return &CutError{Have: before, Size: before + limit, Source: "the entries in the database"}
	}
	return nil
}

// tilesOf returns the loader of the tiles of a database, or of a transaction.
func tilesOf(ctx context.Context, from database.Reader) tileLoader {
	return func(id tlog.Tile) ([]byte, error) { return loadTile(ctx, from, id) }
}

// loadTile returns the first W hashes of a tile.
func loadTile(ctx context.Context, from database.Reader, id tlog.Tile) (data []byte, err error) {
	width := id.W * tlog.HashSize
	if id.L == 0 && id.W < tileWidth { // it may not be stored; see tree
		const leaves = `SELECT leaf_hash FROM receipts WHERE seq > $1 ORDER BY seq LIMIT $2`
		err = database.Each(ctx, from, func(rows *sql.Rows) error {
			var leaf sql.RawBytes
			err := rows.Scan(&leaf)
			data = append(data, leaf...)
			return err
		}, leaves, id.N*tileWidth, id.W)
	} else {
		const text = `SELECT hashes FROM receipt_tiles WHERE level = $1 AND number = $2`
		err = from.QueryRowContext(ctx, text, id.L, id.N).Scan(&data)
	}
	switch {
	case errors.Is(err, sql.ErrNoRows), err == nil && len(data) < width:
		return nil, fmt.Errorf("%w: level %d, number %d", errMissingTile, id.L, id.N)
	case err != nil:
		return nil, fmt.Errorf("read hash tile: %w", err)
	}
	return data[:width], nil
}

// saveTile replaces a stored tile.
func saveTile(ctx context.Context, tx database.Execer, id tlog.Tile, hashes []byte) error {
	const text = `
		INSERT INTO receipt_tiles (level, number, hashes) VALUES ($1, $2, $3)
		ON CONFLICT (level, number) DO UPDATE SET hashes = excluded.hashes`
	_, err := tx.ExecContext(ctx, text, id.L, id.N, hashes)
	return err
}

// state is the row of the table receipt_log, and whether entries are pending.
type state struct {
	vkey       string
	size       int64
	checkpoint string
	pending    bool
}

// loadState reads the state of the log. The error is ErrNoLog before its first start.
func loadState(ctx context.Context, from database.Reader) (s state, err error) {
	const text = `
		SELECT verifier_key, size, checkpoint, EXISTS (SELECT 1 FROM pending_receipts) FROM receipt_log WHERE "only" = 1`
	err = from.QueryRowContext(ctx, text).Scan(&s.vkey, &s.size, &s.checkpoint, &s.pending)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return s, ErrNoLog
	case err != nil:
		return s, fmt.Errorf("read state of the receipt log: %w", err)
	}
	return s, nil
}

func saveState(ctx context.Context, tx database.Execer, vkey string, head *signedHead) error {
	const text = `
		INSERT INTO receipt_log ("only", verifier_key, size, checkpoint) VALUES (1, $1, $2, $3)
		ON CONFLICT ("only") DO UPDATE SET verifier_key = excluded.verifier_key, size = excluded.size, checkpoint = excluded.checkpoint`
	_, err := tx.ExecContext(ctx, text, vkey, head.Size, head.checkpoint)
	return err
}

// countEntries returns the number of the rows, and the place of the last one.
func countEntries(ctx context.Context, from database.Reader) (rows, last int64, err error) {
	const text = `SELECT count(*), coalesce(max(seq), 0) FROM receipts`
	if err := from.QueryRowContext(ctx, text).Scan(&rows, &last); err != nil {
		return 0, 0, fmt.Errorf("count entries: %w", err)
	}
	return rows, last, nil
}
