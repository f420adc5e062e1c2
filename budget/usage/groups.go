package usage

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// dimension is a column by which rows are grouped, in each of the tables in which it is found.
type dimension struct {
	row    string // expression on requests
	series string // on usage_series or, for times, a table of rollups u
	scan   func(*Row) any
}

// field returns what a string of the dimension is in a row; nil if it is no string.
func (d dimension) field(r *Row) *string {
	field, _ := d.scan(r).(*string)
	return field
}

var (
	keyDimension      = dimension{"key_id", "key_id", func(r *Row) any { return &r.KeyID }}
	accountDimension  = dimension{"account_id", "account_id", func(r *Row) any { return &r.AccountID }}
	modelDimension    = dimension{"model", "model", func(r *Row) any { return &r.Model }}
	workDimension     = dimension{"workload", "workload", func(r *Row) any { return &r.Workload }}
	userDimension     = dimension{"user_tag", "", func(r *Row) any { return &r.User }}
	endpointDimension = dimension{"endpoint", "endpoint", func(r *Row) any { return &r.Endpoint }}
	monthDimension    = dimension{fmt.Sprintf("time / %d", dayMicros), "u.period / ", func(r *Row) any { return (*monthScanner)(&r.Time) }}
	dayDimension      = dimension{fmt.Sprintf("time / %d", dayMicros), "u.period / ", func(r *Row) any { return (*dayScanner)(&r.Time) }}
	hourDimension     = dimension{fmt.Sprintf("time / %d", hourMicros), "u.period", func(r *Row) any { return (*hourScanner)(&r.Time) }}
)

// hourScanner scans a number of hours since the epoch.
type hourScanner time.Time

// Scan implements sql.Scanner.
func (h *hourScanner) Scan(value any) error {
	hour, ok := value.(int64)
	if !ok {
		return fmt.Errorf("an hour is a %T", value)
	}
	*h = hourScanner(time.UnixMicro(hour * hourMicros).UTC())
	return nil
}

// dayScanner scans a number of days since the epoch.
type dayScanner time.Time

// Scan implements sql.Scanner.
func (d *dayScanner) Scan(value any) error {
	day, ok := value.(int64)
	if !ok {
		return fmt.Errorf("a day is a %T", value)
	}
	*d = dayScanner(time.UnixMicro(day * dayMicros).UTC())
	return nil
}

// monthScanner scans a number of days since the epoch as the start of their month, so that the days of a month are added
// up.
type monthScanner time.Time

// Scan implements sql.Scanner.
func (m *monthScanner) Scan(value any) error {
	if err := (*dayScanner)(m).Scan(value); err != nil {
		return err
	}
	year, month, _ := time.Time(*m).Date()
	*m = monthScanner(time.Date(year, month, 1, 0, 0, 0, 0, time.UTC))
	return nil
}

// grouping has the dimensions of a Grouping and the order of its groups.
type grouping struct {
	dimensions []dimension
	compare    func(a, b *Row) int
}

// bySeries has all that the requests of a series have in common.
var bySeries = grouping{dimensions: []dimension{keyDimension, accountDimension, modelDimension, workDimension, endpointDimension}}

var groupings = map[Grouping]grouping{
	ByKey:      {[]dimension{keyDimension, accountDimension}, mostTokensFirst},
	ByAccount:  {[]dimension{accountDimension}, mostTokensFirst},
	ByModel:    {[]dimension{modelDimension}, mostTokensFirst},
	ByWorkload: {[]dimension{workDimension}, mostTokensFirst},
	ByUser:     {[]dimension{userDimension}, mostTokensFirst},
	ByDay:      {[]dimension{dayDimension}, newestFirst},
	ByHour:     {[]dimension{hourDimension}, newestFirst},
	ByMonth:    {[]dimension{monthDimension}, newestFirst},
	ByEndpoint: {[]dimension{endpointDimension}, mostTokensFirst},
}

