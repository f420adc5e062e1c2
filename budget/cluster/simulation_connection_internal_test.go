package cluster

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

var errConnection = errors.New("the simulated connection is lost")

// simProcess is the process of a gateway, which is the store of its ledger.
type simProcess struct {
	db      *simDB
	name    string
	ledger  *Ledger
	started bool
	dead    bool // it was killed, or has been closed
	closing bool
	taken   bool               // its name is another one's
	kill    context.CancelFunc // of its start
	cut     bool               // it cannot reach the database
	stopped bool
}

// simWake is a goroutine of a process that goes on when the scheduler lets it: of several, one after the other.
type simWake struct {
	process *simProcess
	name    string
	done    chan struct{}
}

// simGoroutine is the key of the context's value that names a goroutine whose calls have no name of their own.
type simGoroutine struct{}

// simConn is a session as its client sees it.
type simConn struct{ *simSession }

type simPool struct{ p *simProcess }

// simPoolTx is a transaction of the pool.
type simPoolTx struct {
	pgx.Tx

	conn *simConn
	over bool
}

type simRows struct {
	pgx.Rows

	rows [][]any
	at   int
	err  error
}

type simResults struct {
	pgx.BatchResults

	queued []*pgx.QueuedQuery
	rows   [][][]any
	err    error
}

func (p *simProcess) connect(ctx context.Context) (connection, error) {
	p.db.mu.Lock()
	defer p.db.mu.Unlock()
	if ctx.Err() != nil || p.dead || p.cut {
		return nil, errConnection
	}
	return p.open(), nil
}

// open returns a session, which begins with its first call.
func (p *simProcess) open() *simConn {
	return &simConn{&simSession{process: p, over: make(chan struct{}), notes: make(chan string, 1)}}
}

func (p *simProcess) Pool() pool { return simPool{p} }

// pause returns at once, or if the process has been stopped, when the scheduler lets this goroutine go on.
func (p *simProcess) pause(name string) {
	p.db.mu.Lock()
	if !p.stopped {
		p.db.mu.Unlock()
		return
	}
	w := &simWake{p, name, make(chan struct{})}
	p.db.wakes = append(p.db.wakes, w)
	p.db.mu.Unlock()
	<-w.done
}

// call sends statements and waits for the reply. It is sent when all goroutines wait, unless the caller has given it up by then.
func (c *simConn) call(ctx context.Context, statements ...simStatement) ([][][]any, error) {
	s := c.simSession
	first := &statements[0]
	if strings.HasPrefix(first.text, "BEGIN") {
		first = &statements[len(statements)-1]
	}
	name := s.process.name + " " + nameOf(first)
	if goroutine := ctx.Value(simGoroutine{}); goroutine != nil {
		name += fmt.Sprint(" ", goroutine)
	}
	db := s.process.db
	db.mu.Lock()
	s.name = name
	if s.ended || s.left || s.process.cut || s.process.dead || ctx.Err() != nil {
		s.left = true
		db.mu.Unlock()
		return nil, errConnection
	}
	call := &simCall{session: s, statements: statements, done: make(chan struct{}), name: name}
	db.arrived = append(db.arrived, call)
	db.mu.Unlock()
	givenUp := false
	select {
	case <-call.done:
	case <-ctx.Done():
		givenUp = true
	}
	s.process.pause(name)
	db.mu.Lock()
	defer db.mu.Unlock()
	if givenUp || call.fate == replyLost {
		call.unheard, s.left = true, true
		return nil, errConnection
	}
	return call.rows, call.err
}

func nameOf(st *simStatement) string {
	name := st.text[:min(len(st.text), 60)]
	if strings.Contains(st.text, "ledger_read") || strings.Contains(st.text, "ledger_write") {
		lane := "beside"
		if n := st.args[2].(*int); n != nil {
			lane = fmt.Sprint(*n)
		}
		name += " " + lane
	}
	return name
}

func (c *simConn) run(ctx context.Context, text string, args []any) *simRows {
	if strings.Contains(text, "'idle_in_transaction_session_timeout'") {
		c.process.db.mu.Lock()
		defer c.process.db.mu.Unlock()
		c.lane = true
		return &simRows{}
	}
	rows, err := c.call(ctx, simStatement{text, args})
	if err != nil {
		return &simRows{err: err}
	}
	return &simRows{rows: rows[0]}
}

func (c *simConn) Exec(ctx context.Context, text string, args ...any) (pgconn.CommandTag, error) {
	return pgconn.CommandTag{}, c.run(ctx, text, args).err
}

func (c *simConn) Query(ctx context.Context, text string, args ...any) (pgx.Rows, error) {
	rows := c.run(ctx, text, args)
	return rows, rows.err
}

func (c *simConn) QueryRow(ctx context.Context, text string, args ...any) pgx.Row {
	rows := c.run(ctx, text, args)
	if rows.err == nil && !rows.Next() {
		rows.err = pgx.ErrNoRows
	}
	return rows
}

