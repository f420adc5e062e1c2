package receipt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"basegate/database"
)

// ErrNoLog is returned if the database has no receipt log.
var ErrNoLog = errors.New("the database has no receipt log yet; it begins at the first start of the gateway with receipts.enabled")

// VerifierKey returns the key that verifies the tree heads of a log. The error is ErrNoKey if there is none.
func VerifierKey(s Settings) (string, error) {
	key, err := readKey(s.Key)
	if err != nil {
		return "", err
	}
	return key.vkey, nil
}

// Checked is what Check has found.
type Checked struct {
	VerifierKey string
	Size        int64 // entries of the latest tree head
	Waiting     int64 // entries that are not in a tree yet
}

// Check compares the log in the database with its tree head, and with the tree heads that were given out before. With
// entries, it computes all hashes anew and compares them with the tiles. A gateway may be running.
func Check(ctx context.Context, s Settings, db *database.DB, entries bool) (c Checked, err error) {
	stored, err := loadState(ctx, db.Read())
	if err != nil {
		return c, err
	}
	head, err := verifyStored(ctx, db, s, stored.vkey, entries)
	if err != nil {
		return c, err
	}
	c = Checked{VerifierKey: stored.vkey, Size: head.Size}
	if err := db.Read().QueryRowContext(ctx, `SELECT count(*) FROM receipts WHERE seq IS NULL`).Scan(&c.Waiting); err != nil {
		return c, fmt.Errorf("count pending entries: %w", err)
	}
	return c, nil
}

// verifyStored returns the tree head of the log in the database after the checks of Check.
func verifyStored(ctx context.Context, db *database.DB, s Settings, vkey string, entries bool) (*signedHead, error) {
	verifier, err := parseKey(vkey)
	if err != nil {
		return nil, err
	}
	given, err := givenHeads(s, verifier) // before the log, which must extend them
	if err != nil {
		return nil, err
	}
	stored, err := loadState(ctx, db.Read())
	if err != nil {
		return nil, err
	}
	rows, last, covered, err := countEntries(ctx, db.Read()) // a gateway may have added some meanwhile
	switch {
	case err != nil:
		return nil, err
	case stored.vkey != vkey:
		return nil, errOtherKey
	case rows != last || last < stored.size:
		return nil, &CutError{Have: min(rows, last), Size: stored.size, Source: "the database's own tree head"}
	case last != covered:
		return nil, errUncovered
	}
	head, err := openHead(stored, verifier)
	if err != nil {
		return nil, err
	}
	if head.tree, err = verifyTree(ctx, db, &head.TreeHead, entries); err != nil {
		return nil, err
	}
	for i := range given {
		if err := head.tree.extends(&given[i].TreeHead, given[i].path); err != nil {
			return nil, err
		}
	}
	return head, nil
}

// verifyTree returns the tree of a head, whose root it checks.
func verifyTree(ctx context.Context, db *database.DB, head *TreeHead, entries bool) (*tree, error) {
	load := StoredTiles(ctx, db.Read())
	if !entries {
		return loadTree(head, load)
	}
	t, err := newTree(0, load)
	if err == nil {
		err = t.appendUpTo(ctx, db.Read(), head.Size, func(id tlog.Tile, computed []byte) error {
			stored, err := load(id)
			if err == nil && !bytes.Equal(stored, computed) {
				err = fmt.Errorf("%w: level %d, number %d", errOtherTile, id.L, id.N)
			}
			return err
		})
	}
	if err == nil {
		err = t.hasRoot(head, errOtherRoot)
	}
	return t, err
}

var (
	errChanged   = errors.New("the receipt log was changed: the hash of an entry is not what the log recorded")
	errOtherTile = errors.New("the receipt log was changed: a hash tile is not that of the entries")
	errOtherRoot = errors.New("the receipt log was changed: the entries have another root hash than the tree head")
)

// Latest returns the latest checkpoint of the log in a database, and its verifier key.
func Latest(ctx context.Context, db *database.DB) (checkpoint, vkey string, err error) {
	stored, err := loadState(ctx, db.Read())
	return stored.checkpoint, stored.vkey, err
}