// findGrouping returns the dimensions of a Grouping, which may be one that Over returns.
func findGrouping(by Grouping) (g grouping, interval Grouping, err error) {
	if g, ok := groupings[by]; ok {
		return g, by, nil
	}
	over, other, _ := strings.Cut(string(by), "-")
	interval = Grouping(over)
	first, ok := groupings[interval]
	second, known := groupings[Grouping(other)]
	switch {
	case !ok || !known, interval != ByHour && interval != ByDay && interval != ByMonth,
		Grouping(other) == ByUser, second.dimensions[0].series == dayDimension.series, Grouping(other) == ByHour:
		return grouping{}, "", fmt.Errorf("unknown grouping %q", by)
	}
	return grouping{slices.Concat(first.dimensions, second.dimensions), newestFirst}, interval, nil
}

// mostTokensFirst orders groups by their tokens, and then by their names.
func mostTokensFirst(a, b *Row) int {
	return cmp.Or(cmp.Compare(b.PromptTokens+b.CompletionTokens, a.PromptTokens+a.CompletionTokens), byName(a, b))
}

func newestFirst(a, b *Row) int { return cmp.Or(b.Time.Compare(a.Time), byName(a, b)) }

func byName(a, b *Row) int {
	return cmp.Or(
		cmp.Compare(a.KeyID, b.KeyID), cmp.Compare(a.AccountID, b.AccountID), cmp.Compare(a.Model, b.Model),
		cmp.Compare(a.Workload, b.Workload), cmp.Compare(a.Endpoint, b.Endpoint), cmp.Compare(a.User, b.User),
	)
}

// groupKey identifies a group.
type groupKey struct {
	time                                          int64
	key, account, model, workload, endpoint, user string
}

func (r *Row) groupKey() groupKey {
	k := groupKey{key: r.KeyID, account: r.AccountID, model: r.Model, workload: r.Workload, endpoint: r.Endpoint, user: r.User}
	if !r.Time.IsZero() {
		k.time = r.Time.UnixMicro()
	}
	return k
}

// groupSum collects the groups of one grouping from the segments of a range.
type groupSum struct {
	grouping
	filter *Filter
	rows   map[groupKey]*Row
	users  bool // grouped by user tag
	hourly bool // grouped by hour
	series bool // grouped by series
}

func newGroupSum(by Grouping, f *Filter) (*groupSum, error) {
	g, interval, err := findGrouping(by)
	if err != nil {
		return nil, err
	}
	return &groupSum{grouping: g, filter: f, rows: map[groupKey]*Row{}, users: by == ByUser, hourly: interval == ByHour}, nil
}

// levels returns the rollups that have what the filter selects, none if only the rows have it.
func (g *groupSum) levels() []*level {
	switch {
	case g.filter.Failed || g.filter.Search != "":
		return nil
	case g.hourly:
		return []*level{hours}
	case !g.users:
		return []*level{days, hours}
	case g.filter.Model == "" && !g.filter.Latency:
		return []*level{tagMonths, tagDays}
	}
	return nil
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
		case now.seq == 0: // the rollups include nothing
		case s.level == nil:
			err = g.readRows(ctx, from, rowRange{from: s.from, to: s.to, upTo: now.seq})
		case g.users:
			err = g.readTags(ctx, from, s)
		default:
			err = g.readSeries(ctx, from, s)
		}
		if err != nil {
			return err
		}
	}
	if now.seq >= now.at.last {
		return nil
	}
	return g.readRows(ctx, from, rowRange{from: since, to: until, above: now.seq, at: now.at})
}

// coarser reports whether the groups are sums of series, whatever the times are.
func (g *groupSum) coarser() bool {
	return !g.users && !slices.ContainsFunc(g.dimensions, func(d dimension) bool { return d.field(&Row{}) == nil })
}

// fold adds groups by series.
func (g *groupSum) fold(series *groupSum) {
	for _, from := range series.rows {
		r := *from
		r.KeyID, r.AccountID, r.Model, r.Workload, r.Endpoint = "", "", "", "", ""
		for _, d := range g.dimensions {
			*d.field(&r) = *d.field(from)
		}
		if sum := g.add(&r); g.filter.Latency {
			sum.Latency.Merge(from.Latency)
		}
	}
}

