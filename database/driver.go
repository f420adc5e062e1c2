package database

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/mattn/go-sqlite3"
)

// connector opens connections of one DSN. It stands between database/sql and the driver so that the text of every
// statement can be what PostgreSQL takes too: parameters are $1, $2, … and may stand in any order.
type connector struct {
	dsn      string
	shielded bool // whether a context that ends leaves statements alone
	texts    *sync.Map
}

// Connect implements driver.Connector.
func (c *connector) Connect(context.Context) (driver.Conn, error) {
	opened, err := c.Driver().Open(c.dsn)
	if err != nil {
		return nil, err
	}
	return &connection{SQLiteConn: opened.(*sqlite3.SQLiteConn), connector: c}, nil //nolint:errcheck // it is what that driver opens
}

// Driver implements driver.Connector.
func (*connector) Driver() driver.Driver { return &sqlite3.SQLiteDriver{} }

// connection is a connection that rewrites parameters.
//
// On the writer it also keeps statements from being interrupted when a context ends: SQLite answers an interrupted
// INSERT by rolling back the whole transaction, which holds the work of others.
type connection struct {
	*sqlite3.SQLiteConn
	connector *connector
}

// PrepareContext implements driver.ConnPrepareContext.
func (c *connection) PrepareContext(ctx context.Context, text string) (driver.Stmt, error) {
	prepared, err := c.SQLiteConn.PrepareContext(c.shield(ctx), c.rebound(text))
	if err != nil {
		return nil, err
	}
	return &statement{SQLiteStmt: prepared.(*sqlite3.SQLiteStmt), connection: c}, nil //nolint:errcheck // it is what that driver prepares
}

// ExecContext implements driver.ExecerContext.
func (c *connection) ExecContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Result, error) {
	return c.SQLiteConn.ExecContext(c.shield(ctx), c.rebound(text), args)
}

// QueryContext implements driver.QueryerContext.
func (c *connection) QueryContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Rows, error) {
	return c.SQLiteConn.QueryContext(c.shield(ctx), c.rebound(text), args)
}

func (c *connection) shield(ctx context.Context) context.Context {
	if c.connector.shielded && ctx.Done() != nil {
		return context.WithoutCancel(ctx)
	}
	return ctx
}

func (c *connection) rebound(text string) string {
	if known, ok := c.connector.texts.Load(text); ok {
		return known.(string) //nolint:errcheck // nothing else is stored
	}
	rewritten := rebind(text)
	c.connector.texts.Store(text, rewritten)
	return rewritten
}

// statement is a prepared statement of a connection.
type statement struct {
	*sqlite3.SQLiteStmt
	connection *connection
}

// ExecContext implements driver.StmtExecContext.
func (s *statement) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	return s.SQLiteStmt.ExecContext(s.connection.shield(ctx), args)
}

// QueryContext implements driver.StmtQueryContext.
func (s *statement) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return s.SQLiteStmt.QueryContext(s.connection.shield(ctx), args)
}

// direct runs statements on a connection without database/sql between.
type direct struct {
	connection *connection
	values     []driver.NamedValue
}

// ExecContext implements Execer.
func (d *direct) ExecContext(ctx context.Context, text string, args ...any) (sql.Result, error) {
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

// rebind turns $1 into ?1 outside of quotes and comments. To SQLite $1 is a name, and names are bound in the order in
// which they first appear, so that "select $2, $1" would return the second argument last.
func rebind(text string) string {
	if !strings.Contains(text, "$") {
		return text
	}
	out := []byte(text)
	for i := 0; i < len(text); {
		switch {
		case strings.HasPrefix(text[i:], "--"):
			i += span(text[i:], "\n")
		case strings.HasPrefix(text[i:], "/*"):
			i += 2 + span(text[i+2:], "*/")
		case text[i] == '\'' || text[i] == '"':
			i += 1 + span(text[i+1:], text[i:i+1])
		case text[i] == '$' && i+1 < len(text) && '1' <= text[i+1] && text[i+1] <= '9':
			out[i] = '?'
			i++
		default:
			i++
		}
	}
	return string(out)
}

// span is how far it is to behind the end, or to the end of the text.
func span(text, end string) int {
	if at := strings.Index(text, end); at >= 0 {
		return at + len(end)
	}
	return len(text)
}
