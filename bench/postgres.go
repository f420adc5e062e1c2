package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// postgresFigures are what plain requests cost at a gateway on PostgreSQL, beside one on SQLite.
type postgresFigures struct{ loads []postgresLoad }

// postgresLoad is one workload, in the round with the median ratio.
type postgresLoad struct {
	name             string
	sqlite, postgres time.Duration // the gateway's CPU per request
	server           time.Duration // PostgreSQL's CPU per request
	calls            float64       // of the ledger, per request
	sqliteLatency    time.Duration // median
	postgresLatency  time.Duration // median
}

// ratio is that of the CPU times of the gateways.
func (l *postgresLoad) ratio() float64 { return float64(l.postgres) / float64(max(l.sqlite, 1)) }

// String returns a line for each workload.
func (f *postgresFigures) String() string {
	text := strings.Builder{}
	text.WriteString("PostgreSQL, CPU per request of the gateway on SQLite and on PostgreSQL, and of the server")
	for i := range f.loads {
		l := &f.loads[i]
		fmt.Fprintf(&text, "; %s: %v, %v (%.2f times) and %v, %.2f calls, median latency %v and %v", l.name, l.sqlite, l.postgres,
			l.ratio(), l.server, l.calls, l.sqliteLatency, l.postgresLatency)
	}
	return text.String()
}

// manyAccounts is over how many accounts the last workload is spread: one for each connection.
const manyAccounts = 256

var errPostgresLoad = errors.New("requests failed")

