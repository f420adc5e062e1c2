package console_test

import (
	"crypto/rand"
	"encoding/csv"
	"fmt"
	"html"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/tidwall/gjson"

	"basegate/budget"
	"basegate/budget/quota"
	"basegate/console"
	"basegate/database"
	"basegate/identity"
)

func rows(t *testing.T, text string) [][]string {
	t.Helper()
	all, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	must(t, err)
	return all
}

// newSiteWithUsage starts a console with one account, which has two keys and six requests. It returns the first key.
func newSiteWithUsage(t *testing.T) (*site, identity.Key) {
	t.Helper()
	s := newSite(t)
	s.account("ada@example.org", false)
	k, _ := s.key("ada@example.org", "laptop")
	other, _ := s.key("ada@example.org", "cluster")
	for i := range 4 {
		s.addRequest(k, budget.Request{ID: "req_" + strings.Repeat("A", i+1), Workload: "interactive", User: "=cmd()"}, 100, 10, "")
	}
	s.addRequest(other, budget.Request{ID: "req_Z", Model: "llama-405b", Workload: "batch", User: "run-7"}, 1000, 100, "")
	s.addRequest(other, budget.Request{ID: "req_Y", Model: "llama-405b", Workload: "batch", User: "run-8"}, 1, 0, "vllm_oom")
	return s, k
}

func TestUsageIsShownOnThePageAndInCSVFiles(t *testing.T) {
	s, _ := newSiteWithUsage(t)
	b := s.signIn("ada@example.org")
	for by, name := range map[string]string{"model": "llama-405b", "key": "cluster", "workload": "interactive", "user": "run-7"} {
		has(t, b.get("/usage?by="+by).body, "1,541", name, `class="series-1"`, "1,101 tokens")
	}
	day := time.Now().UTC().Format("2006-01-02")
	sums := []string{"requests", "errors", "prompt_tokens", "completion_tokens", "total_tokens"}
	for query, want := range map[string][][]string{
		"by=workload": {{"workload"}, {"batch", "2", "1", "1001", "100", "1101"}, {"interactive", "4", "0", "400", "40", "440"}},
		"by=user":     {{"user"}, {"run-7", "1", "0", "1000", "100", "1100"}, {"'=cmd()", "4", "0", "400", "40", "440"}, {"run-8", "1", "1", "1", "0", "1"}},
		"what=intervals": {
			{"day", "model"}, {day, "llama-405b", "2", "1", "1001", "100", "1101"}, {day, "llama-8b", "4", "0", "400", "40", "440"},
		},
	} {
		want[0] = append(want[0], sums...)
		got := b.get("/usage/export?" + query)
		file := rows(t, got.body)
		for i := range file {
			file[i] = file[i][:len(want[0])] // without the percentiles
		}
		if diff := cmp.Diff(want, file); diff != "" {
			t.Errorf("%s (-want +got):\n%s", query, diff)
		}
		has(t, got.header.Get("Content-Disposition"), "attachment", ".csv")
	}
	requests := b.get("/usage/export?what=requests")
	if file := rows(t, requests.body); len(file) != 7 || file[1][0] != "req_Y" || file[6][0] != "req_A" {
		t.Errorf("the file of requests has %v, want all from the newest", file)
	}
	has(t, requests.header.Get("Content-Disposition"), "by-request.csv")
}

// links returns the links to lists of requests within a part of a page.
func links(page string) (all []string) {
	for _, m := range regexp.MustCompile(`href="(/usage/requests\?[^"]+)"`).FindAllStringSubmatch(page, -1) {
		all = append(all, html.UnescapeString(m[1]))
	}
	return all
}

func TestBarsAndRowsOfUsageLeadToTheirRequests(t *testing.T) {
	s, k := newSiteWithUsage(t)
	b := s.signIn("ada@example.org")
	today := time.Now().UTC().Format(time.DateOnly)
	month := time.Now().UTC().Format("2006-01")
	for query, want := range map[string]string{
		"by=model":           "from=" + today + "&model=llama-8b&to=" + today,
		"by=key":             "from=" + today + "&key=" + k.ID + "&to=" + today,
		"by=workload":        "from=" + today + "&q=interactive&to=" + today,
		"interval=month":     "from=" + month + "-01&model=llama-8b&to=" + monthEnd(time.Now().UTC()),
		"model=llama-8b":     "from=" + today + "&model=llama-8b&to=" + today,
		"by=key&key=" + k.ID: "from=" + today + "&key=" + k.ID + "&to=" + today,
	} {
		page := b.get("/usage?" + query).body
		link := "/usage/requests?" + want
		if n := slices.Index(links(page), link); n < 0 {
			t.Errorf("%s: got the links %q, want %q", query, links(page), link)
			continue
		}
		if got := strings.Count(b.get(link).body, `<code class="id">`); got != 4 {
			t.Errorf("%s lists %d requests, want the 4 of the bar", link, got)
		}
	}
	lacks(t, b.get("/usage?by=endpoint").body, `href="/usage/requests?`) // a list of requests has no such filter

	now := time.Now().UTC() // a bar of an hour
	page := b.get("/usage?interval=hour&from=" + now.Format(time.DateOnly) + "&to=" + now.Format(time.DateOnly)).body
	for _, link := range links(page) {
		if strings.Contains(link, "T") && strings.Contains(link, "model=llama-8b") {
			listed := b.get(link).body
			has(t, listed, `type="datetime-local"`)
			if got := strings.Count(listed, `<code class="id">`); got > 4 || got == 0 {
				t.Errorf("%s lists %d requests, want those of the hour", link, got)
			}
			return
		}
	}
	t.Errorf("got the links %q, want one to an hour", links(page))
}