func (c *simConn) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	var statements []simStatement
	for _, q := range b.QueuedQueries {
		statements = append(statements, simStatement{q.SQL, q.Arguments})
	}
	rows, err := c.call(ctx, statements...)
	return &simResults{queued: b.QueuedQueries, rows: rows, err: err}
}

func (c *simConn) WaitForNotification(ctx context.Context) (*pgconn.Notification, error) {
	var payload *pgconn.Notification
	c.setAwaits(true)
	select {
	case text := <-c.notes:
		payload = &pgconn.Notification{Payload: text}
	case <-c.over:
	case <-ctx.Done():
	}
	c.setAwaits(false)
	c.process.pause(c.name)
	if payload == nil {
		return nil, errConnection
	}
	return payload, nil
}

// setAwaits records whether the session's client waits for a notification: it gets one at a time.
func (c *simConn) setAwaits(awaits bool) {
	c.process.db.mu.Lock()
	defer c.process.db.mu.Unlock()
	c.awaits = awaits
}

func (c *simConn) IsClosed() bool {
	c.process.db.mu.Lock()
	defer c.process.db.mu.Unlock()
	return c.left || c.ended
}

func (c *simConn) close(context.Context) { c.abandon() }

func (c *simConn) abandon() {
	c.process.db.mu.Lock()
	defer c.process.db.mu.Unlock()
	c.left = true
}

// once returns a session for one statement of the pool.
func (p simPool) once(ctx context.Context, text string, args []any) *simRows {
	switch db := p.p.db; {
	case strings.Contains(text, "ledger_partitions_v1"), strings.HasPrefix(text, selectCounters):
		return &simRows{}
	case strings.Contains(text, "ledger_time_v1"):
		db.mu.Lock()
		defer db.mu.Unlock()
		return &simRows{rows: [][]any{{db.now().UnixMicro()}}}
	case strings.Contains(text, "pg_terminate_backend"):
		db.mu.Lock()
		defer db.mu.Unlock()
		if p.p.stopped || p.p.cut || p.p.dead {
			return &simRows{err: errConnection}
		}
		return &simRows{rows: [][]any{{db.endSilent()}}}
	}
	conn, err := p.p.connect(ctx)
	if err != nil {
		return &simRows{err: err}
	}
	defer conn.abandon()
	conn.(*simConn).pooled = true
	return conn.(*simConn).run(ctx, text, args)
}

func (p simPool) Exec(ctx context.Context, text string, args ...any) (pgconn.CommandTag, error) {
	return pgconn.CommandTag{}, p.once(ctx, text, args).err
}

func (p simPool) Query(ctx context.Context, text string, args ...any) (pgx.Rows, error) {
	rows := p.once(ctx, text, args)
	return rows, rows.err
}

func (p simPool) QueryRow(ctx context.Context, text string, args ...any) pgx.Row {
	rows := p.once(ctx, text, args)
	if rows.err == nil && !rows.Next() {
		rows.err = pgx.ErrNoRows
	}
	return rows
}

func (p simPool) Begin(ctx context.Context) (pgx.Tx, error) {
	conn, err := p.p.connect(ctx)
	if err != nil {
		return nil, err
	}
	tx := &simPoolTx{conn: conn.(*simConn)}
	tx.conn.pooled = true
	return tx, tx.conn.run(ctx, "BEGIN", nil).err
}

func (tx *simPoolTx) QueryRow(ctx context.Context, text string, args ...any) pgx.Row {
	return tx.conn.QueryRow(ctx, text, args...)
}

func (tx *simPoolTx) Commit(ctx context.Context) error { return tx.end(ctx, "COMMIT") }

func (tx *simPoolTx) Rollback(ctx context.Context) error { return tx.end(ctx, "ROLLBACK") }

func (tx *simPoolTx) end(ctx context.Context, text string) error {
	if tx.over {
		return pgx.ErrTxClosed
	}
	tx.over = true
	defer tx.conn.abandon()
	return tx.conn.run(ctx, text, nil).err
}

func (r *simRows) Close() {}

func (r *simRows) Err() error { return r.err }

func (*simRows) CommandTag() pgconn.CommandTag { return pgconn.CommandTag{} }

func (r *simRows) Next() bool {
	r.at++
	return r.err == nil && r.at <= len(r.rows)
}

func (r *simRows) Scan(into ...any) error {
	if r.err != nil {
		return r.err
	}
	for i, value := range r.rows[r.at-1] {
		reflect.ValueOf(into[i]).Elem().Set(reflect.ValueOf(value))
	}
	return nil
}

func (r *simResults) Exec() (pgconn.CommandTag, error) {
	if r.err == nil {
		r.rows = r.rows[1:]
	}
	return pgconn.CommandTag{}, r.err
}

func (r *simResults) QueryRow() pgx.Row {
	if r.err != nil {
		return &simRows{err: r.err}
	}
	row := &simRows{rows: r.rows[0], at: 1}
	r.rows = r.rows[1:]
	return row
}

func (r *simResults) Close() error {
	for _, q := range r.queued {
		if r.err != nil {
			break
		}
		if q.Fn == nil {
			_, r.err = r.Exec()
		} else {
			r.err = q.Fn(r)
		}
	}
	return r.err
}
