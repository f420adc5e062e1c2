package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// CheckClock is the check of the clock, with another one for this machine.
func CheckClock(ctx context.Context, conn *pgx.Conn, now func() time.Time) (c Checked, err error) {
	err = c.checkClock(ctx, conn, now)
	return c, err
}
