package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"
)

// handles are the open connections of one file. They are replaced as a whole when another file takes its place.
type handles struct {
	writer *sql.DB // one connection
	reader *sql.DB // a pool of connections that cannot write
	file   os.FileInfo
}

// statementCache is how many prepared statements a connection keeps; there are fewer different ones.
const statementCache = "64"

// openHandles opens the file, which must exist, and migrates it.
func openHandles(ctx context.Context, path string, s Settings) (*handles, error) {
	file, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	texts := &sync.Map{}
	h := &handles{
		file:   file,
		writer: sql.OpenDB(&connector{dsn: writerDSN(path, s), shielded: true, texts: texts}),
		reader: sql.OpenDB(&connector{dsn: readerDSN(path, s), texts: texts}),
	}
	if err := h.prepare(ctx, s); err != nil {
		return nil, errors.Join(err, h.close())
	}
	return h, nil
}

func (h *handles) prepare(ctx context.Context, s Settings) error {
	h.writer.SetMaxOpenConns(1)
	readers := max(4, runtime.GOMAXPROCS(0))
	h.reader.SetMaxOpenConns(readers)
	h.reader.SetMaxIdleConns(readers)
	if err := h.verify(ctx, s); err != nil {
		return err
	}
	if err := migrate(ctx, h.writer); err != nil {
		return err
	}
	if err := h.reader.PingContext(ctx); err != nil {
		return fmt.Errorf("open for reading: %w", err)
	}
	return nil
}

// verify makes sure that a commit is as durable as promised, and that one can be made at all. The driver's own default
// for synchronous is NORMAL, which may lose commits when the power fails, so the setting is read back.
func (h *handles) verify(ctx context.Context, s Settings) error {
	journal, err := h.journal(ctx, s.LockWait)
	if err != nil {
		return fmt.Errorf("open for writing: %w", err)
	}
	if journal != "wal" {
		return fmt.Errorf("the file system does not allow a write-ahead log: journal_mode is %s, not wal", journal)
	}
	var synchronous int
	if err := h.writer.QueryRowContext(ctx, "PRAGMA synchronous").Scan(&synchronous); err != nil {
		return fmt.Errorf("read synchronous: %w", err)
	}
	if synchronous != s.synchronous.level() {
		return fmt.Errorf("commits would not be durable: synchronous is %d, not %d", synchronous, s.synchronous.level())
	}
	tx, err := h.writer.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("open for writing: %w", err)
	}
	if err := tx.Rollback(); err != nil {
		return fmt.Errorf("open for writing: %w", err)
	}
	return nil
}

// journalPause is how often a file is looked at again that another process makes a database of.
const journalPause = 10 * time.Millisecond

// journal opens the first connection and tells its journal mode. To give a new file its write-ahead log takes a lock for
// which SQLite does not wait, whatever the timeout: of processes that start together all but one would fail.
func (h *handles) journal(ctx context.Context, wait time.Duration) (mode string, err error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	again := time.NewTicker(journalPause)
	defer again.Stop()
	for {
		if err = h.writer.QueryRowContext(ctx, "PRAGMA journal_mode").Scan(&mode); !IsBusy(err) {
			return mode, err
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return "", err
		}
	}
}

func (h *handles) close() error { return errors.Join(h.reader.Close(), h.writer.Close()) }

// writerDSN sets what SQLite keeps per connection; a PRAGMA sent later would be lost with the connection. mode=rw keeps
// a file that has vanished from being made anew, and empty.
func writerDSN(path string, s Settings) string {
	return dsn(path, url.Values{
		"mode":             {"rw"},
		"_journal_mode":    {"WAL"},
		"_synchronous":     {s.synchronous.name()},
		"_txlock":          {"immediate"},
		"_busy_timeout":    {milliseconds(s.LockWait)},
		"_foreign_keys":    {"1"},
		"_secure_delete":   {"1"}, // a saved prompt that is deleted is not to be found in the file
		"_stmt_cache_size": {statementCache},
	})
}

func readerDSN(path string, s Settings) string {
	return dsn(path, url.Values{
		"mode":             {"ro"},
		"_query_only":      {"1"},
		"_busy_timeout":    {milliseconds(s.LockWait)},
		"_stmt_cache_size": {statementCache},
	})
}

func dsn(path string, values url.Values) string {
	return "file:" + (&url.URL{Path: path}).EscapedPath() + "?" + values.Encode()
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// createFile makes an empty file that only its owner may read, unless there is a file. One that is there is not opened:
// closing it again would take away the locks that SQLite holds on it in this process.
func createFile(path string) error {
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		return fmt.Errorf("%s is a directory; the path of a file is wanted", path)
	case err == nil:
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600) //nolint:gosec // the operator says where the database is
	if errors.Is(err, fs.ErrExist) {
		return nil // somebody else was faster
	}
	if err != nil {
		return err
	}
	return file.Close()
}
