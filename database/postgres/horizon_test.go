package postgres_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"basegate/database/postgres"
	"basegate/internal/poll"
)

// A role that may not see when the transactions of others began sees their snapshots nevertheless.
func TestAgeOfTheOldestSnapshot(t *testing.T) {
	server, name := newDatabase(t)
	server.Exec(t, name, `DO $$ BEGIN CREATE ROLE observer LOGIN; END $$`)
	t.Cleanup(func() { server.Exec(t, name, `DROP OWNED BY observer; DROP ROLE observer`) })
	age := map[string]func() float64{}
	for _, role := range []string{"postgres", "observer"} {
		h := postgres.NewHorizon(open(t, postgres.Settings{URL: strings.Replace(server.URL(name), "postgres@", role+"@", 1)}))
		age[role] = func() float64 {
			got, err := h.Age(t.Context())
			must(t, err)
			return got.Seconds()
		}
	}
	conn, err := pgx.Connect(t.Context(), server.URL(name))
	must(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	for role, read := range age {
		poll.Until(t, "nobody holds a snapshot, seen as "+role, func() bool { return read() == 0 })
	}
	_, err = conn.Exec(t.Context(), `BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1`)
	must(t, err)
	writer, err := pgx.Connect(t.Context(), server.URL(name))
	must(t, err)
	defer writer.Close(context.WithoutCancel(t.Context()))
	for role, read := range age {
		before := 0.0
		poll.Until(t, "the snapshot gets older, seen as "+role, func() bool {
			_, err := writer.Exec(t.Context(), `SELECT pg_current_xact_id()`)
			must(t, err)
			got := read()
			older := got > before && before > 0
			before = got
			return older
		})
	}
	_, err = conn.Exec(t.Context(), `COMMIT`)
	must(t, err)
	for role, read := range age {
		poll.Until(t, "the snapshot is gone, seen as "+role, func() bool { return read() == 0 })
	}
}
