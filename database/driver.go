package database

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/mattn/go-sqlite3"
)

// connector opens connections to one DSN. It wraps the driver so that statements can be written in PostgreSQL's syntax:
// parameters are $1, $2, … and may stand in any order.
type connector struct {
	dsn   string
	setup string // a statement run on every new connection; may be empty
}

// Connect implements driver.Connector.
func (c *connector) Connect(context.Context) (driver.Conn, error) {
	opened, err := c.Driver().Open(c.dsn)
	if err != nil {
		return nil, err
	}
	conn := &connection{opened.(*sqlite3.SQLiteConn)}
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
type connection struct{ *sqlite3.SQLiteConn }

// PrepareContext implements driver.ConnPrepareContext.
func (c *connection) PrepareContext(ctx context.Context, text string) (driver.Stmt, error) {
	return c.SQLiteConn.PrepareContext(ctx, rewrite(text))
}

// ExecContext implements driver.ExecerContext.
func (c *connection) ExecContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Result, error) {
	return c.SQLiteConn.ExecContext(ctx, rewrite(text), args)
}

// QueryContext implements driver.QueryerContext.
func (c *connection) QueryContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Rows, error) {
	return c.SQLiteConn.QueryContext(ctx, rewrite(text), args)
}

// rewritten holds the texts of statements for SQLite, by their texts.
var rewritten sync.Map

// rewrite is rewriteParameters with a cache.
func rewrite(text string) string {
	if known, ok := rewritten.Load(text); ok {
		return known.(string)
	}
	forSQLite := rewriteParameters(text)
	rewritten.Store(text, forSQLite)
	return forSQLite
}

// directExecer runs the statements of a transaction on a driver connection, without database/sql.
type directExecer struct {
	ctx        context.Context // of the transaction
	connection *connection
	values     []driver.NamedValue
	rows       []any // of insertRows
}

// ExecContext implements Execer.
func (d *directExecer) ExecContext(_ context.Context, text string, args ...any) (sql.Result, error) {
	d.values = slices.Grow(d.values[:0], len(args))
	for i, arg := range args {
		value, err := driver.DefaultParameterConverter.ConvertValue(arg)
		if err != nil {
			return nil, fmt.Errorf("parameter %d: %w", i+1, err)
		}
		d.values = append(d.values, driver.NamedValue{Ordinal: i + 1, Value: value})
	}
	return d.connection.ExecContext(d.ctx, text, d.values)
}

// tokens are the parts of a statement that hold a $: texts, names, comments and parameters.
var tokens = regexp.MustCompile(`'[^']*'|"[^"]*"|--.*|(?s:/\*.*?\*/)|\$[1-9]`)

// rewriteParameters turns $1 into ?1 outside of quotes and comments. To SQLite $1 is a name, and names are bound in the
// order in which they first appear, so "select $2, $1" would return the second argument last.
func rewriteParameters(text string) string {
	if !strings.Contains(text, "$") {
		return text
	}
	return tokens.ReplaceAllStringFunc(text, func(token string) string {
		if token[0] == '$' {
			return "?" + token[1:]
		}
		return token
	})
}