// Remote is a log at a URL, such as https://base.example.org/receipts.
type Remote struct {
	URL    string
	Client *http.Client
}

// Checkpoint returns the log's latest signed tree head.
func (r *Remote) Checkpoint(ctx context.Context) (string, error) {
	data, err := r.get(ctx, "checkpoint")
	return string(data), err
}

// Tiles returns the log's tiles.
func (r *Remote) Tiles(ctx context.Context) TileSource {
	return func(t tlog.Tile) ([]byte, error) {
		return r.get(ctx, strings.Replace(t.Path(), fmt.Sprintf("tile/%d/", tileHeight), "tile/", 1))
	}
}

func (r *Remote) get(ctx context.Context, path string) (data []byte, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("read %s of the log: %w", path, err)
		}
	}()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(r.URL, "/")+"/"+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := r.Client.Do(req)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%w %d", errHTTP, response.StatusCode)
	}
	return io.ReadAll(io.LimitReader(response.Body, maxReceipt))
}

var errHTTP = errors.New("it responds with status")

// CheckConsistency checks that the tree of one head begins with that of an older one. The tiles of the log are the proof;
// they are checked against the newer head.
func CheckConsistency(older, newer TreeHead, tiles TileSource) error {
	if older.Origin != newer.Origin {
		return fmt.Errorf("%w: %s and %s", errTwoLogs, older.Origin, newer.Origin)
	}
	if older.Size > newer.Size {
		return &CutError{Have: newer.Size, Size: older.Size, Source: "the older one"}
	}
	if older.Size == newer.Size || older.Size == 0 {
		empty, err := tlog.TreeHash(0, nil)
		if err != nil {
			return fmt.Errorf("compare tree heads: %w", err)
		}
		if older.Size == newer.Size && older.Root != newer.Root || older.Size == 0 && older.Root != empty {
			return &ForkError{older.Size, "the older one"}
		}
		return nil
	}
	reader := tlog.TileHashReader(tlog.Tree{N: newer.Size, Hash: newer.Root}, tileReader(tiles))
	proof, err := tlog.ProveTree(newer.Size, older.Size, reader)
	if err != nil {
		return fmt.Errorf("the log does not prove the newer tree head: %w", err)
	}
	if tlog.CheckTree(proof, newer.Size, newer.Root, older.Size, older.Root) != nil {
		return &ForkError{older.Size, "the older one"}
	}
	return nil
}

var errTwoLogs = errors.New("the tree heads are of two logs")

// tileReader implements tlog.TileReader.
type tileReader TileSource

// Height implements tlog.TileReader.
func (tileReader) Height() int { return tileHeight }

// SaveTiles implements tlog.TileReader.
func (tileReader) SaveTiles([]tlog.Tile, [][]byte) {}

// ReadTiles implements tlog.TileReader.
func (load tileReader) ReadTiles(tiles []tlog.Tile) ([][]byte, error) {
	all := make([][]byte, len(tiles))
	for i, t := range tiles {
		var err error
		if all[i], err = load(t); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// NewLog begins a new log, with a key and a name of its own, that has the entries of the old one. Tree heads of the old one
// stay valid, but nothing extends them. It returns the new verifier key, and the suffix of the old files. The caller must
// hold the lock of the database.
func NewLog(ctx context.Context, s Settings, db *database.DB, now time.Time) (vkey, suffix string, err error) {
	rows, last, _, err := countEntries(ctx, db.Read())
	switch {
	case err != nil:
		return "", "", err
	case rows != last:
		return "", "", fmt.Errorf("%w: entries in the middle are missing; restore an older backup", errChanged)
	}
	stamp := now.UTC().Format("20060102T150405Z")
	if suffix, err = setAside(s, stamp); err != nil {
		return "", "", err
	}
	key, err := makeKey(s.Key, s.Origin+"/"+stamp)
	if err != nil {
		return "", "", err
	}
	return key.vkey, suffix, begin(ctx, db, key, true)
}
