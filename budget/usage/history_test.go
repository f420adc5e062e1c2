package usage_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"basegate/budget/usage"
	"basegate/database"
)

// insertRefusal inserts a refusal with the fields by which History selects.
func insertRefusal(tb testing.TB, db *database.DB, r *usage.Row) {
	tb.Helper()
	execute(tb, db, `
		INSERT INTO refusals (request_id, time, key_id, account_id, model, backend, endpoint, workload, user_tag, stream,
			status, code, queue_us, boot_us, total_us)
		VALUES ($1, $2, $3, $4, $5, '', '/v1/completions', '', '', false, 429, $6, 0, 0, 0)`,
		r.RequestID, r.Time.UnixMicro(), r.KeyID, r.AccountID, r.Model, r.Code)
}

// readPages reads all pages of a filter, each from the cursor that the page before has in its text form.
func readPages(t *testing.T, s *usage.Store, f usage.Filter, ending usage.Ending) (ids []string, pages int) {
	t.Helper()
	text := ""
	for {
		after, err := usage.ParseCursor(text)
		must(t, err)
		page, err := s.History(t.Context(), f, ending, after)
		must(t, err)
		if len(page.Rows) > f.Limit {
			t.Fatalf("a page has %d rows, want at most %d", len(page.Rows), f.Limit)
		}
		for i := range page.Rows {
			ids = append(ids, page.Rows[i].RequestID)
		}
		pages++
		if text = page.Next.String(); text == "" {
			return ids, pages
		}
	}
}

func TestPagesOfHistoryHaveEveryRequestOnce(t *testing.T) {
	s, db := newStore(t)
	random := rand.New(rand.NewPCG(3, 4))
	var all []usage.Row
	for i := range 120 {
		r := randomRow(random, i)
		r.Time = epoch.Add(time.Duration(random.IntN(25)) * time.Second) // many have the same time
		if i%3 == 0 {
			r.State, r.Code, r.Errors = usage.Refused, "invalid_request", 1
			insertRefusal(t, db, &r)
		} else {
			insert(t, db, r)
		}
		all = append(all, r)
	}
	must(t, s.AddBatch(t.Context(), 60))
	for _, c := range []struct {
		name    string
		filter  usage.Filter
		ending  usage.Ending
		matches func(r *usage.Row) bool
	}{
		{"all", usage.Filter{}, usage.AnyEnding, func(*usage.Row) bool { return true }},
		{"refused", usage.Filter{}, usage.WereRefused, func(r *usage.Row) bool { return r.State == usage.Refused }},
		{"failed", usage.Filter{}, usage.HasFailed, func(r *usage.Row) bool { return r.State != usage.Refused && r.Errors > 0 }},
		{"succeeded", usage.Filter{}, usage.Succeeded, func(r *usage.Row) bool { return r.Errors == 0 }},
		{"an account", usage.Filter{Account: "acc1"}, usage.AnyEnding, func(r *usage.Row) bool { return r.AccountID == "acc1" }},
		{"a key", usage.Filter{Key: "key2"}, usage.AnyEnding, func(r *usage.Row) bool { return r.KeyID == "key2" }},
		{"a range", usage.Filter{Since: epoch.Add(5 * time.Second), Until: epoch.Add(9 * time.Second)}, usage.AnyEnding, func(r *usage.Row) bool {
			return !r.Time.Before(epoch.Add(5*time.Second)) && r.Time.Before(epoch.Add(9*time.Second))
		}},
		{"a code", usage.Filter{Search: "invalid"}, usage.AnyEnding, func(r *usage.Row) bool { return r.State == usage.Refused }},
	} {
		var want []string
		for i := range all {
			if c.matches(&all[i]) {
				want = append(want, all[i].RequestID)
			}
		}
		f := c.filter
		f.Limit = 7
		got, pages := readPages(t, s, f, c.ending)
		times := map[string]time.Time{}
		for i := range all {
			times[all[i].RequestID] = all[i].Time
		}
		if !slices.IsSortedFunc(got, func(a, b string) int { return times[b].Compare(times[a]) }) {
			t.Errorf("%s: not ordered from the newest: %v", c.name, got)
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %d requests on %d pages, want %d", c.name, len(got), pages, len(want))
		}
		if most := len(want)/7 + 1; pages > most {
			t.Errorf("%s: %d pages, want at most %d", c.name, pages, most)
		}
	}
}

