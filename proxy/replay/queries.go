package replay

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"basegate/database"
)

// row is the row of a kept response.
type row struct {
	name    []byte
	account string
	object  string // of the storage
	bytes   int64
	created time.Time
}

const rowColumns = `name, account_id, object, bytes, created_at`

func scanRow(from database.Scanner) (r row, err error) {
	var created int64
	err = from.Scan(&r.name, &r.account, &r.object, &r.bytes, &created)
	r.created = time.UnixMicro(created)
	return r, err
}

func selectRow(ctx context.Context, q database.Reader, name []byte) (r row, found bool, err error) {
	r, err = scanRow(q.QueryRowContext(ctx, `SELECT `+rowColumns+` FROM replays WHERE name = $1`, name))
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return row{}, false, nil
	case err != nil:
		return row{}, false, fmt.Errorf("look for a kept response: %w", err)
	}
	return r, true, nil
}

func insertRow(ctx context.Context, tx database.Tx, r *row) error {
	const text = `INSERT INTO replays (name, account_id, object, bytes, created_at, used_at) VALUES ($1, $2, $3, $4, $5, $5)`
	return database.Exec(ctx, tx, text, r.name, r.account, r.object, r.bytes, time.Now().UnixMicro())
}

// updateUse makes a response the most recently used one.
func updateUse(ctx context.Context, tx database.Tx, name []byte) error {
	return database.Exec(ctx, tx, `UPDATE replays SET used_at = $2 WHERE name = $1`, name, time.Now().UnixMicro())
}

// deleteRow deletes a row, unless it has another object by now, and reports whether it did.
func deleteRow(ctx context.Context, tx database.Tx, r *row) (bool, error) {
	n, err := database.Change(ctx, tx, `DELETE FROM replays WHERE name = $1 AND object = $2`, r.name, r.object)
	return n > 0, err
}

// selectRows returns the rows, up to deletedTogether, that a condition and order select.
func selectRows(ctx context.Context, q database.Reader, condition string, args ...any) ([]row, error) {
	text := `SELECT ` + rowColumns + ` FROM replays WHERE ` + condition + fmt.Sprintf(` LIMIT %d`, deletedTogether)
	return database.List(ctx, q, scanRow, text, args...)
}

const (
	ofAccount     = `account_id = $1`
	leastUsedOf   = ofAccount + ` ORDER BY used_at`
	leastUsed     = `true ORDER BY used_at`
	createdBefore = `created_at < $1`
	selectUse     = `SELECT r.account_id, sum(r.bytes), EXISTS (SELECT 1 FROM accounts a WHERE a.id = r.account_id) FROM replays r GROUP BY r.account_id`
)

// use is what an account has kept.
type use struct {
	account string
	bytes   int64
	exists  bool // the account was not deleted
}

func selectUses(ctx context.Context, q database.Reader) ([]use, error) {
	return database.List(ctx, q, func(r database.Scanner) (u use, err error) {
		err = r.Scan(&u.account, &u.bytes, &u.exists)
		return u, err
	}, selectUse)
}

// insertSecret inserts the secret, unless there is one, and returns it.
func insertSecret(ctx context.Context, tx database.Tx, made []byte) (secret []byte, err error) {
	const text = `INSERT INTO replay_secret ("only", secret) VALUES (1, $1) ON CONFLICT ("only") DO NOTHING`
	if err := database.Exec(ctx, tx, text, made); err != nil {
		return nil, err
	}
	err = tx.QueryRowContext(ctx, `SELECT secret FROM replay_secret`).Scan(&secret)
	return secret, err
}
