package usage

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"basegate/database"
)

// dimension is a column by which rows are grouped. It has the same name in requests and in usage_series.
type dimension struct {
	column string             // of a string; empty for times and user tags
	field  func(*Row) *string // nil for times
	time   *interval          // nil for strings
}

// interval is a part of time by which rows are grouped. Months are grouped by days, which are added up.
type interval struct {
	width int64
	start func(at time.Time) time.Time // of the interval that contains a time
}

var (
	keyDimension      = dimension{column: "key_id", field: func(r *Row) *string { return &r.KeyID }}
	accountDimension  = dimension{column: "account_id", field: func(r *Row) *string { return &r.AccountID }}
	modelDimension    = dimension{column: "model", field: func(r *Row) *string { return &r.Model }}
	workDimension     = dimension{column: "workload", field: func(r *Row) *string { return &r.Workload }}
	endpointDimension = dimension{column: "endpoint", field: func(r *Row) *string { return &r.Endpoint }}
	userDimension     = dimension{column: "user_tag", field: func(r *Row) *string { return &r.User }}
	runDimension      = dimension{column: "run", field: func(r *Row) *string { return &r.Run }}
	hourDimension     = dimension{time: &interval{hourMicros, func(at time.Time) time.Time { return at }}}
	dayDimension      = dimension{time: &interval{dayMicros, func(at time.Time) time.Time { return at }}}
	monthDimension    = dimension{time: &interval{dayMicros, func(at time.Time) time.Time { return at.AddDate(0, 0, 1-at.Day()) }}}
)

// bySeries has all that the requests of a series have in common.
var bySeries = []dimension{keyDimension, accountDimension, modelDimension, workDimension, endpointDimension, runDimension}

var groupings = map[Grouping][]dimension{
	ByKey:      {keyDimension, accountDimension},
	ByAccount:  {accountDimension},
	ByModel:    {modelDimension},
	ByWorkload: {workDimension},
	ByUser:     {userDimension},
	ByDay:      {dayDimension},
	ByHour:     {hourDimension},
	ByMonth:    {monthDimension},
	ByEndpoint: {endpointDimension},
	ByRun:      {runDimension, accountDimension}, // an account's runs are its own
}

// dimensionsOf returns the dimensions of a Grouping, which may be one that Over returns.
func dimensionsOf(by Grouping) ([]dimension, error) {
	if all, ok := groupings[by]; ok {
		return all, nil
	}
	over, other, _ := strings.Cut(string(by), "-")
	first, second := groupings[Grouping(over)], groupings[Grouping(other)]
	if first == nil || second == nil || first[0].time == nil || second[0].time != nil || Grouping(other) == ByUser {
		return nil, fmt.Errorf("unknown grouping %q", by)
	}
	return slices.Concat(first, second), nil
}

// inOrder compares the newest first, or those without a time by their tokens, and then by their names.
func inOrder(a, b *Row) int {
	byTokens := 0
	if a.Time.IsZero() {
		byTokens = cmp.Compare(b.Tokens(), a.Tokens())
	}
	return cmp.Or(
		b.Time.Compare(a.Time), byTokens,
		cmp.Compare(a.KeyID, b.KeyID), cmp.Compare(a.AccountID, b.AccountID), cmp.Compare(a.Model, b.Model),
		cmp.Compare(a.Workload, b.Workload), cmp.Compare(a.Endpoint, b.Endpoint), cmp.Compare(a.User, b.User),
		cmp.Compare(a.Run, b.Run),
	)
}

// groupKey identifies a group.
type groupKey struct {
	time                                               int64
	key, account, model, workload, endpoint, user, run string
}

func (r *Row) groupKey() groupKey {
	k := groupKey{key: r.KeyID, account: r.AccountID, model: r.Model, workload: r.Workload, endpoint: r.Endpoint, user: r.User, run: r.Run}
	if !r.Time.IsZero() {
		k.time = r.Time.UnixMicro()
	}
	return k
}

// groupSum collects the groups of one grouping from the segments of a range.
type groupSum struct {
	dimensions []dimension
	filter     *Filter
	rows       map[groupKey]*Row
	visit      func(*Row) // is called with parts of the groups, each with its sums: add
}

func newGroupSum(dimensions []dimension, f *Filter) *groupSum {
	g := &groupSum{dimensions: dimensions, filter: f, rows: map[groupKey]*Row{}}
	g.visit = g.add
	return g
}

func (g *groupSum) byUser() bool { return g.dimensions[0].column == userDimension.column }

