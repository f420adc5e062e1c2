// Package transfer copies a whole database from SQLite to PostgreSQL, and back.
//
// Each table is read in pages by a key that is unique, and each page is written in one transaction with the progress,
// so a copy that was interrupted continues where it stopped, and nothing is written twice. No transaction is long, and
// memory holds one page. The package promises that the copy is compared with the source, row by row, before it can be
// used: until then the file of a SQLite target has another name, and gateways refuse a PostgreSQL target.
//
// Data that only one engine has is not copied: counters of the ledger are computed from the requests, requests in
// flight become interrupted ones.
package transfer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// ErrServing is returned if a gateway serves from one of the databases.
var ErrServing = errors.New("stop every gateway first")

// ErrNotEmpty is returned if the target has rows.
var ErrNotEmpty = errors.New("the target is not empty")

// ErrChanged is returned if the source has changed since the copy began.
var ErrChanged = errors.New("the source has changed since the copy began")

// state is recorded in the target until the copy is complete.
type state struct {
	Source     string `json:"source"`
	Generation string `json:"generation"` // of the source

	tables map[string]progress
}

// IsURL reports whether the place of a database is a URL of PostgreSQL, and not a path.
func IsURL(place string) bool {
	return strings.HasPrefix(place, "postgres://") || strings.HasPrefix(place, "postgresql://")
}

// Copy copies the database at from to to: one is the path of a SQLite database, the other the URL of a PostgreSQL
// database. It writes its progress to log.
func Copy(ctx context.Context, from, to string, log io.Writer) (err error) {
	if IsURL(from) == IsURL(to) {
		return errors.New("one of the two is the path of a SQLite database, and the other a postgres:// URL; " +
			"to copy a database to one of the same kind, use basegate backup or pg_dump")
	}
	source, target, err := openSides(ctx, from, to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, source.close(), target.close()) }()
	c := &copier{source: source, target: target, log: log}
	return c.run(ctx)
}

func openSides(ctx context.Context, from, to string) (source, target side, err error) {
	if IsURL(from) {
		source, err = openPostgres(ctx, from, false)
	} else {
		source, err = openFile(ctx, from)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("open the source: %w", err)
	}
	if IsURL(to) {
		target, err = openPostgres(ctx, to, true)
	} else {
		target, err = createFile(ctx, to)
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("open the target: %w", err), source.close())
	}
	return source, target, nil
}

// copier is one run of a copy.
type copier struct {
	source, target side
	state          *state
	log            io.Writer
	reported       time.Time
}

func (c *copier) run(ctx context.Context) error {
	for _, s := range []side{c.source, c.target} {
		if err := s.refuseGateway(ctx); err != nil {
			return err
		}
	}
	if err := c.source.refuseUnfinished(ctx); err != nil {
		return err
	}
	if err := c.beginOrResume(ctx); err != nil {
		return err
	}
	if err := c.target.prepare(ctx, c.source); err != nil {
		return fmt.Errorf("prepare the target: %w", err)
	}
	for i := range tables {
		if err := c.copyTable(ctx, &tables[i]); err != nil {
			return err
		}
	}
	if err := c.refuseChanges(ctx); err != nil {
		return err
	}
	totals, err := c.verify(ctx)
	if err != nil {
		return err
	}
	if err := c.target.finish(ctx, c.state.tables); err != nil {
		return fmt.Errorf("finish the copy: %w", err)
	}
	requests := totals[summed]
	c.say("%d rows of %d tables are copied from %s to %s, and verified: %d requests with %d tokens, %d accounts, %d keys",
		sumRows(totals), len(totals), c.source.describe(), c.target.describe(), requests.Rows, requests.Tokens,
		totals["accounts"].Rows, totals["keys"].Rows)
	if n := c.state.tables["inflight"].Rows; n > 0 {
		c.say("%d requests that a crash had left in flight are interrupted requests in the copy", n)
	}
	if totals["receipts"].Rows > 0 {
		c.say("the signing key of the receipt log is not in the database: receipts.key of the new configuration must name a copy of the same file")
	}
	if totals["objects"].Rows > 0 {
		c.say("files are not in the database: files.url of the new configuration must name the place where they are")
	}
	return nil
}

func sumRows(all map[string]progress) (n int64) {
	for _, p := range all {
		n += p.Rows
	}
	return n
}

func (c *copier) say(format string, args ...any) { fmt.Fprintf(c.log, format+"\n", args...) }

// beginOrResume reads the state of an earlier run, or begins in an empty target.
func (c *copier) beginOrResume(ctx context.Context) error {
	generation, err := c.source.generation(ctx)
	if err != nil {
		return fmt.Errorf("read the source: %w", err)
	}
	c.state, err = c.target.loadState(ctx)
	if err != nil {
		return fmt.Errorf("read the state of an earlier copy: %w", err)
	}
	if s := c.state; s != nil {
		if s.Source != c.source.describe() {
			return fmt.Errorf("%w: it has a part of a copy of %s; continue that copy, or remove it", ErrNotEmpty, s.Source)
		}
		if s.Generation != generation {
			return changed(c.target)
		}
		done := slices.DeleteFunc(slices.Collect(maps.Values(s.tables)), func(p progress) bool { return !p.Done })
		c.say("continuing a copy that was interrupted: %d of %d tables are complete", len(done), len(tables))
		return nil
	}
	if err := refuseRows(ctx, c.target); err != nil {
		return err
	}
	c.state = &state{Source: c.source.describe(), Generation: generation, tables: map[string]progress{}}
	if err := c.target.begin(ctx, c.state); err != nil {
		return fmt.Errorf("begin the copy: %w", err)
	}
	return nil
}

