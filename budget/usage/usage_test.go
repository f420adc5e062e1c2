package usage_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"basegate/budget/usage"
	"basegate/database"
	"basegate/internal/databasetest"
	"basegate/internal/poll"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(databasetest.Main{M: m}) }

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func openDatabase(tb testing.TB) *database.DB {
	tb.Helper()
	db, err := database.Open(tb.Context(), databasetest.Settings(tb, filepath.Join(tb.TempDir(), "base.db")), zap.NewNop())
	must(tb, err)
	databasetest.CreatePartitions(tb, db, epoch.AddDate(0, -2, 0), epoch.AddDate(0, 2, 0))
	tb.Cleanup(func() {
		if err := db.Close(); err != nil {
			tb.Error(err)
		}
	})
	return db
}

func newStore(tb testing.TB) (*usage.Store, *database.DB) {
	tb.Helper()
	db := openDatabase(tb)
	return usage.New(db, zap.NewNop()), db
}

func execute(tb testing.TB, db *database.DB, text string, args ...any) {
	tb.Helper()
	must(tb, db.WriteExclusive(tb.Context(), func(tx database.Tx) error {
		_, err := tx.ExecContext(tb.Context(), text, args...)
		return err
	}))
}

// insert inserts the rows of ended requests, in this order.
func insert(tb testing.TB, db *database.DB, rows ...usage.Row) {
	tb.Helper()
	const text = `
		INSERT INTO requests (request_id, time, key_id, account_id, model, backend, endpoint, workload, user_tag, stream,
			status, code, state, prompt_tokens, completion_tokens, queue_us, first_token_us, total_us, run, ` + usage.ReportedColumns + `)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24)`
	must(tb, db.WriteExclusive(tb.Context(), func(tx database.Tx) error {
		for _, r := range rows {
			_, err := tx.ExecContext(tb.Context(), text, r.Reported.AppendValues([]any{
				r.RequestID, r.Time.UnixMicro(), r.KeyID, r.AccountID,
				r.Model, r.Backend, r.Endpoint, r.Workload, r.User, r.Stream, int64(r.Status), r.Code, string(r.State),
				r.PromptTokens, r.CompletionTokens, r.Queue.Microseconds(), r.FirstToken.Microseconds(), r.Total.Microseconds(), r.Run,
			})...)
			if err != nil {
				return err
			}
		}
		return nil
	}))
}

// epoch is the time about which the rows of the tests lie.
var epoch = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

// randomRow returns a row of one of a few accounts, keys and models, in the 70 days around epoch.
func randomRow(random *rand.Rand, id int) usage.Row {
	key := random.IntN(5)
	r := usage.Row{
		Requests: 1, RequestID: fmt.Sprintf("req_%05d", id), KeyID: fmt.Sprint("key", key), AccountID: fmt.Sprint("acc", key/2),
		Time:  epoch.Add(time.Duration(random.Int64N(int64(70*24*time.Hour))) - 35*24*time.Hour).Truncate(time.Microsecond),
		Model: fmt.Sprint("m", random.IntN(3)), Backend: "gpu1", Endpoint: []string{"/v1/completions", "/v1/chat/completions"}[random.IntN(2)],
		Workload: []string{"", "batch"}[random.IntN(2)], User: fmt.Sprint("u", random.IntN(6)), Status: 200, State: usage.Settled,
		PromptTokens: random.Int64N(100), CompletionTokens: random.Int64N(100), Total: time.Duration(random.IntN(1e6)) * time.Microsecond,
	}
	if random.IntN(3) == 0 {
		r.Run = fmt.Sprint("run", random.IntN(3))
	}
	if random.IntN(2) == 0 {
		r.Stream, r.Streams, r.FirstToken = true, 1, r.Total/2
	}
	if random.IntN(2) == 0 && r.PromptTokens > 0 {
		r.CachedTokens, r.KnownTokens = random.Int64N(r.PromptTokens), r.PromptTokens
		r.Reported.CachedTokens = new(r.CachedTokens)
	}
	switch random.IntN(8) {
	case 0:
		r.Code, r.Status, r.Errors = "overloaded", 503, 1
	case 1:
		r.State, r.Errors = usage.Interrupted, 1
	}
	return r
}

var byDayModel = usage.Over(usage.ByDay, usage.ByModel)

