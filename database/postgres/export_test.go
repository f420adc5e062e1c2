package postgres

import (
	"context"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5"
)

// CheckClock is the check of the clock, with another one for this machine.
func CheckClock(ctx context.Context, conn *pgx.Conn, now func() time.Time) (c Checked, err error) {
	err = c.checkClock(ctx, conn, now)
	return c, err
}

// Migrations are those of this program.
var Migrations fs.FS = migrations

// MigrateTo is Migrate with the migrations of another program.
func (db *DB) MigrateTo(ctx context.Context, files fs.FS) (Schema, error) {
	return db.migrate(ctx, files)
}
