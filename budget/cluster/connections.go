package cluster

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"basegate/database/postgres"
)

// Connections is how many connections a Ledger opens with the default Settings, besides those of its DB's pool: its lanes, one
// for heartbeats and one that listens.
const Connections = defaultLanes + 2

// defaultLanes is the Lanes that 0 means.
const defaultLanes = 3

// store is the database of a Ledger. A test has one that loses and delays calls and replies, by a seed.
type store interface {
	connect(ctx context.Context) (connection, error)
	Pool() pool
}

// pool has the methods of pgxpool.Pool that a Ledger calls.
type pool interface {
	querier
	Begin(ctx context.Context) (pgx.Tx, error)
}

type querier interface {
	Exec(ctx context.Context, text string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, text string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, text string, args ...any) pgx.Row
}

// connection has the methods of pgx.Conn that a Ledger calls.
type connection interface {
	querier
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
	WaitForNotification(ctx context.Context) (*pgconn.Notification, error)
	IsClosed() bool
	close(ctx context.Context)
	abandon()
}

// server is the store of a Ledger that serves.
type server struct{ *postgres.DB }

func (s server) Pool() pool { return s.DB.Pool() }

func (s server) connect(ctx context.Context) (connection, error) {
	conn, err := s.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return serverConn{conn}, nil
}

type serverConn struct{ *pgx.Conn }

func (c serverConn) close(ctx context.Context) { postgres.CloseConn(ctx, c.Conn) }

// abandon closes the connection without a farewell, which could block.
func (c serverConn) abandon() { _ = c.PgConn().Conn().Close() }