func TestSearchContinuesOnTheNextPage(t *testing.T) {
	s, db := newStore(t)
	restore := usage.SetMaxSearched(50)
	defer restore()
	for i := range 200 {
		r := usage.Row{
			RequestID: fmt.Sprintf("r%03d", i), Time: epoch.Add(time.Duration(i) * time.Second), AccountID: "a", KeyID: "k",
			Model: "m", State: usage.Settled, User: "other",
		}
		if i%90 == 5 {
			r.User = "wanted"
		}
		if i == 42 {
			r.State, r.Code = usage.Refused, "wanted_code"
			insertRefusal(t, db, &r)
			continue
		}
		insert(t, db, r)
	}
	got, pages := readPages(t, s, usage.Filter{Account: "a", Search: "wanted", Limit: 10}, usage.AnyEnding)
	if joined := strings.Join(got, " "); joined != "r185 r095 r042 r005" {
		t.Errorf("got %s", joined)
	}
	if pages < 4 {
		t.Errorf("200 requests were searched on %d pages of 50", pages)
	}
	first, err := s.History(t.Context(), usage.Filter{Account: "a", Search: "wanted", Limit: 10}, usage.AnyEnding, usage.Cursor{})
	must(t, err)
	if want := epoch.Add(150 * time.Second); !first.Searched.Equal(want) {
		t.Errorf("searched back to %v, want %v", first.Searched, want)
	}
	byID, err := s.History(t.Context(), usage.Filter{Account: "a", Search: "r007", Limit: 10}, usage.AnyEnding, usage.Cursor{})
	must(t, err)
	if len(byID.Rows) != 1 || byID.Rows[0].RequestID != "r007" {
		t.Errorf("an id is not found beyond the limit of the search: %v", byID.Rows)
	}
}

func TestMalformedCursorsAreRefused(t *testing.T) {
	for _, text := range []string{"x", "1-l", "1-x-1", "-1-l-1", "1-l--1", "zzzzzzzzzzzzzzzz-l-1", "1-l-1-1"} {
		if c, err := usage.ParseCursor(text); err == nil {
			t.Errorf("%q is the cursor %v", text, c)
		}
	}
}

func TestOverGroupsByIntervalAndAnotherColumn(t *testing.T) {
	s, db := newStore(t)
	random := rand.New(rand.NewPCG(5, 6))
	var all []usage.Row
	for i := range 300 {
		all = append(all, randomRow(random, i))
	}
	insert(t, db, all...)
	must(t, s.AddBatch(t.Context(), 200))
	names := map[usage.Grouping]func(r *usage.Row) string{
		usage.ByKey: func(r *usage.Row) string { return r.KeyID }, usage.ByAccount: func(r *usage.Row) string { return r.AccountID },
		usage.ByModel: func(r *usage.Row) string { return r.Model }, usage.ByWorkload: func(r *usage.Row) string { return r.Workload },
		usage.ByEndpoint: func(r *usage.Row) string { return r.Endpoint },
	}
	for interval, layout := range map[usage.Grouping]string{
		usage.ByHour: "2006-01-02T15", usage.ByDay: "2006-01-02", usage.ByMonth: "2006-01",
	} {
		for by, name := range names {
			f := usage.Filter{Since: epoch.AddDate(0, 0, -20), Until: epoch.AddDate(0, 0, 20), Latency: true}
			want, got := map[string]sums{}, map[string]sums{}
			add := func(to map[string]sums, r *usage.Row, totals int64) {
				key := r.Time.Format(layout) + " " + name(r)
				s := to[key]
				s.Requests += r.Requests
				s.Errors += r.Errors
				s.Prompt += r.PromptTokens
				s.Totals += totals
				to[key] = s
			}
			for i := range all {
				if !all[i].Time.Before(f.Since) && all[i].Time.Before(f.Until) {
					add(want, &all[i], 1-all[i].Errors)
				}
			}
			rows, err := s.List(t.Context(), f, usage.Over(interval, by))
			must(t, err)
			for i := range rows {
				add(got, &rows[i], rows[i].Latency.Total.Count())
			}
			if len(got) != len(want) {
				t.Errorf("by %s and %s: %d groups, want %d", interval, by, len(got), len(want))
			}
			for key := range want {
				if got[key] != want[key] {
					t.Errorf("by %s and %s: %s has %+v, want %+v", interval, by, key, got[key], want[key])
				}
			}
		}
	}
	for _, by := range []usage.Grouping{"day-user", "day-day", "model-day", "day-", "-model", "hour-hour", "month-request"} {
		if _, err := s.List(t.Context(), usage.Filter{}, by); err == nil {
			t.Errorf("usage by %q is read", by)
		}
	}
}