// levels returns the rollups that have what the filter selects, none if only the rows have it. Latencies have only those of
// days.
func (g *groupSum) levels() []*level {
	hourly := g.dimensions[0].time == hourDimension.time
	switch {
	case g.filter.Failed || g.filter.Search != "":
		return nil
	case g.byUser() && g.filter.Model == "" && g.filter.Run == "" && !g.filter.Latency:
		return []*level{tagMonths, tagDays}
	case g.byUser(), hourly && g.filter.Latency:
		return nil
	case hourly:
		return []*level{hours}
	case g.filter.Latency:
		return []*level{days}
	}
	return []*level{days, hours}
}

// read adds all requests that the filter selects.
func (g *groupSum) read(ctx context.Context, from source, now state) error {
	since, until := g.filter.bounds()
	levels := g.levels()
	if len(levels) == 0 {
		return g.readRows(ctx, from, rowRange{from: since, to: until, at: now.at})
	}
	for _, s := range split(since, until, levels...) {
		var err error
		switch {
		case now.watermark == 0: // the rollups include nothing
		case s.level == nil:
			err = g.readRows(ctx, from, rowRange{from: s.from, to: s.to, upTo: now.watermark})
		case g.byUser():
			err = g.readTags(ctx, from, s)
		default:
			err = g.readSeries(ctx, from, s)
		}
		if err != nil {
			return err
		}
	}
	if now.watermark >= now.at.last {
		return nil
	}
	return g.readRows(ctx, from, rowRange{from: since, to: until, above: now.watermark, at: now.at})
}

// bySeriesOnly reports whether the groups are sums of series, whatever the times are.
func (g *groupSum) bySeriesOnly() bool {
	return !g.byUser() && !slices.ContainsFunc(g.dimensions, func(d dimension) bool { return d.time != nil })
}

// fold adds groups by series.
func (g *groupSum) fold(series *groupSum) {
	for _, from := range series.rows {
		r := *from
		r.KeyID, r.AccountID, r.Model, r.Workload, r.Endpoint, r.Run = "", "", "", "", "", ""
		for _, d := range g.dimensions {
			*d.field(&r) = *d.field(from)
		}
		g.add(&r)
	}
}

// readSeries adds rollups of series.
func (g *groupSum) readSeries(ctx context.Context, from source, s segment) error {
	if err := g.scan(ctx, from, g.seriesQuery(s.level, s, counts, summed)); err != nil || !g.filter.Latency {
		return err
	}
	// A row for each symbol would take several times as long.
	return g.scanLists(ctx, from, g.seriesQuery(latencies, s, `counts`, from.join+` AS counts`))
}

// seriesQuery returns the query for columns of a table of rollups of series, which are aggregated for each group. Grouping by
// numbers is faster, so a group has the lowest number of its series, by which its names are read afterwards. Without CROSS
// JOIN, SQLite would scan the whole table of rollups.
func (g *groupSum) seriesQuery(l *level, s segment, columns, aggregates string) *statement {
	var names []string
	period, by := `0`, `s.lowest`
	selected := g.columns(func(d dimension) string {
		if d.time == nil {
			names = append(names, `s.`+d.column)
			return `n.` + d.column
		}
		period = fmt.Sprintf(`u.period / %d`, d.time.width/l.width)
		by += `, ` + period
		return `u.period`
	})
	partition := ``
	if len(names) > 0 {
		partition = `PARTITION BY ` + strings.Join(names, `, `)
	}
	q := new(statement)
	q.add(`SELECT ` + selected + `, ` + columns + `
		FROM (SELECT s.lowest, ` + period + ` AS period, ` + aggregates + `
			FROM (SELECT s.id, min(s.id) OVER (` + partition + `) AS lowest FROM usage_series s WHERE true`)
	q.addFilter(g.filter, "s.")
	q.addParam(`) s CROSS JOIN `+l.table+` u WHERE u.series = s.id AND u.period >= `, s.from)
	q.addParam(` AND u.period < `, s.to)
	q.add(` GROUP BY ` + by + `) u JOIN usage_series n ON n.id = u.lowest`)
	return q
}

