//go:build e2e

package e2e_test

import (
	"cmp"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver of engineDriver

	"basegate/internal/postgrestest"
)

// onPostgres makes every environment without a database of its own use PostgreSQL, so that the same tests run on both
// engines.
var onPostgres = os.Getenv("BASEGATE_TEST_ENGINE") == "postgres"

// template is the name of a migrated database of the shared server, of which those of the environments are copies.
var template struct {
	sync.Mutex
	name string
}

// skipPostgres skips a test of what only SQLite has.
func skipPostgres(t *testing.T, reason string) {
	t.Helper()
	if onPostgres {
		t.Skip("on PostgreSQL: " + reason)
	}
}

// usePostgres gives the environment an empty migrated database on a server. The configuration must be written afterwards.
func (e *environment) usePostgres(server *postgrestest.Server) {
	e.t.Helper()
	e.postgres = server
	if server != postgrestest.Shared(e.t) {
		e.postgresURL = server.URL(server.Create(e.t, ""))
		return
	}
	template.Lock()
	defer template.Unlock()
	if template.name == "" {
		name := server.Create(e.t, "")
		e.postgresURL = server.URL(name)
		e.writeConfig(settings{}, "http://127.0.0.1:1")
		e.run("database", "migrate")
		if postgrestest.Newer() {
			server.Expand(e.t, name)
		}
		template.name = name
	}
	name := server.Create(e.t, template.name)
	e.postgresURL = server.URL(name)
	e.t.Cleanup(func() { server.Exec(e.t, "postgres", "DROP DATABASE "+name+" WITH (FORCE)") })
}

// firstGateway is the name of an environment's gateway on PostgreSQL.
const firstGateway = "first"

// another returns the environment of another gateway on the same database.
func (e *environment) another(name string) *environment {
	e.t.Helper()
	text, err := os.ReadFile(e.config)
	must(e.t, err)
	copied := *e
	copied.config = filepath.Join(e.dir, name+".yaml")
	writeFile(e.t, copied.config, strings.Replace(string(text), fmt.Sprintf("name: %q", firstGateway), fmt.Sprintf("name: %q", name), 1))
	return &copied
}

// databaseConfig returns the section of the database, and extra with a place for files.
func (e *environment) databaseConfig(s settings) (section, extra string) {
	if e.postgresURL == "" {
		return fmt.Sprintf("database: {path: %q, flush: %s}", e.database, cmp.Or(s.flush, "commit")), s.extra
	}
	section = fmt.Sprintf("database: {url: %q}", e.postgresURL)
	extra = s.extra + fmt.Sprintf("\ngateway: {name: %q}", firstGateway)
	if e.bucket != nil {
		return section, extra
	}
	extra = withFiles(extra, fmt.Sprintf("url: %q", "file://"+e.filesFolder()))
	return section, strings.Replace(extra, "files: {", "files: {shared: true, ", 1)
}

// withFiles returns further lines of a configuration with a place for files, unless they have one.
func withFiles(extra, place string) string {
	switch {
	case strings.Contains(extra, "files: {url"):
		return extra
	case strings.Contains(extra, "files: {"):
		return strings.Replace(extra, "files: {", "files: {"+place+", ", 1)
	default:
		return extra + "\nfiles: {" + place + "}"
	}
}

// filesFolder returns the folder of the files, if they are in no bucket.
func (e *environment) filesFolder() string { return filepath.Join(e.dir, "basegate.db.files") }

// openDatabase opens the environment's database for direct reading.
func (e *environment) openDatabase() (*sql.DB, error) {
	if e.postgresURL != "" {
		return sql.Open("pgx", e.postgresURL+"&search_path=basegate")
	}
	return sql.Open("sqlite3", "file:"+e.database+"?_query_only=1&_busy_timeout=10000")
}

// inflightKey returns the column of the table inflight with the key's id.
func (e *environment) inflightKey() string {
	if e.postgresURL != "" {
		return "key"
	}
	return "key_id"
}