// group returns the group of a row in a grouping, as the name under which the sums are compared.
func group(by usage.Grouping, r *usage.Row) string {
	day := r.Time.Format(time.DateOnly)
	switch by {
	case usage.ByKey:
		return r.KeyID + " " + r.AccountID
	case usage.ByAccount:
		return r.AccountID
	case usage.ByModel:
		return r.Model
	case usage.ByWorkload:
		return "workload " + r.Workload
	case usage.ByRun:
		return r.Run + " " + r.AccountID
	case usage.ByUser:
		return r.User
	case usage.ByDay:
		return day
	case usage.ByHour:
		return r.Time.Format("2006-01-02T15")
	case byDayModel:
		return day + " " + r.Model
	case usage.ByMonth:
		return r.Time.Format("2006-01")
	case usage.ByEndpoint:
		return r.Endpoint
	case usage.ByRequest:
		return r.RequestID
	}
	return "?"
}

// sums are the sums of a group, the number of durations in its histogram, and its latencies.
type sums struct {
	Requests, Errors, Streams, Prompt, Completion, Cached, Known, Totals int64
	Latencies                                                            string
}

// expected sums up rows without a database.
func expected(rows []usage.Row, f usage.Filter, by usage.Grouping) map[string]sums {
	all, latencies := map[string]sums{}, map[string]*usage.Latency{}
	for i := range rows {
		r := &rows[i]
		switch {
		case !f.Since.IsZero() && r.Time.Before(f.Since), !f.Until.IsZero() && !r.Time.Before(f.Until),
			f.Account != "" && r.AccountID != f.Account, f.Key != "" && r.KeyID != f.Key, f.Model != "" && r.Model != f.Model,
			f.Run != "" && r.Run != f.Run, f.Failed && r.Errors == 0:
			continue
		}
		s := all[group(by, r)]
		s.Requests++
		s.Errors += r.Errors
		s.Streams += r.Streams
		s.Prompt += r.PromptTokens
		s.Completion += r.CompletionTokens
		s.Cached += r.CachedTokens
		s.Known += r.KnownTokens
		if f.Latency {
			l := latencies[group(by, r)]
			if l == nil {
				l = new(usage.Latency)
				latencies[group(by, r)] = l
			}
			if r.Errors == 0 {
				s.Totals++
				l.Record(r.FirstToken.Microseconds(), r.Total.Microseconds(), 1)
			}
			s.Latencies = l.String()
		}
		all[group(by, r)] = s
	}
	return all
}

func sumsOf(rows []usage.Row, by usage.Grouping) map[string]sums {
	all := map[string]sums{}
	for i := range rows {
		r := &rows[i]
		s := sums{
			Requests: r.Requests, Errors: r.Errors, Streams: r.Streams, Prompt: r.PromptTokens, Completion: r.CompletionTokens,
			Cached: r.CachedTokens, Known: r.KnownTokens,
		}
		if r.Latency != nil {
			s.Totals, s.Latencies = r.Latency.Total.Count(), r.Latency.String()
		}
		all[group(by, r)] = s
	}
	return all
}

var groupings = []usage.Grouping{
	usage.ByKey, usage.ByAccount, usage.ByModel, usage.ByWorkload, usage.ByUser, usage.ByDay, usage.ByHour, byDayModel,
	usage.ByMonth, usage.ByEndpoint, usage.ByRun,
}

// randomFilter returns a filter whose bounds are whole days, hours, or any times.
func randomFilter(random *rand.Rand) usage.Filter {
	var f usage.Filter
	bound := func() time.Time {
		at := epoch.Add(time.Duration(random.Int64N(int64(80*24*time.Hour))) - 40*24*time.Hour)
		return at.Truncate([]time.Duration{time.Microsecond, time.Hour, 24 * time.Hour}[random.IntN(3)])
	}
	if random.IntN(3) > 0 {
		f.Since = bound()
	}
	if random.IntN(3) > 0 {
		f.Until = bound()
	}
	if random.IntN(3) == 0 {
		f.Account = fmt.Sprint("acc", random.IntN(3))
	}
	if random.IntN(4) == 0 {
		f.Key = fmt.Sprint("key", random.IntN(5))
	}
	if random.IntN(4) == 0 {
		f.Model = fmt.Sprint("m", random.IntN(3))
	}
	if random.IntN(6) == 0 {
		f.Run = fmt.Sprint("run", random.IntN(3))
	}
	f.Failed = random.IntN(8) == 0
	f.Latency = random.IntN(2) == 0
	return f
}

