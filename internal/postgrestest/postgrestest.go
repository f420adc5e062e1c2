// Package postgrestest starts PostgreSQL servers for tests, and proxies that lose their replies. It is imported by tests
// and benchmarks only.
package postgrestest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/procfs"

	"basegate/internal/poll"
)

// Server is a PostgreSQL server of its own on a socket in a temporary folder.
type Server struct {
	folder  string
	bin     string
	options []string
	port    string // of the socket
	process *exec.Cmd
	exited  chan struct{} // closed when the process has exited
}

// Durable makes commits wait for the disk, as in production. Without it a crash of the machine may lose commits, but the end
// of the server loses none.
func Durable(s *Server) { s.options = append(s.options, "-c", "fsync=on") }

// Binaries returns the folder of the newest installed server, or "".
func Binaries() string {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin") // the pattern is valid; versions have two digits
	if len(found) > 0 {
		return found[len(found)-1]
	}
	if path, err := exec.LookPath("initdb"); err == nil {
		return filepath.Dir(path)
	}
	return ""
}

// Start creates and starts a server that is stopped at the end of the test. It skips the test if the environment has
// BASEGATE_TEST_ENGINE=sqlite, as make test has. If PostgreSQL is not installed, it skips it too, or fails it with CI=true.
func Start(tb testing.TB, options ...func(*Server)) *Server {
	tb.Helper()
	s := create(tb, options...)
	tb.Cleanup(s.remove)
	return s
}

// shared is the server of Shared.
var shared struct {
	sync.Mutex
	server *Server
}

// Shared returns a server for all tests of the package, whose TestMain must run Main.
func Shared(tb testing.TB) *Server {
	tb.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil {
		shared.server = create(tb)
	}
	return shared.server
}

// Main runs the tests of a package and then stops the server of Shared.
type Main struct{ M *testing.M }

// Run implements the interface of testing.M.
func (m Main) Run() int {
	code := m.M.Run()
	if shared.server != nil {
		shared.server.remove()
	}
	return code
}

// create creates and starts a server.
func create(tb testing.TB, options ...func(*Server)) *Server {
	tb.Helper()
	if os.Getenv("BASEGATE_TEST_ENGINE") == "sqlite" {
		tb.Skip("needs PostgreSQL: make test-postgres")
	}
	bin := Binaries()
	if bin == "" {
		if os.Getenv("CI") == "true" {
			tb.Fatal("PostgreSQL is not installed: apt-get install postgresql")
		}
		tb.Skip("PostgreSQL is not installed: apt-get install postgresql")
	}
	s := &Server{folder: makeFolder(tb), bin: bin, options: []string{"-c", "fsync=off"}, port: "5432"}
	for _, option := range options {
		option(s)
	}
	initdb := s.command(tb, "initdb", "-D", s.data(), "-A", "trust", "-U", "postgres", "-E", "UTF8",
		"--locale=C", "--no-sync")
	if output, err := initdb.CombinedOutput(); err != nil {
		tb.Fatalf("initdb: %v\n%s", err, output)
	}
	s.Run(tb)
	return s
}

// makeFolder makes a folder for a server.
func makeFolder(tb testing.TB) string {
	tb.Helper()
	folder, err := os.MkdirTemp(inMemory(), "postgres") //nolint:usetesting // tb.TempDir may be too long for the path of a socket
	if err != nil {
		tb.Fatal(err)
	}
	if credential := unprivileged(tb); credential != nil {
		if err := os.Chown(folder, int(credential.Uid), int(credential.Gid)); err != nil {
			tb.Fatal(err)
		}
	}
	return folder
}

func (s *Server) data() string { return filepath.Join(s.folder, "data") }

// inMemory returns a folder whose files are in memory, if there is one with room, or "": a database is some 300 files, and most
// tests create one.
func inMemory() string {
	const (
		folder = "/dev/shm"
		room   = 4 << 30
	)
	var s syscall.Statfs_t
	if err := syscall.Statfs(folder, &s); err != nil || s.Bavail*uint64(s.Bsize) < room {
		return ""
	}
	return folder
}

// remove stops the server and deletes its files.
func (s *Server) remove() {
	if s.process != nil {
		_ = s.process.Process.Signal(syscall.SIGQUIT)
		<-s.exited
	}
	_ = os.RemoveAll(s.folder)
}

// unprivileged returns the user as which to run the server, which refuses to run as root; nil for the test's own.
func unprivileged(tb testing.TB) *syscall.Credential {
	tb.Helper()
	if os.Getuid() != 0 {
		return nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		found, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.ParseUint(found.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(found.Gid, 10, 32)
		if uidErr == nil && gidErr == nil {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		}
	}
	tb.Fatal("PostgreSQL does not run as root, and there is no user postgres or nobody")
	return nil
}

func (s *Server) command(tb testing.TB, name string, args ...string) *exec.Cmd {
	tb.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(tb.Context()), // clean-ups stop the server
		filepath.Join(s.bin, name), args...)
	cmd.Dir = s.folder
	cmd.Env = append(os.Environ(), "LC_ALL=C", "TZ=UTC")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: unprivileged(tb)}
	return cmd
}

