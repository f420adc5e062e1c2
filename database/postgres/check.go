package postgres

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// Finding is something that an operator should know about the server.
type Finding struct {
	Failure bool // a gateway does not start, or does not work, with this server
	Text    string
}

// Checked is what Check has found.
type Checked struct {
	Server   string // the version of the server, and where it is
	Current  bool   // the schema has all migrations of this program
	Findings []Finding
}

func (c *Checked) add(failure bool, format string, args ...any) {
	c.Findings = append(c.Findings, Finding{failure, fmt.Sprintf(format, args...)})
}

// Limits of the difference between the clocks of a gateway and the server.
const (
	clockWarning = time.Second
	clockFailure = time.Minute
)

// Check examines the server for gateways, each of which opens a number of connections, and which migrate the database or not.
// It changes nothing.
func (db *DB) Check(ctx context.Context, connections int, migrate bool) (c Checked, err error) {
	conn, err := db.Connect(ctx)
	if err != nil {
		return c, err
	}
	defer CloseConn(ctx, conn)
	c.Server = fmt.Sprintf("PostgreSQL %s at %s", conn.PgConn().ParameterStatus("server_version"), db.Place())
	usable, migrates, err := c.checkRole(ctx, conn, migrate)
	if err == nil && usable {
		err = c.checkSchema(ctx, conn, migrations, migrate, migrates)
	}
	if err == nil {
		err = c.checkDurability(ctx, conn)
	}
	if err == nil {
		err = c.checkConnections(ctx, conn, connections, usable)
	}
	if err == nil {
		err = c.checkClock(ctx, conn, time.Now)
	}
	if err != nil {
		return c, fmt.Errorf("check the server: %w", err)
	}
	return c, nil
}

// Durability returns why a failure of the server, or a failover, may lose commits that it has acknowledged.
func (db *DB) Durability(ctx context.Context) ([]string, error) {
	var c Checked
	conn, err := db.Connect(ctx)
	if err != nil {
		return nil, err
	}
	defer CloseConn(ctx, conn)
	if err := c.checkDurability(ctx, conn); err != nil {
		return nil, fmt.Errorf("check the server: %w", err)
	}
	var warnings []string
	for _, f := range c.Findings {
		warnings = append(warnings, f.Text)
	}
	return warnings, nil
}

// checkSchema checks that the schema is basegate's, and that this program may work on it. migrates reports whether the role
// can migrate.
func (c *Checked) checkSchema(ctx context.Context, conn *pgx.Conn, files fs.FS, migrate, migrates bool) error {
	s, err := schemaOf(ctx, conn, files)
	c.Current = err == nil && s.Check() == nil
	switch {
	case errors.Is(err, errForeignSchema):
		c.add(true, "%v", err)
	case err != nil:
		return err
	case errors.Is(s.Check(), ErrNewer):
		c.add(true, "%v", s.Check())
	case s.Newer():
		c.add(false, "the schema has version %d, this program knows up to %d: it may serve beside newer gateways during an upgrade",
			s.Version, s.Known)
	case s.Version < s.Known && !migrate:
		c.add(true, "the schema has version %d, this program needs %d, and database.migrate is false: run basegate database migrate "+
			"as the role that owns the schema", s.Version, s.Known)
	case s.Version < s.Known && !migrates:
		c.add(true, "the schema has version %d, this program needs %d, and the role does not own the schema: run basegate database migrate "+
			"as the role that does", s.Version, s.Known)
	case s.Version == 0:
		c.add(false, "the database is empty: the first start makes the schema, with %s", pendingText(s))
	case s.Version < s.Known:
		c.add(false, "the schema has version %d: the next start migrates it to %d, with %s", s.Version, s.Known, pendingText(s))
	}
	return nil
}

// pendingText is the number of migrations that the schema lacks, as a text.
func pendingText(s Schema) string {
	if s.Pending() == 1 {
		return "1 migration"
	}
	return fmt.Sprintf("%d migrations", s.Pending())
}

var errForeignSchema = errors.New("the database has a schema basegate that basegate has not made: name another database, or rename that schema")

// checkRole checks the rights of the role, and reports whether it can read the schema, or make it, and whether it can migrate.
func (c *Checked) checkRole(ctx context.Context, conn *pgx.Conn, migrate bool) (usable, migrates bool, err error) {
	var (
		role                     string
		super, exists, owns      bool
		mayCreate, mayUse, calls bool
	)
	const text = `
		SELECT current_user, r.rolsuper, n.oid IS NOT NULL, coalesce(pg_has_role(n.nspowner, 'USAGE'), false),
			has_database_privilege(current_database(), 'CREATE'), coalesce(has_schema_privilege(n.oid, 'USAGE'), false)
		FROM pg_roles r LEFT JOIN pg_namespace n ON n.nspname = $1 WHERE r.rolname = current_user`
	if err := conn.QueryRow(ctx, text, schema).Scan(&role, &super, &exists, &owns, &mayCreate, &mayUse); err != nil {
		return false, false, err
	}
	const function = `SELECT coalesce(bool_or(has_function_privilege(oid, 'EXECUTE')), false) FROM pg_proc
		WHERE pronamespace = to_regnamespace($1) AND proname = 'ledger_write_v1'`
	if err := conn.QueryRow(ctx, function, schema).Scan(&calls); err != nil {
		return false, false, err
	}
	switch {
	case super:
		c.add(false, "the role %s is a superuser: use a role that owns nothing but this database", role)
	case !exists && !mayCreate:
		c.add(true, "the role %s may not create the schema: GRANT CREATE ON DATABASE … TO %s, or migrate as the owner", role, role)
	case exists && !mayUse:
		c.add(true, "the role %s may not use the schema: as its owner, run SELECT basegate.ledger_grants(); roles are named basegate_runtime "+
			"and basegate_reader, or are members of them", role)
	case exists && !owns && !calls:
		c.add(true, "the role %s may only read: a gateway needs the schema's owner, or a member of basegate_runtime", role)
	case exists && !owns && migrate:
		c.add(false, "the role %s does not own the schema, so it cannot migrate when a version needs it: set database.migrate: false", role)
	}
	return !exists || mayUse, super || owns || !exists, nil
}