// Rows are inserted in any order of their times, some before and some after the rollups are made, and other Stores
// continue the rollups, as after a restart.
func TestGroupsAreTheExactSumsOfTheRows(t *testing.T) {
	s, db := newStore(t)
	random := rand.New(rand.NewPCG(1, 2))
	var all []usage.Row
	rounds := 12
	if testing.Short() {
		rounds = 4
	}
	for round := range rounds {
		var added []usage.Row
		for range 150 {
			added = append(added, randomRow(random, len(all)+len(added)))
		}
		insert(t, db, added...)
		all = append(all, added...)
		if round%4 == 3 {
			s = usage.New(db, zap.NewNop())
		}
		must(t, s.AddBatch(t.Context(), random.IntN(300)+1))
		for range 40 {
			f := randomFilter(random)
			groups, err := s.Groups(t.Context(), f, groupings...)
			must(t, err)
			for i, by := range groupings {
				if diff := cmp.Diff(expected(all, f, by), sumsOf(groups[i], by)); diff != "" {
					t.Fatalf("round %d, %+v by %s (-want +got)\n%s", round, f, by, diff)
				}
			}
		}
	}
	requireConsistent(t, s)
}

// requireConsistent fails the test if a rollup is not the sum of its rows.
func requireConsistent(t *testing.T, s *usage.Store) {
	t.Helper()
	must(t, s.Check(t.Context(), func(d usage.Difference) { t.Errorf("a rollup differs: %s", d) }))
}

func watermark(t *testing.T, db *database.DB) (left int) {
	t.Helper()
	text := `SELECT count(*) FROM requests WHERE seq > (SELECT seq FROM usage_watermark)`
	if db.Postgres() != nil {
		text = `SELECT count(*) FROM requests WHERE xid > (SELECT seq::text::xid8 FROM usage_watermark)`
	}
	must(t, db.Read().QueryRowContext(t.Context(), text).Scan(&left))
	return left
}

func TestStartedStoreAddsNewRowsToTheRollups(t *testing.T) {
	s, db := newStore(t)
	s.Start(t.Context())
	defer s.Close()
	random := rand.New(rand.NewPCG(3, 4))
	for i := range 200 {
		insert(t, db, randomRow(random, i))
	}
	poll.Until(t, "all rows are in the rollups", func() bool { return watermark(t, db) == 0 })
	s.Close()
	requireConsistent(t, s)
}

func TestCorrectedRowsAreCorrectedInTheRollups(t *testing.T) {
	databasetest.SkipPostgres(t, "its functions settle a request once")
	s, db := newStore(t)
	random := rand.New(rand.NewPCG(5, 6))
	var all []usage.Row
	for i := range 100 {
		all = append(all, randomRow(random, i))
	}
	insert(t, db, all...)
	must(t, s.AddBatch(t.Context(), 50))
	for _, i := range []int{10, 70} { // one that the rollups include, and one that they do not
		id := all[i].RequestID
		all[i].PromptTokens, all[i].Code, all[i].Errors = 1234, "overloaded", 1
		if all[i].KnownTokens > 0 {
			all[i].KnownTokens = 1234
		}
		must(t, db.WriteGrouped(t.Context(), func(tx database.Tx) error {
			ctx := t.Context()
			return usage.Correct(ctx, tx, id, func() error {
				_, err := tx.ExecContext(ctx, `UPDATE requests SET prompt_tokens = 1234, code = 'overloaded' WHERE request_id = $1`, id)
				return err
			})
		}))
		requireConsistent(t, s)
	}
	must(t, s.AddBatch(t.Context(), 100))
	requireConsistent(t, s)
	groups, err := s.Groups(t.Context(), usage.Filter{}, usage.ByUser)
	must(t, err)
	if diff := cmp.Diff(expected(all, usage.Filter{}, usage.ByUser), sumsOf(groups[0], usage.ByUser)); diff != "" {
		t.Errorf("by user (-want +got)\n%s", diff)
	}
}