// sums are the columns that every table of rollups has. summed are those of a subquery with them.
const (
	sums = `sum(u.requests) AS requests, sum(u.errors) AS errors, sum(u.streams) AS streams,
		sum(u.prompt_tokens) AS prompt_tokens, sum(u.completion_tokens) AS completion_tokens`
	summed = `, u.requests, u.errors, u.streams, u.prompt_tokens, u.completion_tokens`
)

// readSeries adds rollups of series. Grouping by numbers is faster, so a group has the lowest number of its series, by which
// its names are read afterwards. Without CROSS JOIN, SQLite would scan the whole table of rollups.
func (g *groupSum) readSeries(ctx context.Context, from source, s segment) error {
	var names []string
	period, by := `0`, `s.lowest`
	columns := g.columns(func(d dimension) string {
		if d.field(&Row{}) != nil {
			names = append(names, `s.`+d.series)
			return `n.` + d.series
		}
		if period = d.series; period == dayDimension.series {
			period += strconv.FormatInt(s.level.perDay, 10)
		}
		by += `, ` + period
		return `u.period`
	})
	partition := ``
	switch {
	case g.series:
		partition = `PARTITION BY s.id`
	case len(names) > 0:
		partition = `PARTITION BY ` + strings.Join(names, `, `)
	}
	latencies, joined := ``, ``
	if g.filter.Latency { // a row for each rollup would take several times as long
		latencies, joined = `, u.rollups, u.latencies`, `, count(*) AS rollups, `+from.joined+` AS latencies`
	}
	var q statement
	q.add(`SELECT ` + columns + summed + latencies + `
		FROM (SELECT s.lowest, ` + period + ` AS period, ` + sums + joined + `
			FROM (SELECT s.id, min(s.id) OVER (` + partition + `) AS lowest FROM usage_series s WHERE true`)
	q.addFilter(g.filter, "s.")
	q.addParam(`) s CROSS JOIN `+s.level.table+` u WHERE u.series = s.id AND u.period >= `, s.from)
	q.addParam(` AND u.period < `, s.to)
	q.add(` GROUP BY ` + by + `) u JOIN usage_series n ON n.id = u.lowest`)
	return g.scan(ctx, from, &q, g.filter.Latency)
}

// readTags adds rollups of user tags, whose names are read afterwards too.
func (g *groupSum) readTags(ctx context.Context, from source, s segment) error {
	var q statement
	q.add(`SELECT coalesce(t.tag, `)
	q.addParam(``, OtherTags)
	q.add(`)` + summed + ` FROM (SELECT u.tag, ` + sums + ` FROM `)
	if g.filter.Account == "" && g.filter.Key == "" {
		q.add(s.level.sums + ` u WHERE true`)
	} else {
		q.add(`usage_keys k CROSS JOIN ` + s.level.table + ` u WHERE u.key = k.id`)
		q.addFilter(g.filter, "k.")
	}
	q.addParam(` AND u.period >= `, s.from)
	q.addParam(` AND u.period < `, s.to)
	q.add(` GROUP BY u.tag) u LEFT JOIN usage_tags t ON t.id = u.tag`)
	return g.scan(ctx, from, &q, false)
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
	var q statement
	columns := g.columns(func(d dimension) string { return d.row })
	q.add(`SELECT ` + columns)
	if g.filter.Latency {
		q.add(`, 1, CASE WHEN ` + failedCondition + ` THEN 1 ELSE 0 END, CASE WHEN stream THEN 1 ELSE 0 END,
			prompt_tokens, completion_tokens, queue_us, first_token_us, total_us`)
	} else {
		q.add(`, count(*), count(*) FILTER (WHERE ` + failedCondition + `), count(*) FILTER (WHERE stream),
			sum(prompt_tokens), sum(completion_tokens)`)
	}
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
	if !g.filter.Latency {
		q.add(` GROUP BY ` + columns)
		return g.scan(ctx, from, &q, false)
	}
	return g.scanLatencies(ctx, from, &q)
}

