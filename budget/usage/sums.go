package usage

import (
	"context"
	"fmt"
	"strings"

	"basegate/database"
)

// failedCondition is true for the rows of requests that count as errors. The index requests_failed has exactly these.
const failedCondition = `(code <> '' OR state = 'interrupted')`

const (
	// counts are the sums that each rollup has. summed are those of rollups or rows u.
	counts = `requests, errors, streams, prompt_tokens, completion_tokens, saved_tokens, cached_tokens, known_tokens`
	summed = `sum(u.requests) AS requests, sum(u.errors) AS errors, sum(u.streams) AS streams,
		sum(u.prompt_tokens) AS prompt_tokens, sum(u.completion_tokens) AS completion_tokens, sum(u.saved_tokens) AS saved_tokens,
		sum(u.cached_tokens) AS cached_tokens, sum(u.known_tokens) AS known_tokens`

	// addCounts adds the sums of a row that is inserted to those of the rollup u.
	addCounts = ` DO UPDATE SET requests = u.requests + excluded.requests, errors = u.errors + excluded.errors,
		streams = u.streams + excluded.streams, prompt_tokens = u.prompt_tokens + excluded.prompt_tokens,
		completion_tokens = u.completion_tokens + excluded.completion_tokens, saved_tokens = u.saved_tokens + excluded.saved_tokens,
		cached_tokens = u.cached_tokens + excluded.cached_tokens, known_tokens = u.known_tokens + excluded.known_tokens`

	seriesColumns = `account_id, key_id, model, endpoint, workload, run`
	sameSeries    = `(s.account_id, s.key_id, s.model, s.endpoint, s.workload, s.run)
		= (r.account_id, r.key_id, r.model, r.endpoint, r.workload, r.run)`

	// seriesRun is the run of the series of a row r. Its series is one that nameSeries has found or inserted.
	seriesRun = `CASE WHEN r.run = '' OR EXISTS (SELECT 1 FROM usage_series s WHERE ` + sameSeries + `) THEN r.run ELSE '` + OtherRuns + `' END`
	itsSeries = `(s.account_id, s.key_id, s.model, s.endpoint, s.workload) = (r.account_id, r.key_id, r.model, r.endpoint, r.workload)
		AND s.run = ` + seriesRun + ``

	weight = `CAST($3 AS BIGINT)` // of rows that are added: 1, or -1 to take them out
)

// counted returns the sums of rows of requests, multiplied by a weight.
func counted(weight string) string {
	return strings.ReplaceAll(`W * count(*) AS requests, W * count(*) FILTER (WHERE `+failedCondition+`) AS errors,
		W * count(*) FILTER (WHERE stream) AS streams, W * sum(prompt_tokens) AS prompt_tokens,
		W * sum(completion_tokens) AS completion_tokens, W * sum(saved_tokens) AS saved_tokens,
		W * sum(coalesce(cached_tokens, 0)) AS cached_tokens,
		W * sum(CASE WHEN cached_tokens IS NULL THEN 0 ELSE prompt_tokens END) AS known_tokens`, `W `, weight+` `)
}

// maxNamedTags limits the user tags of a key that have rollups of their own, in each period.
var maxNamedTags int64 = 10_000

// maxSeries limits the series of a key: clients choose the names of runs, so there may be as many as requests.
var maxSeries int64 = 10_000

// otherTags is the number that stands for the tags without rollups of their own, and allKeys for the sum over all keys.
const (
	otherTags = 0
	allKeys   = 0
)

// addRows adds the rows of requests whose numbers are above one and up to another to the rollups, or takes them out if the
// weight is -1. The caller has locked the rollups.
func (d *dialect) addRows(ctx context.Context, tx database.Tx, above, upTo, weight int64) error {
	for _, text := range d.nameSeries() {
		if _, err := tx.ExecContext(ctx, text, above, upTo); err != nil {
			return fmt.Errorf("number series: %w", err)
		}
	}
	statements := []string{d.addSeries(hours), d.addSeries(days), d.addLatencies(), d.nameTags(), d.addTags(tagDays), d.addTags(tagMonths)}
	for _, text := range statements {
		if _, err := tx.ExecContext(ctx, text, above, upTo, weight); err != nil {
			return fmt.Errorf("add rows: %w", err)
		}
	}
	return nil
}

// added is the condition for the rows that are added.
func (d *dialect) added() string { return fmt.Sprintf(d.above+` AND `+d.upTo, `$1`, `$2`) }

// nameSeries returns the statements that give numbers to series and keys.
func (d *dialect) nameSeries() []string {
	return []string{
		`INSERT INTO usage_series (` + seriesColumns + `)
			WITH added AS (
				SELECT DISTINCT ` + seriesColumns + ` FROM requests r
				WHERE ` + d.added() + ` AND NOT EXISTS (SELECT 1 FROM usage_series s WHERE ` + sameSeries + `)
			), filled AS (
				SELECT account_id, key_id FROM (SELECT DISTINCT account_id, key_id FROM added WHERE run <> '') a
				WHERE (SELECT count(*) FROM usage_series s WHERE s.account_id = a.account_id AND s.key_id = a.key_id) >= ` + fmt.Sprint(maxSeries) + `
			)
			SELECT DISTINCT account_id, key_id, model, endpoint, workload, CASE
				WHEN run <> '' AND EXISTS (SELECT 1 FROM filled f WHERE f.account_id = a.account_id AND f.key_id = a.key_id)
				THEN '` + OtherRuns + `' ELSE run END
			FROM added a WHERE true ON CONFLICT DO NOTHING`,
		`INSERT INTO usage_keys (account_id, key_id)
			SELECT DISTINCT account_id, key_id FROM requests r
			WHERE ` + d.added() + ` AND NOT EXISTS (SELECT 1 FROM usage_keys k WHERE k.account_id = r.account_id AND k.key_id = r.key_id)`,
	}
}