// measurePostgres sends plain requests to a gateway on SQLite and to one on PostgreSQL in alternation. It returns nil if
// PostgreSQL is not installed.
func measurePostgres(ctx context.Context, o options) (f *postgresFigures, err error) {
	bin := postgresBinaries()
	if bin == "" {
		return nil, nil //nolint:nilnil // as with the other proxies, what is not installed is not measured
	}
	b, err := newTestbed(o.programs)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	if err := b.addUpstream(ctx); err != nil {
		return nil, err
	}
	server, err := startPostgres(ctx, bin)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, server.stop()) }()
	sqlite, _, err := b.startGateway(ctx, unlimited)
	if err != nil {
		return nil, err
	}
	postgres, admin, err := b.startGatewayOf(ctx, gatewayOptions{
		name: "basegate, PostgreSQL", program: o.programs.basegate, url: server.url(), concurrency: unlimited,
	})
	if err != nil {
		return nil, err
	}
	postgres.server = server.process
	f = &postgresFigures{}
	for _, w := range workloads(o.short) {
		if w.id != plainOne && w.id != plainSome && w.id != plainMany {
			continue
		}
		if err := f.measure(ctx, o, w.name, w, sqlite, postgres, admin); err != nil {
			return nil, err
		}
		if w.id != plainMany {
			continue
		}
		for _, t := range []*target{&sqlite, &postgres} {
			if t.keys, err = b.createAccounts(ctx, o.programs.basegate, t.name, manyAccounts); err != nil {
				return nil, err
			}
		}
		if err := f.measure(ctx, o, fmt.Sprintf("%s, an account each", w.name), w, sqlite, postgres, admin); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// measure adds one workload.
func (f *postgresFigures) measure(ctx context.Context, o options, name string, w workload, sqlite, postgres target, admin string) error {
	var rounds []postgresLoad
	for range o.rounds {
		l := postgresLoad{name: name}
		for _, t := range []target{sqlite, postgres} {
			before, err := ledgerCalls(ctx, admin)
			if err != nil {
				return err
			}
			m, err := measure(ctx, t, w, o.span)
			if err != nil {
				return err
			}
			if m.complete == 0 || m.failed+m.truncated > 0 {
				return fmt.Errorf("%s, %s: %w: %w", name, t.name, errPostgresLoad, m.exampleErr)
			}
			each := func(d time.Duration) time.Duration {
				return (d / time.Duration(m.complete)).Round(time.Microsecond / 10)
			}
			if t.server == nil {
				l.sqlite, l.sqliteLatency = each(m.cpu), m.median
				continue
			}
			after, err := ledgerCalls(ctx, admin)
			if err != nil {
				return err
			}
			l.postgres, l.postgresLatency, l.server = each(m.cpu), m.median, each(m.serverCPU)
			l.calls = (after.calls - before.calls) / max(after.settled-before.settled, 1)
		}
		rounds = append(rounds, l)
	}
	slices.SortFunc(rounds, func(a, b postgresLoad) int { return cmp.Compare(a.ratio(), b.ratio()) })
	f.loads = append(f.loads, rounds[len(rounds)/2])
	return nil
}

// ledgerTotals are two counters of a gateway's ledger.
type ledgerTotals struct{ calls, settled float64 }

// ledgerCalls reads the totals from the gateway's metrics.
func ledgerCalls(ctx context.Context, admin string) (t ledgerTotals, err error) {
	text, err := fetch(ctx, admin+"/metrics")
	if err != nil {
		return t, err
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch name {
		case "basegate_ledger_calls_total":
			t.calls, err = strconv.ParseFloat(value, 64)
		case `basegate_ledger_settlements_total{state="settled"}`:
			t.settled, err = strconv.ParseFloat(value, 64)
		}
		if err != nil {
			return t, fmt.Errorf("read %s: %w", name, err)
		}
	}
	return t, nil
}

// createAccounts creates accounts with a key each at the gateway of this name, and returns the keys.
func (b *testbed) createAccounts(ctx context.Context, program, name string, n int) (keys []string, err error) {
	config := filepath.Join(b.dir, name+".yaml")
	for i := range n {
		email := fmt.Sprintf("account%d@example.org", i)
		if _, err := command(ctx, program, config, append([]string{"account", "create", email}, budgetFlags...)...); err != nil {
			return nil, err
		}
		key, err := command(ctx, program, config, "key", "create", "--account", email, "--name", "bench", "--concurrency", strconv.Itoa(unlimited))
		if err != nil {
			return nil, err
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// postgresServer is a PostgreSQL server of its own with fsync, on a socket in a temporary directory.
type postgresServer struct {
	*process

	dir string
}

// postgresBinaries returns the directory of the newest PostgreSQL server that Debian's package has installed, or "".
func postgresBinaries() string {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil || len(found) == 0 {
		return ""
	}
	return filepath.Dir(slices.Max(found))
}

func startPostgres(ctx context.Context, bin string) (s *postgresServer, err error) {
	dir, err := os.MkdirTemp("", "basegate-bench-postgres-")
	if err != nil {
		return nil, fmt.Errorf("make directory: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	attributes, err := postgresUser(dir)
	if err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "data")
	initialize := exec.CommandContext(ctx, filepath.Join(bin, "initdb"), "-D", data, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C") //nolint:gosec // PostgreSQL's program
	initialize.SysProcAttr, initialize.Dir = attributes, dir
	if output, err := initialize.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w: %s", err, output)
	}
	options := []string{"-D", data, "-k", dir, "-c", "listen_addresses=", "-c", "shared_buffers=256MB"}
	command := exec.CommandContext(context.WithoutCancel(ctx), filepath.Join(bin, "postgres"), options...) //nolint:gosec // as above
	command.SysProcAttr, command.Dir = attributes, dir
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("start PostgreSQL: %w", err)
	}
	p := &process{name: "PostgreSQL", command: command, exited: make(chan error, 1)}
	go func() { p.exited <- command.Wait() }()
	s = &postgresServer{p, dir}
	isReady := func(ctx context.Context) bool {
		return exec.CommandContext(ctx, filepath.Join(bin, "pg_isready"), "-q", "-h", dir, "-U", "postgres").Run() == nil //nolint:gosec // as above
	}
	if err := p.awaitReady(ctx, isReady); err != nil {
		return nil, errors.Join(fmt.Errorf("start PostgreSQL: %w", err), p.stop())
	}
	return s, nil
}

// postgresUser returns the attributes of the server's processes, which must not run as root, and gives the directory to
// their user.
func postgresUser(dir string) (*syscall.SysProcAttr, error) {
	if os.Getuid() != 0 {
		return &syscall.SysProcAttr{Setpgid: true}, nil
	}
	found, err := user.Lookup("postgres")
	if err != nil {
		return nil, fmt.Errorf("find the user of PostgreSQL: %w", err)
	}
	uid, err := strconv.ParseUint(found.Uid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("find the user of PostgreSQL: %w", err)
	}
	gid, err := strconv.ParseUint(found.Gid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("find the user of PostgreSQL: %w", err)
	}
	if err := os.Chown(dir, int(uid), int(gid)); err != nil {
		return nil, fmt.Errorf("prepare PostgreSQL: %w", err)
	}
	return &syscall.SysProcAttr{Setpgid: true, Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, nil
}

func (s *postgresServer) url() string { return "postgres://postgres@/postgres?host=" + s.dir }

// stop ends the server at once, and deletes its data.
func (s *postgresServer) stop() error {
	err := s.command.Process.Signal(syscall.SIGINT) // a fast shutdown; SIGTERM would wait for its clients
	<-s.exited                                      //nolint:errcheck // of a server that was stopped
	return errors.Join(err, os.RemoveAll(s.dir))
}