// Run starts the server, after a Stop, and waits until it accepts connections.
func (s *Server) Run(tb testing.TB) {
	tb.Helper()
	args := append([]string{
		"-D", s.data(), "-k", s.folder, "-c", "listen_addresses=", "-c", "port=" + s.port, "-c", "max_connections=500",
		"-c", "logging_collector=off", "-c", "log_min_messages=fatal",
		"-c", "autovacuum=off", // what it analyzes delays the rollups of rows that are written meanwhile
	}, s.options...)
	s.process = s.command(tb, "postgres", args...)
	if err := s.process.Start(); err != nil {
		tb.Fatal(err)
	}
	s.exited = make(chan struct{})
	go func(process *exec.Cmd, exited chan<- struct{}) {
		defer close(exited)
		_ = process.Wait() // it was killed, or the test finds that it does not respond
	}(s.process, s.exited)
	poll.Until(tb, "PostgreSQL accepts connections", func() bool {
		conn, err := pgx.Connect(tb.Context(), s.URL("postgres"))
		if err != nil {
			return false
		}
		return conn.Close(tb.Context()) == nil
	})
}

// Stop ends the server at once: it aborts transactions and closes connections.
func (s *Server) Stop(tb testing.TB) {
	tb.Helper()
	if s.process == nil {
		return
	}
	if err := s.process.Process.Signal(syscall.SIGINT); err != nil {
		tb.Error(err)
	}
	<-s.exited
	s.process = nil
}

// Pause stops all processes of the server until Resume, so that connections stay open and nothing responds.
func (s *Server) Pause(tb testing.TB) {
	tb.Helper()
	s.signal(tb, syscall.SIGSTOP)
}

// Resume ends a Pause.
func (s *Server) Resume(tb testing.TB) {
	tb.Helper()
	s.signal(tb, syscall.SIGCONT)
}

func (s *Server) signal(tb testing.TB, signal syscall.Signal) {
	tb.Helper()
	for _, p := range s.processes(tb) {
		if err := syscall.Kill(p.PID, signal); err != nil && err != syscall.ESRCH {
			tb.Error(err)
		}
	}
}

// CPU returns the processor time that the server's processes have used, those that have exited included.
func (s *Server) CPU(tb testing.TB) time.Duration {
	tb.Helper()
	const tick = 10 * time.Millisecond // on every Linux that Go supports
	var used time.Duration
	for _, p := range s.processes(tb) {
		used += time.Duration(int(p.UTime+p.STime)+p.CUTime+p.CSTime) * tick
	}
	return used
}

// processes returns the state of the server's process and its children.
func (s *Server) processes(tb testing.TB) (found []procfs.ProcStat) {
	tb.Helper()
	all, err := procfs.AllProcs()
	if err != nil {
		tb.Fatal(err)
	}
	for _, p := range all {
		stat, err := p.Stat() // fails if it has exited
		if err == nil && (stat.PID == s.process.Process.Pid || stat.PPID == s.process.Process.Pid) {
			found = append(found, stat)
		}
	}
	return found
}

// URL returns the address of a database of this server.
func (s *Server) URL(database string) string {
	return "postgres://postgres@/" + database + "?" + url.Values{"host": {s.folder}, "port": {s.port}}.Encode()
}

// Socket returns the path of the server's socket.
func (s *Server) Socket() string { return filepath.Join(s.folder, ".s.PGSQL."+s.port) }

var lastDatabase atomic.Int64

// Create creates a database that is a copy of template, or empty if that is "", and returns its name.
func (s *Server) Create(tb testing.TB, template string) string {
	tb.Helper()
	if template == "" {
		template = "template1"
	}
	name := fmt.Sprintf("test%d", lastDatabase.Add(1))
	const objectInUse = "55006" // sessions of the template are ending, for which the server waits five seconds
	poll.Until(tb, "the template has no sessions", func() bool {
		statement := fmt.Sprintf("CREATE DATABASE %s TEMPLATE %s", name, template)
		err := s.tryExec(tb, "postgres", statement)
		if e, ok := errors.AsType[*pgconn.PgError](err); ok && e.Code == objectInUse {
			return false
		}
		if err != nil {
			tb.Fatalf("%s: %v", statement, err)
		}
		return true
	})
	return name
}

// Exec executes a statement in a database.
func (s *Server) Exec(tb testing.TB, database, statement string) {
	tb.Helper()
	if err := s.tryExec(tb, database, statement); err != nil {
		tb.Fatalf("%s: %v", statement, err)
	}
}

// tryExec is Exec that returns the error of the statement.
func (s *Server) tryExec(tb testing.TB, database, statement string) error {
	tb.Helper()
	ctx := context.WithoutCancel(tb.Context()) // it may be called by a clean-up
	conn, err := pgx.Connect(ctx, s.URL(database))
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	_, err = conn.Exec(ctx, statement)
	return err
}

// Newer reports whether tests run on a schema that is newer than the program: their environment has
// BASEGATE_TEST_SCHEMA=newer.
func Newer() bool { return os.Getenv("BASEGATE_TEST_SCHEMA") == "newer" }

// Expand makes the schema of a migrated database that of a later release which only adds: it has a later version, and every
// table has more columns than the program knows.
func (s *Server) Expand(tb testing.TB, database string) {
	tb.Helper()
	s.Exec(tb, database, `
		DO $$
		DECLARE
			v_table regclass;
		BEGIN
			FOR v_table IN SELECT oid FROM pg_class WHERE relnamespace = 'basegate'::regnamespace AND relkind IN ('r', 'p')
				AND NOT relispartition AND relname <> 'schema_migrations' LOOP
				EXECUTE format('ALTER TABLE %s ADD COLUMN later text, ADD COLUMN later_count bigint NOT NULL DEFAULT 0', v_table);
				COMMIT; -- gateways may run: locks of several tables would be a deadlock with theirs
			END LOOP;
			CREATE TABLE basegate.later (id bigint PRIMARY KEY);
			INSERT INTO basegate.schema_migrations (version_id, is_applied)
				SELECT max(version_id) + 1, true FROM basegate.schema_migrations;
		END
		$$`)
}
