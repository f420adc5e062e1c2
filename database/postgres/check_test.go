package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"basegate/database/postgres"
	"basegate/internal/loopback"
	"basegate/internal/postgrestest"
)

const connections = 15

// wantFinding fails unless a finding has the text.
func wantFinding(t *testing.T, c postgres.Checked, failure bool, text string) {
	t.Helper()
	for _, f := range c.Findings {
		if strings.Contains(f.Text, text) {
			if f.Failure != failure {
				t.Errorf("%q: failure is %v, want %v", f.Text, f.Failure, failure)
			}
			return
		}
	}
	t.Errorf("got %+v, want a finding with %q", c.Findings, text)
}

func check(t *testing.T, url string, migrate bool) postgres.Checked {
	t.Helper()
	c, err := open(t, postgres.Settings{URL: url}).Check(t.Context(), connections, migrate)
	must(t, err)
	return c
}

// as returns a URL with another user.
func as(user, server string) string {
	return strings.Replace(server, "postgres://postgres@", "postgres://"+user+"@", 1)
}

func TestCheckNamesWhatIsWrongWithTheSchema(t *testing.T) {
	server, name := newDatabase(t)
	server.Exec(t, name, `CREATE TABLE public.other (n int)`)
	wantFinding(t, check(t, server.URL(name), true), false, "the database is empty")
	wantFinding(t, check(t, server.URL(name), false), true, "run basegate database migrate")
	_, err := open(t, postgres.Settings{URL: server.URL(name)}).Migrate(t.Context())
	must(t, err)
	for _, f := range check(t, server.URL(name), true).Findings {
		if strings.Contains(f.Text, "schema") {
			t.Errorf("a schema of this version: %s", f.Text)
		}
	}
	next, version := nextRelease(t, "-- +goose Up\nALTER TABLE boots ADD COLUMN added bigint;")
	for text, role := range map[string]struct{ migrate, migrates bool }{
		fmt.Sprintf("the next start migrates it to %d, with 1 migration", version): {true, true},
		"database.migrate is false":        {false, true},
		"the role does not own the schema": {true, false},
	} {
		c, err := open(t, postgres.Settings{URL: server.URL(name)}).CheckSchemaTo(t.Context(), next, role.migrate, role.migrates)
		must(t, err)
		wantFinding(t, c, !role.migrate || !role.migrates, text)
	}
	server.Exec(t, name, `INSERT INTO basegate.schema_migrations (version_id, is_applied) VALUES (9000, true)`)
	for _, migrate := range []bool{true, false} {
		wantFinding(t, check(t, server.URL(name), migrate), false, "the schema has version 9000, this program knows up to")
	}
	server.Exec(t, name, `UPDATE basegate.schema_compatibility SET oldest = 8999`)
	wantFinding(t, check(t, server.URL(name), true), true, "use that version or a later one")
	wantFinding(t, check(t, server.URL(name), false), true, "the schema has version 9000, which needs a program that knows version 8999")

	_, foreign := newDatabase(t)
	server.Exec(t, foreign, `CREATE SCHEMA basegate; CREATE TABLE basegate.accounts (n int)`)
	wantFinding(t, check(t, server.URL(foreign), true), true, "a schema basegate that basegate has not made")
	if _, err := open(t, postgres.Settings{URL: server.URL(foreign)}).Migrate(t.Context()); err == nil || !strings.Contains(err.Error(), "has not made") {
		t.Errorf("migrating the tables of others: %v", err)
	}
}

func TestCheckNamesRightsThatTheRoleLacks(t *testing.T) {
	server := postgrestest.Start(t)
	name := server.Create(t, "")
	server.Exec(t, name, `CREATE ROLE basegate_runtime LOGIN; CREATE ROLE basegate_reader LOGIN; CREATE ROLE stranger LOGIN; CREATE ROLE owner LOGIN`)
	wantFinding(t, check(t, as("stranger", server.URL(name)), true), true, "the role stranger may not create the schema")
	server.Exec(t, name, `GRANT CREATE ON DATABASE `+name+` TO owner`)
	_, err := open(t, postgres.Settings{URL: as("owner", server.URL(name))}).Migrate(t.Context())
	must(t, err)
	wantFinding(t, check(t, server.URL(name), true), false, "is a superuser")
	wantFinding(t, check(t, as("stranger", server.URL(name)), true), true, "the role stranger may not use the schema")
	wantFinding(t, check(t, as("basegate_reader", server.URL(name)), false), true, "the role basegate_reader may only read")
	wantFinding(t, check(t, as("basegate_runtime", server.URL(name)), true), false, "set database.migrate: false")
	for role, migrate := range map[string]bool{"owner": true, "basegate_runtime": false} {
		for _, f := range check(t, as(role, server.URL(name)), migrate).Findings {
			if strings.Contains(f.Text, "role") || f.Failure {
				t.Errorf("%s: %s", role, f.Text)
			}
		}
	}
	server.Exec(t, name, `UPDATE basegate.schema_migrations SET version_id = -1 WHERE version_id > 0`)
	wantFinding(t, check(t, as("owner", server.URL(name)), true), false, "the first start makes the schema, with 1 migration")
	wantFinding(t, check(t, as("basegate_runtime", server.URL(name)), true), true, "the role does not own the schema")
}

