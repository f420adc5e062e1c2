package database

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/mattn/go-sqlite3"
)

// connector opens connections to one DSN. It wraps the driver so that statements can be written in PostgreSQL's syntax:
// parameters are $1, $2, … and may stand in any order.
type connector struct {
	dsn             string
	setup           string    // a statement run on every new connection; may be empty
	uninterruptible bool      // statements run to their end even if their context ends
	rewritten       *sync.Map // of statement text to its text for SQLite
}

// Connect implements driver.Connector.
func (c *connector) Connect(context.Context) (driver.Conn, error) {
	opened, err := c.Driver().Open(c.dsn)
	if err != nil {
		return nil, err
	}
	conn := &connection{SQLiteConn: opened.(*sqlite3.SQLiteConn), connector: c}
	if c.setup != "" {
		if _, err := conn.Exec(c.setup, nil); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
	}
	return conn, nil
}

// Driver implements driver.Connector.
func (*connector) Driver() driver.Driver { return &sqlite3.SQLiteDriver{} }

// connection is a connection that rewrites parameters.
//
// On the writer's connection statements also ignore the end of their context: SQLite rolls back the whole transaction
// when an INSERT is interrupted, and with it the writes of other callers.
type connection struct {
	*sqlite3.SQLiteConn
	connector *connector
}

// PrepareContext implements driver.ConnPrepareContext.
func (c *connection) PrepareContext(ctx context.Context, text string) (driver.Stmt, error) {
	prepared, err := c.SQLiteConn.PrepareContext(c.withoutCancel(ctx), c.rewrite(text))
	if err != nil {
		return nil, err
	}
	return &statement{SQLiteStmt: prepared.(*sqlite3.SQLiteStmt), connection: c}, nil
}

// ExecContext implements driver.ExecerContext.
func (c *connection) ExecContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Result, error) {
	return c.SQLiteConn.ExecContext(c.withoutCancel(ctx), c.rewrite(text), args)
}

// QueryContext implements driver.QueryerContext.
func (c *connection) QueryContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Rows, error) {
	return c.SQLiteConn.QueryContext(c.withoutCancel(ctx), c.rewrite(text), args)
}

// withoutCancel removes the cancellation from ctx if the connection is uninterruptible.
func (c *connection) withoutCancel(ctx context.Context) context.Context {
	if c.connector.uninterruptible && ctx.Done() != nil {
		return context.WithoutCancel(ctx)
	}
	return ctx
}

// rewrite is rewriteParameters with a cache.
func (c *connection) rewrite(text string) string {
	if known, ok := c.connector.rewritten.Load(text); ok {
		return known.(string)
	}
	rewritten := rewriteParameters(text)
	c.connector.rewritten.Store(text, rewritten)
	return rewritten
}

// statement is a prepared statement of a connection.
type statement struct {
	*sqlite3.SQLiteStmt
	connection *connection
}

// ExecContext implements driver.StmtExecContext.
func (s *statement) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	return s.SQLiteStmt.ExecContext(s.connection.withoutCancel(ctx), args)
}

// QueryContext implements driver.StmtQueryContext.
func (s *statement) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return s.SQLiteStmt.QueryContext(s.connection.withoutCancel(ctx), args)
}

// directExecer runs statements on a driver connection, without database/sql.
type directExecer struct {
	connection *connection
	values     []driver.NamedValue
	rows       []any // of insertRows
}

// ExecContext implements Execer.
func (d *directExecer) ExecContext(ctx context.Context, text string, args ...any) (sql.Result, error) {
	d.values = slices.Grow(d.values[:0], len(args))
	for i, arg := range args {
		value, err := driver.DefaultParameterConverter.ConvertValue(arg)
		if err != nil {
			return nil, fmt.Errorf("parameter %d: %w", i+1, err)
		}
		d.values = append(d.values, driver.NamedValue{Ordinal: i + 1, Value: value})
	}
	return d.connection.ExecContext(ctx, text, d.values)
}

// rewriteParameters turns $1 into ?1 outside of quotes and comments. To SQLite $1 is a name, and names are bound in the
// order in which they first appear, so "select $2, $1" would return the second argument last.
func rewriteParameters(text string) string {
	if !strings.Contains(text, "$") {
		return text
	}
	out := []byte(text)
	for i := 0; i < len(text); {
		switch {
		case strings.HasPrefix(text[i:], "--"):
			i += lengthThrough(text[i:], "\n")
		case strings.HasPrefix(text[i:], "/*"):
			i += 2 + lengthThrough(text[i+2:], "*/")
		case text[i] == '\'' || text[i] == '"':
			i += 1 + lengthThrough(text[i+1:], text[i:i+1])
		case text[i] == '$' && i+1 < len(text) && '1' <= text[i+1] && text[i+1] <= '9':
			out[i] = '?'
			i++
		default:
			i++
		}
	}
	return string(out)
}

// lengthThrough returns the length of text up to and including end, or all of it if end does not occur.
func lengthThrough(text, end string) int {
	if at := strings.Index(text, end); at >= 0 {
		return at + len(end)
	}
	return len(text)
}