func TestTagsBeyondTheLimitAreSummedUpAsOthers(t *testing.T) {
	defer usage.SetMaxNamedTags(3)()
	for _, batch := range []int{1, 10} {
		t.Run(fmt.Sprintf("%d rows at once", batch), func(t *testing.T) {
			s, db := newStore(t)
			for i := range 10 {
				insert(t, db, usage.Row{
					RequestID: fmt.Sprint("r", i), Time: epoch, KeyID: "k", AccountID: "a", User: fmt.Sprint("u", i%5), State: usage.Settled,
					PromptTokens: 1,
				})
				if (i+1)%batch == 0 {
					must(t, s.AddBatch(t.Context(), batch))
				}
			}
			for _, key := range []string{"", "k"} {
				rows, err := s.List(t.Context(), usage.Filter{Key: key}, usage.ByUser)
				must(t, err)
				got := map[string]int64{}
				for _, r := range rows {
					got[r.User] = r.Requests
				}
				if diff := cmp.Diff(map[string]int64{"u0": 2, "u1": 2, "u2": 2, usage.OtherTags: 4}, got); diff != "" {
					t.Errorf("key %q, requests by tag (-want +got)\n%s", key, diff)
				}
			}
			requireConsistent(t, s)
			execute(t, db, `UPDATE usage_tag_days SET requests = requests + 1 WHERE tag = 0`)
			if found := differences(t, s); len(found) != 1 || !strings.Contains(found[0], usage.OtherTags) {
				t.Errorf("got the differences %q, want one of the other tags", found)
			}
		})
	}
}

func TestRunsBeyondTheLimitAreSummedUpAsOthers(t *testing.T) {
	defer usage.SetMaxSeries(3)()
	s, db := newStore(t)
	for i := range 10 {
		run := fmt.Sprint("run", i%5)
		if i == 9 {
			run = ""
		}
		insert(t, db, usage.Row{
			RequestID: fmt.Sprint("r", i), Time: epoch, KeyID: "k", AccountID: "a", Run: run, State: usage.Settled, Total: time.Millisecond,
			PromptTokens: 1,
		})
		must(t, s.AddBatch(t.Context(), 1))
	}
	rows, err := s.List(t.Context(), usage.Filter{}, usage.ByRun)
	must(t, err)
	got := map[string]int64{}
	for _, r := range rows {
		got[r.Run] = r.Requests
	}
	if diff := cmp.Diff(map[string]int64{"": 1, "run0": 2, "run1": 2, "run2": 2, usage.OtherRuns: 3}, got); diff != "" {
		t.Errorf("requests by run (-want +got)\n%s", diff)
	}
	requireConsistent(t, s)
	must(t, s.Rebuild(t.Context()))
	requireConsistent(t, s)
}

func differences(t *testing.T, s *usage.Store) (all []string) {
	t.Helper()
	must(t, s.Check(t.Context(), func(d usage.Difference) { all = append(all, d.String()) }))
	return all
}

func TestCheckFindsDamagedRollupsAndRebuildRepairsThem(t *testing.T) {
	s, db := newStore(t)
	random := rand.New(rand.NewPCG(7, 8))
	for i := range 300 {
		insert(t, db, randomRow(random, i))
	}
	must(t, s.AddBatch(t.Context(), 250))
	for _, c := range []struct{ table, damage, where string }{
		{"usage_hours", `UPDATE usage_hours SET errors = errors + 1`, `true`},
		{"usage_days", `UPDATE usage_days SET period = period + 1000`, `true`},
		{"usage_latencies", `UPDATE usage_latencies SET counts = '1536'`, `true`},
		{"usage_tag_days", `DELETE FROM usage_tag_days`, `key <> 0`},
		{"usage_tag_days", `UPDATE usage_tag_days SET streams = streams + 1`, `key = 0`}, // of all keys
		{"usage_tag_months", `UPDATE usage_tag_months SET period = period + 12`, `key <> 0`},
		{"usage_tag_months", `DELETE FROM usage_tag_months`, `key = 0`},
	} {
		columns := `series, period`
		if strings.Contains(c.table, "tag") {
			columns = `key, period, tag`
		}
		execute(t, db, fmt.Sprintf(`%s WHERE (%s) = (SELECT %[2]s FROM %s WHERE %s LIMIT 1)`, c.damage, columns, c.table, c.where))
		found := differences(t, s)
		if len(found) == 0 || slices.ContainsFunc(found, func(d string) bool { return !strings.HasPrefix(d, c.table+", ") }) {
			t.Errorf("after %s: got the differences %q, want some of %s only", c.damage, found, c.table)
		}
		s = usage.New(db, zap.NewNop())
		must(t, s.Rebuild(t.Context()))
		requireConsistent(t, s)
		if left := watermark(t, db); left != 0 {
			t.Errorf("%d rows are not in the rebuilt rollups", left)
		}
	}
}

