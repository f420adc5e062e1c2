// Package databasetest selects the engine on which tests run that need a database: SQLite, or PostgreSQL if the
// environment has BASEGATE_TEST_POSTGRES, the URL of a database of a server on which databases may be created.
package databasetest

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"basegate/database"
)

// server is the URL of a database on PostgreSQL's server; empty for SQLite.
var server = os.Getenv("BASEGATE_TEST_POSTGRES")

// created holds the names of the databases that exist.
var created sync.Map

// template is an empty database with all tables, of which the others are copies.
var template struct {
	once sync.Once
	name string
	err  error
}

// createTemplate creates the template once in a process.
func createTemplate(ctx context.Context) (name string, err error) {
	template.once.Do(func() {
		template.name = "template_" + strings.ToLower(rand.Text())
		if template.err = execute(ctx, "CREATE DATABASE "+template.name); template.err != nil {
			return
		}
		var db *database.DB
		if db, template.err = database.Open(ctx, database.Settings{URL: addressOf(template.name)}, zap.NewNop()); template.err == nil {
			template.err = db.Close()
		}
	})
	return template.name, template.err
}

// Postgres reports whether tests run on PostgreSQL.
func Postgres() bool { return server != "" }

// Settings returns those of the database of a test that has a path. The same path is the same database on either engine.
// On PostgreSQL it is dropped at the end of the test that has first asked for it.
func Settings(tb testing.TB, path string) database.Settings {
	tb.Helper()
	if server == "" {
		return database.Settings{Path: path}
	}
	sum := sha256.Sum256([]byte(path))
	name := "test_" + hex.EncodeToString(sum[:8])
	if _, exists := created.LoadOrStore(name, true); !exists {
		from, err := createTemplate(tb.Context())
		if err == nil {
			err = execute(tb.Context(), "CREATE DATABASE "+name+" TEMPLATE "+from)
		}
		if err != nil {
			tb.Fatalf("create a database on BASEGATE_TEST_POSTGRES: %v", err)
		}
		tb.Cleanup(func() {
			created.Delete(name)
			if err := execute(context.WithoutCancel(tb.Context()), "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
				tb.Error(err)
			}
		})
	}
	return database.Settings{URL: addressOf(name)}
}

// SkipPostgres skips a test of what only SQLite has.
func SkipPostgres(tb testing.TB, reason string) {
	tb.Helper()
	if server != "" {
		tb.Skip("on PostgreSQL: " + reason)
	}
}

// addressOf returns the URL of a database of the server.
func addressOf(name string) string {
	address, err := url.Parse(server)
	if err != nil {
		return server // opening it reports the error
	}
	address.Path = "/" + name
	return address.String()
}

// execute executes a statement outside of the databases of tests.
func execute(ctx context.Context, statement string) error {
	conn, err := pgx.Connect(ctx, server)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, statement)
	return errors.Join(err, conn.Close(ctx))
}
