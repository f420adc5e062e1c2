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

// numberPending appends entries without a place, at most roundLimit of them, to a log with a size, and returns their leaf hashes.
// One statement numbers all those whose ids have no gaps; only PostgreSQL leaves some.
func numberPending(ctx context.Context, tx database.Tx, size int64) (leaves []tlog.Hash, err error) {
	const pending = `SELECT id, leaf_hash FROM receipts WHERE seq IS NULL ORDER BY id LIMIT $1`
	const number = `UPDATE receipts SET seq = id + $1 WHERE id BETWEEN $2 AND $3`
	var ids []int64
	err = database.Each(ctx, tx, func(rows *sql.Rows) error {
		var id int64
		var leaf sql.RawBytes
		if err := rows.Scan(&id, &leaf); err != nil {
			return err
		}
		ids, leaves = append(ids, id), append(leaves, tlog.Hash(leaf))
		return nil
	}, pending, roundLimit)
	for from := 0; err == nil && from < len(ids); {
		to := from + 1
		for to < len(ids) && ids[to] == ids[to-1]+1 {
			to++
		}
		err = database.Exec(ctx, tx, number, size+int64(from)+1-ids[from], ids[from], ids[to-1])
		from = to
	}
	return leaves, err
}

// storedEntry is a row of the table receipts.
type storedEntry struct {
	seq   int64 // its place in the log, from 1; 0 if it has none yet
	entry []byte
	nonce Hash
	key   string
}

// findEntry returns the entry with a leaf hash. The error is sql.ErrNoRows if there is none.
func findEntry(ctx context.Context, from database.Reader, leaf Hash) (e storedEntry, err error) {
	const text = `SELECT coalesce(seq, 0), entry, nonce, key_id FROM receipts WHERE leaf_hash = $1`
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

// StoredTiles returns the tiles of a database, or of a transaction.
func StoredTiles(ctx context.Context, from database.Reader) TileSource {
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
	return database.Exec(ctx, tx, text, id.L, id.N, hashes)
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
		SELECT verifier_key, size, checkpoint, EXISTS (SELECT 1 FROM receipts WHERE seq IS NULL) FROM receipt_log WHERE "only" = 1`
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
	return database.Exec(ctx, tx, text, vkey, head.Size, head.checkpoint)
}

// countEntries returns how many entries have a place, the last place, and how many entries the tree head of the moment covers.
func countEntries(ctx context.Context, from database.Reader) (rows, last, covered int64, err error) {
	const text = `SELECT count(seq), coalesce(max(seq), 0), coalesce((SELECT size FROM receipt_log), 0) FROM receipts`
	if err := from.QueryRowContext(ctx, text).Scan(&rows, &last, &covered); err != nil {
		return 0, 0, 0, fmt.Errorf("count entries: %w", err)
	}
	return rows, last, covered, nil
}