// monthEnd returns the last day of a month.
func monthEnd(at time.Time) string {
	return time.Date(at.Year(), at.Month()+1, 0, 0, 0, 0, 0, time.UTC).Format(time.DateOnly)
}

func TestUsageHasChartsOfLatenciesAndErrors(t *testing.T) {
	s, k := newSiteWithUsage(t)
	a, err := s.accounts.Find(t.Context(), "ada@example.org")
	must(t, err)
	other := s.account("eve@example.org", false)
	evesKey, _ := s.key("eve@example.org", "eve")
	s.refuse(k, "req_R", "budget_exceeded", time.Now())
	s.refuse(evesKey, "req_E", "overloaded", time.Now())
	s.insertEnded(a, k, "req_S", 5, time.Now())
	s.insertEnded(other, evesKey, "req_T", 5, time.Now())
	b := s.signIn("ada@example.org")
	for query, want := range map[string]struct{ points, errors, refusals string }{
		"":                 {"30", `["vllm_oom"]`, `["budget_exceeded"]`},
		"key=" + k.ID:      {"30", `["none"]`, `["none"]`}, // refusals are counted by account
		"model=llama-405b": {"30", `["vllm_oom"]`, `["none"]`},
		"interval=hour&from=" + time.Now().UTC().Format(time.DateOnly): {"24", `["vllm_oom"]`, `["budget_exceeded"]`},
	} {
		data := overviewData(t, b.get("/usage?"+query).body)
		codes := func(chart string) string { return data.Get(`charts.#(id=="` + chart + `").series.#.name`).String() }
		if points := data.Get("points").String(); codes("errors") != want.errors || codes("refusals") != want.refusals || points != want.points {
			t.Errorf("%s: got the errors %s and the refusals %s at %s points, want %+v", query, codes("errors"), codes("refusals"), points, want)
		}
		if got := data.Get("charts.#.id").String(); got != `["errors","refusals","first-token"]` {
			t.Errorf("%s: got the charts %s", query, got)
		}
	}
	data := overviewData(t, b.get("/usage").body)
	var known []float64
	for _, v := range data.Get(`charts.#(id=="first-token").series.0.values`).Array() {
		if v.Type != gjson.Null {
			known = append(known, v.Float())
		}
	}
	if len(known) != 1 || math.Abs(known[0]-.25) > .25/8 { // of today
		t.Errorf("got the medians %v of the time to first token, want 0.25 s today", known)
	}
	has(t, b.get("/usage?from=2001-01-01&to=2001-02-01").body, "charts.", "plot-errors", "plots-note", "chart-data")
	lacks(t, b.get("/usage?from=2020-01-01").body, "plot-errors") // latencies of more than 400 days are not read
}

// A request to a model that starts has a row on the ledger with an error code, but nothing has failed.
func TestUsageTellsFailuresFromRefusalsAndClientsThatLeft(t *testing.T) {
	s, k := newSiteWithUsage(t)
	b := s.signIn("ada@example.org")
	has(t, b.get("/usage").body, "1 unsuccessful (16.7\u202f%): 1 failed <a")
	for _, code := range []string{"modal_cold_boot", "modal_cold_boot", "client_gone"} {
		s.addRequest(k, budget.Request{}, 1, 0, code)
	}
	s.refuse(k, "req_R", "budget_exceeded", time.Now()) // without a row on the ledger
	has(t, b.get("/usage").body, "4 unsuccessful (44.4\u202f%): 1 failed, 2 refused, 1 left by the client <a")
	has(t, b.get("/usage?key="+k.ID).body, "3 unsuccessful (42.9\u202f%): 2 refused, 1 left by the client <a")
	has(t, b.get("/usage?from=2020-01-01").body, "4 unsuccessful (44.4\u202f%) <a") // of more than 400 days
}

func TestUsageShowsCachedAndReplayedTokensBesideThoseSpent(t *testing.T) {
	s := newSite(t)
	a := s.account("ada@example.org", false)
	k, _ := s.key("ada@example.org", "laptop")
	s.insertEnded(a, k, "req_1", 2000, time.Now())
	s.insertEnded(a, k, "req_2", 0, time.Now())
	must(t, s.db.WriteExclusive(t.Context(), func(tx database.Tx) error {
		if err := database.Exec(t.Context(), tx, `UPDATE requests SET cached_tokens = 1500 WHERE request_id = 'req_1'`); err != nil {
			return err
		}
		return database.Exec(t.Context(), tx, `UPDATE requests SET saved_tokens = 777, state = 'replayed' WHERE request_id = 'req_2'`)
	}))
	has(t, s.signIn("ada@example.org").get("/usage").body, `<dd class="headline">2,000</dd>`, `<dd class="headline">1,500</dd>`,
		"75.0\u202f% of the prompt tokens", `<dd class="headline">777</dd>`)
}