// A month is read in pages. A row that ends meanwhile is not among them, and nothing of the database is held.
func TestRequestsAreReadInPagesThatHoldNothing(t *testing.T) {
	s, db := newStore(t)
	random := rand.New(rand.NewPCG(9, 10))
	var all []usage.Row
	for i := range 2500 {
		all = append(all, randomRow(random, i))
	}
	insert(t, db, all...)
	read := map[string]bool{}
	last := time.Time{}
	for r, err := range s.Rows(t.Context(), usage.Filter{Reader: "a"}, usage.ByRequest) {
		must(t, err)
		if !last.IsZero() && r.Time.After(last) {
			t.Fatalf("%s comes after an older one", r.RequestID)
		}
		last = r.Time
		read[r.RequestID] = true
		if len(read)%900 == 0 { // within a page
			insert(t, db, randomRow(random, 10_000+len(read)))
			_, err := s.Groups(t.Context(), usage.Filter{Reader: "a"}, usage.ByModel)
			must(t, err)
			must(t, db.Report(t.Context(), "b", time.Minute, func(context.Context, database.Reader) error { return nil }))
		}
	}
	if len(read) != len(all) {
		t.Errorf("%d requests are read, want the %d that had ended at the start", len(read), len(all))
	}
}

func TestRowsAreFilteredAndOrdered(t *testing.T) {
	s, db := newStore(t)
	for i := range 6 {
		r := usage.Row{
			RequestID: fmt.Sprint("r", i), Time: epoch.Add(time.Duration(i) * 12 * time.Hour), KeyID: fmt.Sprint("k", i%3+1),
			AccountID: []string{"a1", "a1", "a2"}[i%3], Model: fmt.Sprint("m", i%2), Workload: fmt.Sprint("w", i%2),
			User: fmt.Sprint("u%", i/3), State: usage.Settled, PromptTokens: 10, CompletionTokens: int64(i),
		}
		if i == 2 {
			r.Code = "overloaded"
		}
		insert(t, db, r)
	}
	must(t, s.AddBatch(t.Context(), 4))
	for _, c := range []struct {
		filter usage.Filter
		by     usage.Grouping
		want   string
	}{
		{usage.Filter{}, usage.ByRequest, "r5 r4 r3 r2 r1 r0"},
		{usage.Filter{Limit: 2}, usage.ByRequest, "r5 r4"},
		{usage.Filter{Account: "a1", Key: "k2"}, usage.ByRequest, "r4 r1"},
		{usage.Filter{Account: "a2", Key: "k2"}, usage.ByRequest, ""},
		{usage.Filter{Since: epoch.Add(24 * time.Hour), Until: epoch.Add(48 * time.Hour)}, usage.ByRequest, "r3 r2"},
		{usage.Filter{Failed: true}, usage.ByRequest, "r2"},
		{usage.Filter{Search: "r3"}, usage.ByRequest, "r3"},
		{usage.Filter{Search: "3"}, usage.ByRequest, ""},
		{usage.Filter{Search: "over"}, usage.ByRequest, "r2"},
		{usage.Filter{Search: "%1"}, usage.ByRequest, "r5 r4 r3"},
		{usage.Filter{Search: "w_"}, usage.ByRequest, ""},
		{usage.Filter{Search: "u%1", Model: "m1"}, usage.ByRequest, "r5 r3"},
		{usage.Filter{}, usage.ByKey, "k3 a2,k2 a1,k1 a1"},
		{usage.Filter{}, usage.ByAccount, "a1,a2"},
		{usage.Filter{Limit: 1}, usage.ByDay, "2026-03-03"},
		{usage.Filter{Account: "a1"}, byDayModel, "2026-03-03 m0,2026-03-02 m1,2026-03-01 m0,2026-03-01 m1"},
	} {
		rows, err := s.List(t.Context(), c.filter, c.by)
		must(t, err)
		var got []string
		for i := range rows {
			got = append(got, group(c.by, &rows[i]))
		}
		separator := ","
		if c.by == usage.ByRequest {
			separator = " "
		}
		if joined := strings.Join(got, separator); joined != c.want {
			t.Errorf("%+v by %s is %q, want %q", c.filter, c.by, joined, c.want)
		}
	}
	if _, err := s.List(t.Context(), usage.Filter{}, "colour"); err == nil || !strings.Contains(err.Error(), "colour") {
		t.Errorf("by colour: got error %v, want one that names the unknown grouping", err)
	}
}