func changed(target side) error {
	return fmt.Errorf("%w: remove the unfinished copy (%s) and begin again", ErrChanged, target.describe())
}

// refuseRowsOf returns an error with the number of rows that a query counts, unless it is 0.
func refuseRowsOf(ctx context.Context, source side, count, problem string) error {
	return source.query(ctx, count, nil, func(values []any) error {
		if n := values[0]; n != int64(0) {
			return fmt.Errorf("%d %s", n, problem)
		}
		return nil
	})
}

// refuseGrowingFiles returns an error if batches write results: gateways on PostgreSQL write them otherwise than one on
// SQLite.
func refuseGrowingFiles(ctx context.Context, source side) error {
	return refuseRowsOf(ctx, source, "SELECT count(*) FROM files WHERE sha256 IS NULL",
		"files of results are not complete: let the batches end, or cancel them, and stop the gateway then")
}

// refuseRows returns ErrNotEmpty, with the tables that have rows.
func refuseRows(ctx context.Context, target side) error {
	var found []string
	for _, name := range names() {
		err := target.query(ctx, "SELECT 1 FROM "+name+" LIMIT 1", nil, func([]any) error {
			found = append(found, name)
			return nil
		})
		if err != nil {
			return fmt.Errorf("read the target: %w", err)
		}
	}
	if len(found) > 0 {
		return fmt.Errorf("%w: %s has rows in %s", ErrNotEmpty, target.describe(), strings.Join(found, ", "))
	}
	return nil
}

// refuseChanges returns ErrChanged if a gateway or command has worked on the source since the copy began.
func (c *copier) refuseChanges(ctx context.Context) error {
	if err := c.source.refuseGateway(ctx); err != nil {
		return err
	}
	generation, err := c.source.generation(ctx)
	if err != nil {
		return fmt.Errorf("read the source: %w", err)
	}
	if generation != c.state.Generation {
		return changed(c.target)
	}
	return nil
}

// reportInterval is the time between two lines about a long table.
const reportInterval = 5 * time.Second

// copyTable copies what is left of a table.
func (c *copier) copyTable(ctx context.Context, t *table) error {
	p := c.state.tables[t.name]
	if p.Done {
		return nil
	}
	after, err := decodeKey(p.Last)
	if err != nil {
		return err
	}
	c.reported = time.Now()
	for !p.Done {
		rows, last, err := readPage(ctx, c.source, t, after)
		if err != nil {
			return err
		}
		p.add(t, rows)
		p.Done = len(rows) < t.page
		if len(rows) > 0 {
			after = last
			if p.Last, err = encodeKey(last); err != nil {
				return err
			}
		}
		if err := c.target.write(ctx, t, rows, p); err != nil {
			return fmt.Errorf("write %s: %w", t.into, err)
		}
		if time.Since(c.reported) >= reportInterval {
			c.reported = time.Now()
			c.say("%s: %d rows", t.name, p.Rows)
		}
	}
	c.state.tables[t.name] = p
	if p.Rows > 0 {
		c.say("%s: %d rows, complete", t.name, p.Rows)
	}
	return nil
}

// ErrDiffers is returned if the copy is not equal to its source.
var ErrDiffers = errors.New("the copy differs from its source")

// verify reads the target and compares it with what was read from the source. It returns the totals of the tables.
func (c *copier) verify(ctx context.Context) (map[string]progress, error) {
	want := map[string]progress{}
	for _, t := range tables {
		p := want[t.into]
		p.join(c.state.tables[t.name])
		want[t.into] = p
	}
	var differences []string
	for _, t := range targets() {
		c.reported = time.Now()
		got, err := c.total(ctx, &t)
		if err != nil {
			return nil, err
		}
		if w := want[t.name]; !got.equal(w) {
			differences = append(differences, fmt.Sprintf("%s has %d rows with %d tokens and the checksum %x, want %d, %d and %x",
				t.name, got.Rows, got.Tokens, got.Checksum, w.Rows, w.Tokens, w.Checksum))
		}
	}
	if len(differences) > 0 {
		return nil, fmt.Errorf("%w: %s", ErrDiffers, strings.Join(differences, "; "))
	}
	return want, nil
}

// total reads a whole table of the target.
func (c *copier) total(ctx context.Context, t *table) (p progress, err error) {
	var after []any
	for {
		rows, last, err := readPage(ctx, c.target, t, after)
		if err != nil {
			return p, err
		}
		p.add(t, rows)
		if len(rows) < t.page {
			return p, nil
		}
		after = last
		if time.Since(c.reported) >= reportInterval {
			c.reported = time.Now()
			c.say("%s: %d rows verified", t.name, p.Rows)
		}
	}
}

// encode and decode are the forms of the state in the target's table database_copy.
func encode(v any) (string, error) {
	encoded, err := json.Marshal(v)
	if err != nil {
		return "", fmt.Errorf("encode the state of the copy: %w", err)
	}
	return string(encoded), nil
}

// stateName is the name of the row of database_copy that holds the source; the others have the names of tables.
const stateName = ""

// decodeState decodes the rows of database_copy.
func decodeState(rows map[string]string) (*state, error) {
	s := &state{tables: map[string]progress{}}
	for name, encoded := range rows {
		var p progress
		var to any = &p
		if name == stateName {
			to = s
		}
		if err := json.Unmarshal([]byte(encoded), to); err != nil {
			return nil, fmt.Errorf("decode the state of the copy: %w", err)
		}
		if name != stateName {
			s.tables[name] = p
		}
	}
	return s, nil
}
