package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"time"

	"github.com/mattn/go-sqlite3"
)

// Contents describe a database file, so that an operator recognizes it.
type Contents struct {
	Bytes         int64 // of the file
	SchemaVersion int64
	Accounts      int64
	Keys          int64
	Requests      int64
	Latest        time.Time // when the latest request began; zero if there is none
}

// ErrDamaged is returned for a file that is no intact SQLite database.
var ErrDamaged = errors.New("the file is damaged")

// ErrUnknownContent is returned for a SQLite database that basegate has not made.
var ErrUnknownContent = errors.New("the file is not a database of basegate")

// maxProblems limits the problems of a damaged file that its error lists.
const maxProblems = "5"

// inspect checks every page of a database file that no other process uses, and describes it. If a write-ahead log is
// beside the file, its content becomes part of the file.
func inspect(ctx context.Context, path string) (c Contents, err error) {
	writable := url.Values{"mode": {"rw"}, "_foreign_keys": {"0"}}
	db := sql.OpenDB(&connector{dsn: dsn(path, writable)})
	db.SetMaxOpenConns(1)
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := checkIntegrity(ctx, db); err != nil {
		return c, err
	}
	if err := c.read(ctx, db); err != nil {
		return c, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return c, err
	}
	c.Bytes = info.Size()
	return c, nil
}

func checkIntegrity(ctx context.Context, db *sql.DB) error {
	var problems string
	const text = `SELECT group_concat(problem, '; ') FROM (SELECT integrity_check AS problem FROM pragma_integrity_check LIMIT ` + maxProblems + `)`
	if err := db.QueryRowContext(ctx, text).Scan(&problems); err != nil {
		return damaged(err)
	}
	if problems != "ok" {
		return fmt.Errorf("%w: %s", ErrDamaged, problems)
	}
	return nil
}

// damaged marks an error of SQLite that says that the file is damaged.
func damaged(err error) error {
	if code := sqliteFailure(err).Code; code == sqlite3.ErrCorrupt || code == sqlite3.ErrNotADB {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return err
}

// read counts what the tables hold. The schema may have any version.
func (c *Contents) read(ctx context.Context, db *sql.DB) error {
	s, err := readSchema(ctx, db)
	if err == nil && s.Version == 0 {
		err = ErrUnknownContent
	}
	if err != nil {
		return err
	}
	c.SchemaVersion = s.Version
	var latest int64
	const text = `SELECT (SELECT count(*) FROM accounts), (SELECT count(*) FROM keys), count(*), coalesce(max(time), 0) FROM requests`
	if err := db.QueryRowContext(ctx, text).Scan(&c.Accounts, &c.Keys, &c.Requests, &latest); err != nil {
		return fmt.Errorf("count rows: %w", err)
	}
	if c.Requests > 0 {
		c.Latest = time.UnixMicro(latest).UTC()
	}
	return nil
}
