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
	"time"

	"go.uber.org/zap"

	"basegate/internal/wait"
)

// handles are the open connections to one file. They are replaced together if another file takes its place.
type handles struct {
	writer  *sql.DB // one connection
	reader  *sql.DB // a pool of connections that cannot write, for short reads
	reports *sql.DB // another one, for Report
	file    os.FileInfo
}

// statementCache is how many prepared statements a connection keeps; the program has fewer.
const statementCache = "64"

// openHandles opens the file, which must exist, and migrates it unless it is only read.
func openHandles(ctx context.Context, path string, s Settings, log *zap.Logger) (*handles, error) {
	file, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	read := &connector{dsn: readerDSN(path, s)}
	write := &connector{dsn: writerDSN(path, s), setup: writerSetup}
	if s.ReadOnly {
		write = read
	}
	h := &handles{file: file, writer: openPool(write, 1), reader: openPool(read, readers()), reports: openPool(read, reportConns)}
	if err := h.prepare(ctx, s, log); err != nil {
		return nil, errors.Join(err, h.close())
	}
	return h, nil
}

func openPool(c *connector, most int) *sql.DB {
	pool := sql.OpenDB(c)
	pool.SetMaxOpenConns(most)
	pool.SetMaxIdleConns(most)
	return pool
}

// readers returns how many connections short reads have, on either engine.
func readers() int { return max(4, runtime.GOMAXPROCS(0)) }

func (h *handles) prepare(ctx context.Context, s Settings, log *zap.Logger) error {
	if !s.ReadOnly {
		if err := h.verify(ctx, s); err != nil {
			return err
		}
		if err := migrate(ctx, h.writer, log); err != nil {
			return err
		}
	}
	if err := h.reader.PingContext(ctx); err != nil {
		return fmt.Errorf("open for reading: %w", err)
	}
	return nil
}

// verify checks that commits are as durable as configured and that a transaction can be begun. The driver's default for
// synchronous is NORMAL, which may lose commits at a power failure, so the setting is read back.
func (h *handles) verify(ctx context.Context, s Settings) error {
	journal, err := h.journalMode(ctx, s.LockWait)
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
	if _, want := s.synchronous(); synchronous != want {
		return fmt.Errorf("commits would not be as durable as configured: synchronous is %d, not %d", synchronous, want)
	}
	tx, err := h.writer.BeginTx(ctx, nil)
	if err == nil {
		err = tx.Rollback()
	}
	if err != nil {
		return fmt.Errorf("open for writing: %w", err)
	}
	return nil
}

// journalRetryInterval is the time between attempts to open a file that another process is initializing.
const journalRetryInterval = 10 * time.Millisecond

// journalMode opens the first connection and returns its journal mode. Switching a new file to a write-ahead log takes
// a lock that SQLite does not wait for, whatever the busy timeout is: without the retries all but one of several
// processes that start together would fail.
func (h *handles) journalMode(ctx context.Context, most time.Duration) (mode string, err error) {
	for end := time.Now().Add(most); ; {
		err = h.writer.QueryRowContext(ctx, "PRAGMA journal_mode").Scan(&mode)
		if !IsBusy(err) || time.Now().After(end) || !wait.For(ctx, journalRetryInterval) {
			return mode, err
		}
	}
}

func (h *handles) close() error {
	return errors.Join(h.reports.Close(), h.reader.Close(), h.writer.Close())
}

// writerDSN sets the options that SQLite keeps per connection; a PRAGMA sent later would be lost with the connection.
// mode=rw prevents SQLite from creating an empty file if the file is missing.
func writerDSN(path string, s Settings) string {
	synchronous, _ := s.synchronous()
	return dsn(path, url.Values{
		"mode":             {"rw"},
		"_journal_mode":    {"WAL"},
		"_synchronous":     {synchronous},
		"_txlock":          {"immediate"},
		"_busy_timeout":    {milliseconds(s.LockWait)},
		"_foreign_keys":    {"1"},
		"_secure_delete":   {"1"}, // overwrites deleted data, such as saved prompts, in the file
		"_stmt_cache_size": {statementCache},
	})
}

// writerSetup sets the options for which the DSN has no parameter.
var writerSetup = fmt.Sprintf("PRAGMA journal_size_limit = %d", walLimit)

func readerDSN(path string, s Settings) string {
	values := url.Values{
		"mode":             {"ro"},
		"_query_only":      {"1"},
		"_busy_timeout":    {milliseconds(s.LockWait)},
		"_stmt_cache_size": {statementCache},
	}
	if _, err := os.Stat(path + "-wal"); s.ReadOnly && errors.Is(err, fs.ErrNotExist) {
		values.Set("immutable", "1") // no process has the database open; SQLite would leave the files of a log beside it
	}
	return dsn(path, values)
}

func dsn(path string, values url.Values) string {
	return "file:" + (&url.URL{Path: path}).EscapedPath() + "?" + values.Encode()
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// createFile creates an empty file that only its owner may read, unless the file exists. It does not open an existing
// file: closing it would release the POSIX locks that SQLite holds on it in this process.
func createFile(path string) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err == nil {
		return file.Close()
	}
	if info, statErr := os.Stat(path); statErr == nil && info.IsDir() {
		return fmt.Errorf("%s is a directory; the path of a file is required", path)
	}
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}