// readTags adds rollups of user tags, whose names are read afterwards too.
func (g *groupSum) readTags(ctx context.Context, from source, s segment) error {
	q := new(statement)
	q.addParam(`SELECT coalesce(t.tag, `, OtherTags)
	q.add(`), ` + counts + ` FROM (SELECT u.tag, ` + summed + ` FROM `)
	if g.filter.Account == "" && g.filter.Key == "" {
		q.addParam(s.level.table+` u WHERE u.key = `, allKeys)
	} else {
		q.add(`usage_keys k CROSS JOIN ` + s.level.table + ` u WHERE u.key = k.id`)
		q.addFilter(g.filter, "k.")
	}
	q.addParam(` AND u.period >= `, s.from)
	q.addParam(` AND u.period < `, s.to)
	q.add(` GROUP BY u.tag) u LEFT JOIN usage_tags t ON t.id = u.tag`)
	return g.scan(ctx, from, q)
}

// rowRange selects rows by time, number and mark.
type rowRange struct {
	from, to    int64 // times; to is excluded
	above, upTo int64 // numbers; 0 is no limit
	at          mark
}

// fewRows is the number of rows up to which all rows after the watermark are read, without an index on what the filter
// selects. SQLite would choose the index if it could, because it does not know how many rows there are.
const fewRows = 50_000

// readRows adds rows of requests.
func (g *groupSum) readRows(ctx context.Context, from source, r rowRange) error {
	var q statement // from where they are read
	q.add(` FROM requests`)
	if r.above > 0 && r.at.last-r.above <= fewRows {
		q.add(from.noIndex)
	}
	q.add(` WHERE true`)
	q.addMark(from.dialect, r.at)
	if r.above > 0 {
		q.addCondition(from.above, r.above)
	}
	if r.upTo > 0 {
		q.addCondition(from.upTo, r.upTo)
	}
	within := *g.filter
	within.Since, within.Until = time.UnixMicro(r.from), time.UnixMicro(r.to)
	q.addRowFilter(&within)
	columns := g.columns(func(d dimension) string {
		if d.time != nil {
			return fmt.Sprintf(`time / %d`, d.time.width)
		}
		return d.column
	})
	selected := q.with(`SELECT ` + columns + `, ` + counted(`1`) + q.text.String() + ` GROUP BY ` + positions(len(g.dimensions)))
	if err := g.scan(ctx, from, selected); err != nil || !g.filter.Latency {
		return err
	}
	return g.scanSymbols(ctx, from, q.with(selectSymbols(columns, len(g.dimensions), `1`, q.text.String())))
}

// columns returns the list of the dimensions' columns.
func (g *groupSum) columns(of func(dimension) string) string {
	all := make([]string, len(g.dimensions))
	for i, d := range g.dimensions {
		all[i] = of(d)
	}
	return strings.Join(all, ", ")
}

// each calls do for every row of a query, after its dimensions are scanned to r, and the other columns to targets.
func (g *groupSum) each(ctx context.Context, from source, q *statement, r *Row, do func() error, targets ...any) error {
	var (
		all     []any
		number  int64 // of the interval
		divided *interval
	)
	for _, d := range g.dimensions {
		if d.time != nil {
			divided = d.time
			all = append(all, &number)
		} else {
			all = append(all, d.field(r))
		}
	}
	all = append(all, targets...)
	return q.each(ctx, from, func(rows *sql.Rows) error {
		if err := rows.Scan(all...); err != nil {
			return err
		}
		if divided != nil {
			r.Time = divided.start(time.UnixMicro(number * divided.width).UTC())
		}
		return do()
	})
}

// scan adds the sums that a query returns.
func (g *groupSum) scan(ctx context.Context, from source, q *statement) error {
	var r Row
	add := func() error { g.visit(&r); return nil }
	return g.each(ctx, from, q, &r, add, &r.Requests, &r.Errors, &r.Streams, &r.PromptTokens, &r.CompletionTokens,
		&r.SavedTokens, &r.CachedTokens, &r.KnownTokens)
}

// scanLists adds the lists of latencies that a query returns.
func (g *groupSum) scanLists(ctx context.Context, from source, q *statement) error {
	var (
		r    Row
		list sql.RawBytes
	)
	return g.each(ctx, from, q, &r, func() error { return g.group(&r).Latency.addList(list) }, &list)
}

// scanSymbols adds the numbers of symbols that a query returns.
func (g *groupSum) scanSymbols(ctx context.Context, from source, q *statement) error {
	var (
		r      Row
		symbol int
		n      int64
	)
	add := func() error { g.group(&r).Latency.add(symbol, n); return nil }
	return g.each(ctx, from, q, &r, add, &symbol, &n)
}

