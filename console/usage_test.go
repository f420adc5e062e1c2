package console_test

import (
	"crypto/rand"
	"encoding/csv"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"basegate/budget"
	"basegate/budget/quota"
	"basegate/console"
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