// checkDurability checks that commits survive a failure of the server, and a failover.
func (c *Checked) checkDurability(ctx context.Context, conn *pgx.Conn) error {
	var fsync, pages, commit, names string
	var standbys int
	const text = `SELECT current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'),
		current_setting('synchronous_standby_names'), (SELECT count(*) FROM pg_stat_replication)`
	if err := conn.QueryRow(ctx, text).Scan(&fsync, &pages, &commit, &names, &standbys); err != nil {
		return err
	}
	if fsync == "off" || pages == "off" {
		c.add(false, "fsync or full_page_writes is off: a crash of the machine may damage the database; set both to on")
	}
	switch {
	case commit == "off":
		c.add(false, "synchronous_commit is off: a crash of the server loses charges of responses that clients have; set it to on")
	case names == "" && standbys == 0:
		c.add(false, "there is no synchronous standby (synchronous_standby_names is empty): if the server's disk is lost, so are the "+
			"charges since the last backup")
	case names == "":
		c.add(false, "no standby is synchronous (synchronous_standby_names is empty): a failover may lose charges that were acknowledged")
	case commit == "local":
		c.add(false, "synchronous_commit is local, so no standby is waited for: a failover may lose charges that were acknowledged")
	}
	return nil
}

// checkConnections checks that the server accepts those of all gateways.
func (c *Checked) checkConnections(ctx context.Context, conn *pgx.Conn, connections int, usable bool) error {
	var accepted, roleLimit, databaseLimit, gateways int
	const text = `
		SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
				- coalesce(current_setting('reserved_connections', true), '0')::int,
			(SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user),
			(SELECT datconnlimit FROM pg_database WHERE datname = current_database())`
	if err := conn.QueryRow(ctx, text).Scan(&accepted, &roleLimit, &databaseLimit); err != nil {
		return err
	}
	what := "max_connections, without those that are reserved,"
	for name, limit := range map[string]int{"the role's connection limit": roleLimit, "the database's connection limit": databaseLimit} {
		if limit >= 0 && limit < accepted {
			what, accepted = name, limit
		}
	}
	var known bool
	if usable {
		if err := conn.QueryRow(ctx, `SELECT to_regclass('gateway') IS NOT NULL`).Scan(&known); err != nil {
			return err
		}
	}
	if known {
		if err := conn.QueryRow(ctx, `SELECT count(*) FROM gateway WHERE alive`).Scan(&gateways); err != nil {
			return err
		}
	}
	gateways = max(1, gateways)
	switch need := connections * gateways; {
	case need > accepted:
		c.add(true, "%d gateways open up to %d connections, %d each, and %s is %d: raise it", gateways, need, connections, what, accepted)
	case need+connections > accepted:
		c.add(false, "%d gateways open up to %d connections, %d each, and %s is %d: there is no room for another gateway, as during an upgrade",
			gateways, need, connections, what, accepted)
	}
	return nil
}

// checkClock compares this machine's clock with the server's. Windows of caps are of the server's.
func (c *Checked) checkClock(ctx context.Context, conn *pgx.Conn, now func() time.Time) error {
	var theirs time.Time
	before := now()
	if err := conn.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&theirs); err != nil {
		return err
	}
	after := now()
	off := max(before.Sub(theirs), theirs.Sub(after)) // what the round trip does not explain
	if off > clockWarning {
		c.add(off > clockFailure, "the clocks of this machine and of the server differ by %v: synchronize both, with NTP", off.Round(100*time.Millisecond))
	}
	return nil
}

// Place returns where the server and the database are, without a password.
func (db *DB) Place() string {
	c := db.config
	return fmt.Sprintf("%s/%s", net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port))), c.Database)
}

// explain adds what to do to an error of a connection.
func explain(err error) error {
	var advice string
	switch code := Code(err); {
	case code == "28P01" || code == "28000":
		advice = "check the user and the password in database.url, and pg_hba.conf"
	case code == "3D000":
		advice = "there is no such database on this server: CREATE DATABASE"
	case code == "53300":
		advice = "raise max_connections, or end other clients"
	case code == "42501":
		advice = "the role has no right to do this; see roles in basegate check"
	case isStartupParameter(err):
		advice = "the pooler before PostgreSQL refuses the parameter options of the URL, or PGOPTIONS: remove it; other parameters of the " +
			"URL are set after connecting"
	case code == "57P03":
		advice = "the server is starting or stopping"
	case code != "":
		return err
	case isCertificate(err):
		advice = "the server's certificate is not the one of its name, or of no known authority: see sslrootcert"
	case errors.Is(err, context.DeadlineExceeded):
		advice = "nothing answers: check the address, and firewalls"
	default:
		if _, ok := errors.AsType[*net.OpError](err); ok {
			advice = "check the address in database.url, and that the server listens there"
		}
	}
	if advice == "" {
		return err
	}
	return fmt.Errorf("%w: %s", err, advice)
}