func TestCSVEscapesFormulas(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	k, _ := s.key("ada@example.org", "laptop")
	b := s.signIn("ada@example.org")
	for _, tag := range []string{"\n=1", "＝1", "＠x", "@x", "\t=1"} {
		id := "req_" + rand.Text()
		s.addRequest(k, budget.Request{ID: id, User: tag, Workload: tag}, 1, 1, "")
		for _, query := range []string{"export?by=user", "export?by=workload", "export?what=requests", "requests.csv?q=" + id} {
			got := rows(t, b.get("/usage/"+query).body)
			escaped := slices.ContainsFunc(got, func(cells []string) bool { return slices.Contains(cells, "'"+tag) })
			raw := slices.ContainsFunc(got, func(cells []string) bool { return slices.Contains(cells, tag) })
			if !escaped || raw {
				t.Errorf("%s: got %q, want %q escaped", query, got, tag)
			}
		}
	}
}

func TestUserTagsBeyondTheLimitAreSummedUp(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	k, _ := s.key("ada@example.org", "laptop")
	for i := range 55 {
		s.addRequest(k, budget.Request{User: fmt.Sprintf("tag-%02d", i)}, int64(100-i), 0, "")
	}
	b := s.signIn("ada@example.org")
	page := b.get("/usage?by=user").body
	has(t, page, "tag-49", "All others", ">240<")
	lacks(t, page, "tag-50")
	if got := rows(t, b.get("/usage/export?by=user").body); len(got) != 56 {
		t.Errorf("by=user: got %d lines, want the header and 55 tags", len(got))
	}
}

func TestRequestsAreFilteredAndSearched(t *testing.T) {
	s, k := newSiteWithUsage(t)
	b := s.signIn("ada@example.org")
	for query, want := range map[string]int{
		"":                             6,
		"key=" + k.ID:                  4,
		"model=llama-405b":             2,
		"ending=failed":                1,
		"q=vllm":                       1,
		"q=run-":                       2,
		"q=req_AA":                     3,
		"q=batch&model=llama-8b":       0,
		"q=%25":                        0,
		"q=run-7&key=" + k.ID:          0,
		"q=' OR 1=1 --":                0,
		"model=llama-405b&q=run&x=%00": 2,
	} {
		query = strings.ReplaceAll(query, " ", "%20")
		page := b.get("/usage/requests?" + query).body
		if got := strings.Count(page, `<code class="id">`); got != want {
			t.Errorf("%s: got %d requests on the page, want %d", query, got, want)
		}
		if got := len(rows(t, b.get("/usage/requests.csv?"+query).body)) - 1; got != want {
			t.Errorf("%s: got %d requests in the CSV file, want %d", query, got, want)
		}
	}
	has(t, b.get("/usage/requests").body, "vllm_oom", "502")
}

func TestForecastExtrapolatesTheMonth(t *testing.T) {
	for _, c := range []struct {
		day   int
		used  int64
		limit quota.Cap
		want  string
	}{
		{1, 100, quota.Unbounded(), ""},
		{11, 0, quota.Unbounded(), ""},
		{11, 1_000_000, quota.Unbounded(), "At this rate, about 3M by the end of the month."},
		{11, 1_000_000, quota.Limit(6_000_000), "At this rate, about 3M by the end of the month, 50 % of the budget."},
		{11, 1_000_000, quota.Limit(2_000_000), "At this rate, about 3M by the end of the month: the budget will be used up around 21 Nov."},
		{11, 1_000_000, quota.Limit(1_000_000), "Budget used up."},
	} {
		if got := console.Forecast(c.used, c.limit, "", time.Date(2026, 11, c.day, 0, 0, 0, 0, time.UTC)); got != c.want {
			t.Errorf("%+v: got %q", c, got)
		}
	}
}

func TestForecastOfTheCurrentMonthIsShown(t *testing.T) {
	s, _ := newSiteWithUsage(t)
	_, err := s.accounts.Set(t.Context(), "ada@example.org", func(a *identity.Account) {
		a.Caps[quota.MonthTotal], a.Caps[quota.MonthOutput] = quota.Limit(1000), quota.Limit(1)
	})
	must(t, err)
	now := time.Now().UTC()
	month := now.Format("2006-01") + "-01"
	b := s.signIn("ada@example.org")
	has(t, b.get("/usage?from="+month).body, console.Forecast(1541, quota.Limit(1000), "", now),
		console.Forecast(1541, quota.Limit(1), "Completions: ", now))
	lacks(t, b.get("/usage?model=llama-8b&from="+month).body, "Budget used up.")
}