// columns returns the list of the dimensions' columns.
func (g *groupSum) columns(of func(dimension) string) string {
	all := make([]string, len(g.dimensions))
	for i, d := range g.dimensions {
		all[i] = of(d)
	}
	return strings.Join(all, ", ")
}

// targets returns where the dimensions and sums of a row are scanned to.
func (g *groupSum) targets(r *Row) []any {
	var all []any
	for _, d := range g.dimensions {
		all = append(all, d.scan(r))
	}
	return append(all, &r.Requests, &r.Errors, &r.Streams, &r.PromptTokens, &r.CompletionTokens)
}

// scan adds the groups that a query returns, with the encoded latencies of their rollups if there are any.
func (g *groupSum) scan(ctx context.Context, from source, q *statement, latency bool) error {
	found, err := q.query(ctx, from) //nolint:sqlclosecheck // each closes it
	if err != nil {
		return err
	}
	var (
		r       Row
		rollups int64
		encoded sql.RawBytes
		buckets latencyBuckets
	)
	targets := g.targets(&r)
	if latency {
		targets = append(targets, &rollups, &encoded)
	}
	return each(found, func() error {
		if err := found.Scan(targets...); err != nil {
			return err
		}
		sum := g.add(&r)
		if !latency {
			return nil
		}
		return buckets.merge(sum.Latency, encoded, rollups)
	})
}

// scanLatencies adds the rows that a query returns.
func (g *groupSum) scanLatencies(ctx context.Context, from source, q *statement) error {
	found, err := q.query(ctx, from) //nolint:sqlclosecheck // each closes it
	if err != nil {
		return err
	}
	var (
		r                  Row
		queue, first, last int64
	)
	targets := append(g.targets(&r), &queue, &first, &last)
	return each(found, func() error {
		if err := found.Scan(targets...); err != nil {
			return err
		}
		sum := g.add(&r)
		if r.Errors == 0 {
			sum.Latency.record(queue, first, last, 1)
		}
		return nil
	})
}

// add adds the sums of a row to its group.
func (g *groupSum) add(r *Row) *Row {
	key := r.groupKey()
	sum := g.rows[key]
	if sum == nil {
		group := *r
		group.Requests, group.Errors, group.Streams, group.PromptTokens, group.CompletionTokens = 0, 0, 0, 0, 0
		if g.filter.Latency {
			group.Latency = new(Latency)
		}
		sum = &group
		g.rows[key] = sum
	}
	sum.Requests += r.Requests
	sum.Errors += r.Errors
	sum.Streams += r.Streams
	sum.PromptTokens += r.PromptTokens
	sum.CompletionTokens += r.CompletionTokens
	return sum
}

// sorted returns the groups in order, up to Filter.Limit.
func (g *groupSum) sorted() []Row {
	all := make([]*Row, 0, len(g.rows))
	for _, r := range g.rows {
		if r.Requests != 0 { // a correction may have left an empty rollup
			all = append(all, r)
		}
	}
	slices.SortFunc(all, g.compare)
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
	err := s.report(ctx, f.Reader, reportWait, func(ctx context.Context, from source) error {
		now, err := from.freezeRollups(ctx)
		if err != nil {
			return err
		}
		sums := make([]*groupSum, len(by))
		for i, one := range by {
			if sums[i], err = newGroupSum(one, &f); err != nil {
				return err
			}
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
	var coarser []*groupSum
	for _, g := range all {
		if g.coarser() {
			coarser = append(coarser, g)
		}
	}
	if len(coarser) > 1 {
		series := &groupSum{grouping: bySeries, filter: all[0].filter, rows: map[groupKey]*Row{}, series: true}
		if err := series.read(ctx, from, now); err != nil {
			return err
		}
		for _, g := range coarser {
			g.fold(series)
		}
		all = slices.DeleteFunc(slices.Clone(all), func(g *groupSum) bool { return slices.Contains(coarser, g) })
	}
	for _, g := range all {
		if err := g.read(ctx, from, now); err != nil {
			return err
		}
	}
	return nil
}
