package postgres

import (
	"context"
	"errors"
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
var Migrations = migrations

// MigrateTo is Migrate with the migrations of another program.
func (db *DB) MigrateTo(ctx context.Context, files fs.FS) (Schema, error) {
	return db.migrate(ctx, files)
}

// CheckSchemaTo is the check of the schema by a program with other migrations.
func (db *DB) CheckSchemaTo(ctx context.Context, files fs.FS, migrate, migrates bool) (c Checked, err error) {
	conn, err := db.Connect(ctx)
	if err != nil {
		return c, err
	}
	err = c.checkSchema(ctx, conn, files, migrate, migrates)
	return c, errors.Join(err, conn.Close(ctx))
}
