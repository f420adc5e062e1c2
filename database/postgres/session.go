package postgres

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrStandby is returned for a connection to a server in recovery.
var ErrStandby = errors.New("the server is a standby, which cannot be written; name the primary")

// ErrReadOnly is returned for a connection to a primary that cannot be written.
var ErrReadOnly = errors.New("transactions are read-only by default: reset default_transaction_read_only of the role, the database or the server")

// readOnlyByDefault is the parameter of sessions that do not write.
const readOnlyByDefault = "default_transaction_read_only"

// session returns the configuration of connections whose sessions have parameters besides those of the DB.
func (db *DB) session(parameters map[string]string) *pgx.ConnConfig {
	c := db.config.Copy()
	maps.Copy(c.RuntimeParams, parameters)
	settings := c.RuntimeParams
	c.RuntimeParams = map[string]string{}
	if options, given := settings["options"]; given { // only the startup message has it
		c.RuntimeParams["options"] = options
		delete(settings, "options")
	}
	c.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		ctx, cancel := context.WithTimeout(ctx, connectTimeout)
		defer cancel()
		return beginSession(ctx, conn, settings)
	}
	c.DialFunc = db.primary.dialer(c.DialFunc)
	// A refusal here, unlike one by AfterConnect, lets pgx try the next host of the URL.
	requested := c.ValidateConnect // for target_session_attrs
	c.ValidateConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		if err := db.primary.validate(ctx, conn); err != nil || requested == nil {
			return err
		}
		return requested(ctx, conn)
	}
	if settings[readOnlyByDefault] == "" { // else a write that fails says nothing about the server
		handle := c.OnPgError
		c.OnPgError = func(conn *pgconn.PgConn, failure *pgconn.PgError) bool {
			if failure.Code == readOnlyTransaction {
				db.primary.abandon(socketOf(conn))
				return false
			}
			return handle(conn, failure)
		}
	}
	return c
}

// beginSession sets the parameters of a session and reads them back in another transaction.
func beginSession(ctx context.Context, conn *pgconn.PgConn, settings map[string]string) error {
	set, shown := []string{"pg_backend_pid()"}, []string{"pg_backend_pid()"}
	var names, values [][]byte
	for i, name := range slices.Sorted(maps.Keys(settings)) {
		set = append(set, fmt.Sprintf("set_config($%d, $%d, false)", 2*i+1, 2*i+2))
		values = append(values, []byte(name), []byte(settings[name]))
		shown = append(shown, fmt.Sprintf("current_setting($%d)", i+1))
		names = append(names, []byte(name))
	}
	want, err := queryRow(ctx, conn, "SELECT "+strings.Join(set, ", "), values...)
	if err != nil {
		return fmt.Errorf("set the parameters of the session: %w", err)
	}
	got, err := queryRow(ctx, conn, "SELECT "+strings.Join(shown, ", "), names...)
	if err != nil {
		return fmt.Errorf("read the parameters of the session: %w", err)
	}
	if got[0] != want[0] { // another process of the server
		return ErrPooler
	}
	for i, name := range names {
		if got[i+1] != want[i+1] {
			return fmt.Errorf("%w (%s was set to %s, and is %s)", ErrPooler, name, want[i+1], got[i+1])
		}
	}
	return nil
}

var errOneRow = errors.New("the server did not return one row")

// queryRow returns the only row of a query.
func queryRow(ctx context.Context, conn *pgconn.PgConn, text string, parameters ...[]byte) ([]string, error) {
	result := conn.ExecParams(ctx, text, parameters, nil, nil, nil).Read()
	if result.Err != nil {
		return nil, result.Err
	}
	if len(result.Rows) != 1 {
		return nil, errOneRow
	}
	row := make([]string, len(result.Rows[0]))
	for i, value := range result.Rows[0] {
		row[i] = string(value)
	}
	return row, nil
}

// primary is the server to which all connections are. They end together when another one takes its place: some, such as one
// that listens or reads, would not notice it by themselves.
type primary struct {
	connected  context.Context
	disconnect context.CancelFunc
	moved      func() // Settings.Moved, once

	mu      sync.Mutex // guards the fields below
	current *incarnation
}

// incarnation is one run of a server as the primary.
type incarnation struct {
	started string // when the server was started; empty before the first connection
	ctx     context.Context
	end     context.CancelFunc
}

func newPrimary(ctx context.Context, moved func()) *primary {
	p := &primary{moved: func() {}}
	if moved != nil {
		p.moved = sync.OnceFunc(moved)
	}
	p.connected, p.disconnect = context.WithCancel(context.WithoutCancel(ctx)) // connections outlive the call that opens the first
	p.current = p.newIncarnation("")
	return p
}

func (p *primary) newIncarnation(started string) *incarnation {
	i := &incarnation{started: started}
	i.ctx, i.end = context.WithCancel(p.connected)
	return i
}

// socket is a connection that ends with an incarnation of the server, unless release is called before.
type socket struct {
	net.Conn

	server  *incarnation
	release func() bool
}

// Close implements net.Conn.
func (s *socket) Close() error {
	s.release()
	return s.Conn.Close()
}

func (s *socket) endWith(i *incarnation) {
	s.server, s.release = i, context.AfterFunc(i.ctx, func() { _ = s.Conn.Close() })
}

// socketOf returns the socket of a connection.
func socketOf(conn *pgconn.PgConn) *socket {
	switch c := conn.Conn().(type) {
	case *socket:
		return c
	case *tls.Conn:
		s, _ := c.NetConn().(*socket)
		return s
	}
	return nil
}

// hasEnded reports whether a connection ended with an incarnation of the server. The driver notices it only when it uses the
// connection, too late to use another one.
func hasEnded(conn *pgx.Conn) bool {
	s := socketOf(conn.PgConn())
	return s != nil && s.server.ctx.Err() != nil
}

// dialer returns a function that opens sockets.
func (p *primary) dialer(dial pgconn.DialFunc) pgconn.DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		p.mu.Lock()
		current := p.current
		p.mu.Unlock()
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		s := &socket{Conn: conn}
		s.endWith(current)
		return s, nil
	}
}

// validate refuses a server that cannot be written. If the server is not that of the earlier connections, these end.
func (p *primary) validate(ctx context.Context, conn *pgconn.PgConn) error {
	const text = `SELECT pg_is_in_recovery(), current_setting('transaction_read_only') = 'on', extract(epoch FROM pg_postmaster_start_time())`
	row, err := queryRow(ctx, conn, text)
	switch {
	case err != nil:
		return fmt.Errorf("find out whether the server is a standby: %w", err)
	case row[0] == "t":
		return ErrStandby
	case row[1] == "t":
		return ErrReadOnly
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s, started := socketOf(conn), row[2]
	switch last := p.current; {
	case s == nil || s.server != last: // it ends with its server
	case last.started == "":
		last.started = started
	case last.started != started:
		p.current = p.newIncarnation(started)
		s.release()
		s.endWith(p.current)
		last.end()
		p.moved()
	}
	return nil
}

// abandon ends all connections to the server of a connection.
func (p *primary) abandon(s *socket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s != nil && s.server == p.current {
		p.current = p.newIncarnation("")
		s.server.end()
	}
}