// addSeries returns the statement that adds rows to the rollups of series of one level. Without CROSS JOIN, SQLite would look
// for the rows of each series.
func (d *dialect) addSeries(l *level) string {
	return `INSERT INTO ` + l.table + ` AS u (series, period, ` + counts + `)
		SELECT s.id, ` + l.column(d) + `, ` + counted(weight) + `
		FROM requests r CROSS JOIN usage_series s WHERE ` + d.added() + ` AND ` + itsSeries + ` GROUP BY 1, 2
		ON CONFLICT (series, period)` + addCounts
}

// longList is the length above which the integers of a list of latencies are added up. In shorter ones a symbol may occur
// several times, because splitting a list takes longer than all else.
const longList = 1000

// addLatencies returns the statement that adds rows to the latencies of series by day.
func (d *dialect) addLatencies() string {
	from := `FROM requests r CROSS JOIN usage_series s WHERE ` + d.added() + ` AND ` + itsSeries
	replaced := fmt.Sprintf(`(%s < 0 OR length(u.counts) NOT BETWEEN 1 AND %d)`, weight, longList)
	return `INSERT INTO usage_latencies AS u (series, period, counts)
		WITH added AS MATERIALIZED (` + selectSymbols(`s.id AS series, `+days.column(d)+` AS period`, 2, weight, from) + `)
		SELECT series, period, coalesce(` + fmt.Sprintf(d.list, fmt.Sprintf(`n * %d + symbol`, symbols)) + ` FILTER (WHERE n > 0), '')
		FROM (
			SELECT series, period, symbol, sum(n) AS n FROM (
				SELECT series, period, symbol, n FROM added
				UNION ALL
				SELECT a.series, a.period, ` + fmt.Sprintf(`value %% %[1]d, value / %[1]d`, symbols) + `
				FROM (SELECT DISTINCT series, period FROM added) a CROSS JOIN usage_latencies u CROSS JOIN ` + d.values + `
				WHERE u.series = a.series AND u.period = a.period AND ` + replaced + `
			) b GROUP BY series, period, symbol
		) c GROUP BY series, period
		ON CONFLICT (series, period) DO UPDATE
			SET counts = CASE WHEN ` + replaced + ` THEN excluded.counts ELSE u.counts || ',' || excluded.counts END`
}

// nameTags returns the statement that gives numbers to tags. Those that get a rollup by month get one by day too.
func (d *dialect) nameTags() string {
	return `INSERT INTO usage_tags (tag)` +
		d.resolveTags(tagDays, ` AND NOT EXISTS (SELECT 1 FROM usage_tags t WHERE t.tag = r.user_tag)`) +
		` SELECT DISTINCT name FROM resolved WHERE has_own AND name IS NOT NULL`
}

// addTags returns the statement that adds rows to the rollups of user tags of one level.
func (d *dialect) addTags(l *level) string {
	return `INSERT INTO ` + l.table + ` AS u (key, period, tag, ` + counts + `)` + d.resolveTags(l, ``) + `
		SELECT CASE WHEN every THEN ` + fmt.Sprint(allKeys) + ` ELSE key END, period, CASE WHEN has_own THEN tag ELSE ` + fmt.Sprint(otherTags) + ` END, ` + summed + `
		FROM resolved u CROSS JOIN (SELECT false AS every UNION ALL SELECT true) e WHERE name IS NOT NULL GROUP BY 1, 2, 3
		ON CONFLICT (key, period, tag)` + addCounts
}

// resolveTags returns a WITH clause for the sums of rows by user tag, and whether each has a rollup of its own in a level or
// gets one: if its key does not have too many. The numbers of those that keys have are rows without a name: PostgreSQL cannot
// estimate how many rows are added, and would join them by comparing each with each.
func (d *dialect) resolveTags(l *level, condition string) string {
	return `
		WITH added AS (
			SELECT k.id AS key, ` + l.column(d) + ` AS period, user_tag AS name, ` + counted(weight) + `
			FROM requests r CROSS JOIN usage_keys k
			WHERE ` + d.added() + ` AND k.account_id = r.account_id AND k.key_id = r.key_id` + condition + ` GROUP BY 1, 2, 3
		), found AS MATERIALIZED (
			SELECT a.*, t.id AS tag, u.tag IS NOT NULL AS known
			FROM added a LEFT JOIN usage_tags t ON t.tag = a.name
			LEFT JOIN ` + l.table + ` u ON u.key = a.key AND u.period = a.period AND u.tag = t.id
		), named AS (
			SELECT u.key, u.period, CAST(NULL AS TEXT), 0, 0, 0, 0, 0, 0, 0, 0, CAST(NULL AS BIGINT), true, count(*)
			FROM (SELECT DISTINCT key, period FROM found WHERE NOT known) f CROSS JOIN ` + l.table + ` u
			WHERE u.key = f.key AND u.period = f.period AND u.tag <> ` + fmt.Sprint(otherTags) + ` GROUP BY u.key, u.period
		), resolved AS (
			SELECT f.*, known OR sum(tags) OVER (PARTITION BY key, period)
				+ row_number() OVER (PARTITION BY key, period, known ORDER BY name) <= ` + fmt.Sprint(maxNamedTags) + ` AS has_own
			FROM (SELECT found.*, 0 AS tags FROM found UNION ALL SELECT * FROM named) f
		)`
}