func TestCheckWarnsOfCommitsThatMayBeLost(t *testing.T) {
	server, name := newDatabase(t)
	wantFinding(t, check(t, server.URL(name), true), false, "fsync or full_page_writes is off")
	wantFinding(t, check(t, server.URL(name), true), false, "there is no synchronous standby")
	server.Exec(t, name, `ALTER DATABASE `+name+` SET synchronous_commit = off`)
	wantFinding(t, check(t, server.URL(name), true), false, "synchronous_commit is off")
	warnings, err := open(t, postgres.Settings{URL: server.URL(name)}).Durability(t.Context())
	must(t, err)
	if len(warnings) != 2 {
		t.Errorf("got warnings %q, want those of fsync and synchronous_commit", warnings)
	}
}

func TestCheckCountsConnections(t *testing.T) {
	server, name := newDatabase(t)
	_, err := open(t, postgres.Settings{URL: server.URL(name)}).Migrate(t.Context())
	must(t, err)
	for _, f := range check(t, server.URL(name), true).Findings {
		if strings.Contains(f.Text, "connections") {
			t.Errorf("one gateway: %s", f.Text)
		}
	}
	server.Exec(t, name, `INSERT INTO basegate.gateway (name, version, epoch, alive, beat, beat_at) SELECT i, '', 1, true, 0, 0 FROM generate_series(1, 33) i`)
	wantFinding(t, check(t, server.URL(name), true), false, "no room for another gateway") // 495 of 497
	server.Exec(t, name, `INSERT INTO basegate.gateway (name, version, epoch, alive, beat, beat_at) VALUES ('more', '', 1, true, 0, 0)`)
	wantFinding(t, check(t, server.URL(name), true), true, "34 gateways open up to 510 connections, 15 each, and max_connections")
	server.Exec(t, name, `ALTER DATABASE `+name+` CONNECTION LIMIT 20`)
	wantFinding(t, check(t, server.URL(name), true), true, "the database's connection limit is 20")
}

// openError returns the error of Open.
func openError(t *testing.T, url string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	db, err := postgres.Open(ctx, postgres.Settings{URL: url})
	if err == nil {
		db.Close()
		return ""
	}
	return err.Error()
}

func TestErrorOfTheStartSaysWhatToDo(t *testing.T) {
	server, name := newDatabase(t)
	latin, readOnly := server.Create(t, ""), server.Create(t, "")
	server.Exec(t, "postgres", `DROP DATABASE `+latin)
	server.Exec(t, "postgres", `CREATE DATABASE `+latin+` ENCODING 'LATIN1' TEMPLATE template0`)
	server.Exec(t, "postgres", `ALTER DATABASE `+readOnly+` SET default_transaction_read_only = on`)
	for what, c := range map[string]struct{ url, want string }{
		"no such database":         {server.URL("nothing"), "CREATE DATABASE"},
		"no such role":             {as("nobody", server.URL(name)), "check the user and the password"},
		"another encoding":         {server.URL(latin), "ENCODING 'UTF8'"},
		"read-only":                {server.URL(readOnly), "reset default_transaction_read_only"},
		"nothing listens":          {"postgres://x@" + loopback.Address(t) + "/x", "check the address"},
		"a connection without TLS": {"postgres://x@192.0.2.1/x?sslmode=disable", "want sslmode=verify-full"},
		"an unverified server":     {"postgres://x@db.example.com/x?sslmode=require", "want sslmode=verify-full"},
		"one of two unverified":    {"postgres://x@localhost,db.example.com/x", "want sslmode=verify-full"},
	} {
		if got := openError(t, c.url); !strings.Contains(got, c.want) {
			t.Errorf("%s: got %q, want %q", what, got, c.want)
		}
	}
}

func TestErrorsThatMayPassAreToldFromOthers(t *testing.T) {
	server, name := newDatabase(t)
	server.Exec(t, name, "CREATE ROLE one LOGIN CONNECTION LIMIT 0")
	for what, c := range map[string]struct {
		url  string
		want bool
	}{
		"nothing listens":      {"postgres://x@" + loopback.Address(t) + "/x", true},
		"too many connections": {as("one", server.URL(name)), true},
		"no such database":     {server.URL("nothing"), false},
		"no such role":         {as("nobody", server.URL(name)), false},
		"an unverified server": {"postgres://x@db.example.com/x?sslmode=require", false},
		"not a URL":            {"postgres://x:p@x/y@db.example.com/x", false},
	} {
		db, err := postgres.Open(t.Context(), postgres.Settings{URL: c.url})
		if err == nil {
			db.Close()
		}
		if err == nil || postgres.MayPass(err) != c.want {
			t.Errorf("%s: %v may pass: %v, want %v", what, err, postgres.MayPass(err), c.want)
		}
	}
}

func TestClockThatDiffersIsNamed(t *testing.T) {
	server, name := newDatabase(t)
	conn, err := pgx.Connect(t.Context(), server.URL(name))
	must(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	for off, failure := range map[time.Duration]bool{3 * time.Second: false, -3 * time.Second: false, 2 * time.Minute: true, -2 * time.Minute: true} {
		c, err := postgres.CheckClock(t.Context(), conn, func() time.Time { return time.Now().Add(off) })
		must(t, err)
		wantFinding(t, c, failure, "the clocks of this machine and of the server differ")
	}
	if c, err := postgres.CheckClock(t.Context(), conn, time.Now); err != nil || len(c.Findings) > 0 {
		t.Errorf("one clock: got %+v, %v", c.Findings, err)
	}
}