func (g *groupSum) group(r *Row) *Row {
	key := r.groupKey()
	if g.rows[key] == nil {
		group := *r
		group.Requests, group.Errors, group.Streams, group.PromptTokens, group.CompletionTokens = 0, 0, 0, 0, 0
		group.SavedTokens, group.CachedTokens, group.KnownTokens = 0, 0, 0
		if g.filter.Latency {
			group.Latency = new(Latency)
		}
		g.rows[key] = &group
	}
	return g.rows[key]
}

func (g *groupSum) add(r *Row) { g.group(r).Add(r) }

// Add adds the sums of another row.
func (r *Row) Add(other *Row) {
	r.Requests += other.Requests
	r.Errors += other.Errors
	r.Streams += other.Streams
	r.PromptTokens += other.PromptTokens
	r.CompletionTokens += other.CompletionTokens
	r.SavedTokens += other.SavedTokens
	r.CachedTokens += other.CachedTokens
	r.KnownTokens += other.KnownTokens
	if other.Latency != nil {
		r.Latency = cmp.Or(r.Latency, new(Latency))
		r.Latency.Merge(other.Latency)
	}
}

// Tokens returns those of prompts and completions.
func (r *Row) Tokens() int64 { return r.PromptTokens + r.CompletionTokens }

// sorted returns the groups in order, up to Filter.Limit.
func (g *groupSum) sorted() []Row {
	all := make([]*Row, 0, len(g.rows))
	for _, r := range g.rows {
		if r.Requests != 0 { // a correction may have left an empty rollup
			all = append(all, r)
		}
	}
	slices.SortFunc(all, inOrder)
	if g.filter.Limit > 0 && len(all) > g.filter.Limit {
		all = all[:g.filter.Limit]
	}
	sorted := make([]Row, len(all))
	for i, r := range all {
		sorted[i] = *r
	}
	return sorted
}

// Groups returns the usage that a filter selects in each of several groupings, all of the same requests. ByRequest is not one
// of them.
func (s *Store) Groups(ctx context.Context, f Filter, by ...Grouping) ([][]Row, error) {
	all := make([][]Row, len(by))
	err := s.report(ctx, f.Reader, cmp.Or(f.Wait, reportWait), func(ctx context.Context, from source) error {
		now, err := from.freezeRollups(ctx)
		if err != nil {
			return err
		}
		sums := make([]*groupSum, len(by))
		for i, one := range by {
			dimensions, err := dimensionsOf(one)
			if err != nil {
				return err
			}
			sums[i] = newGroupSum(dimensions, &f)
		}
		if err := readGroups(ctx, from, now, sums); err != nil {
			return err
		}
		for i, sum := range sums {
			all[i] = sum.sorted()
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read usage: %w", err)
	}
	return all, nil
}

// readGroups adds all requests that the filter selects to several groupings. Those that are sums of series are read once.
func readGroups(ctx context.Context, from source, now state, all []*groupSum) error {
	isSum := (*groupSum).bySeriesOnly
	if i := slices.IndexFunc(all, isSum); i >= 0 && slices.ContainsFunc(all[i+1:], isSum) {
		series := newGroupSum(bySeries, all[0].filter)
		if err := series.read(ctx, from, now); err != nil {
			return err
		}
		for _, g := range all {
			if g.bySeriesOnly() {
				g.fold(series)
			}
		}
		all = slices.DeleteFunc(slices.Clone(all), isSum)
	}
	for _, g := range all {
		if err := g.read(ctx, from, now); err != nil {
			return err
		}
	}
	return nil
}

// KeyDays calls each with parts of the usage of every key and day in a range of whole days, which add up to the usage of
// all requests that have ended. It reads without the limits of a report: the rollups have few rows for each key and day.
func KeyDays(ctx context.Context, db *database.DB, since, until time.Time, each func(*Row)) error {
	return readKeys(ctx, db, []dimension{dayDimension, keyDimension, accountDimension}, &Filter{Since: since, Until: until}, each)
}

// KeyTotals is KeyDays for all time, without days.
func KeyTotals(ctx context.Context, db *database.DB, each func(*Row)) error {
	return readKeys(ctx, db, []dimension{keyDimension, accountDimension}, &Filter{}, each)
}

func readKeys(ctx context.Context, db *database.DB, dimensions []dimension, f *Filter, each func(*Row)) error {
	g := newGroupSum(dimensions, f)
	g.visit = each
	if err := inSnapshot(ctx, db, func(from source, now state) error { return g.read(ctx, from, now) }); err != nil {
		return fmt.Errorf("read usage by key: %w", err)
	}
	return nil
}
