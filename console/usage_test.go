package console_test

import (
	"crypto/rand"
	"encoding/csv"
	"fmt"
	"net/http"
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
	page := b.get("/usage").body
	has(t, page, "1,541", "llama-405b", "cluster", "interactive", "run-7", `class="series-1"`, "1,101 tokens")
	day := time.Now().UTC().Format("2006-01-02")
	for by, want := range map[string][][]string{
		"model":     {{"model", "requests", "prompt_tokens", "completion_tokens", "total_tokens"}, {"llama-405b", "2", "1001", "100", "1101"}, {"llama-8b", "4", "400", "40", "440"}},
		"day":       {{"day", "requests", "prompt_tokens", "completion_tokens", "total_tokens"}, {day, "6", "1401", "140", "1541"}},
		"user":      {{"user", "requests", "prompt_tokens", "completion_tokens", "total_tokens"}, {"run-7", "1", "1000", "100", "1100"}, {"'=cmd()", "4", "400", "40", "440"}, {"run-8", "1", "1", "0", "1"}},
		"day-model": {{"day", "model", "requests", "prompt_tokens", "completion_tokens", "total_tokens"}, {day, "llama-405b", "2", "1001", "100", "1101"}, {day, "llama-8b", "4", "400", "40", "440"}},
	} {
		got := b.get("/usage/csv?by=" + by)
		if diff := cmp.Diff(want, rows(t, got.body)); diff != "" {
			t.Errorf("by %s (-want +got):\n%s", by, diff)
		}
		has(t, got.header.Get("Content-Disposition"), "attachment", ".csv")
	}
	empty := b.get("/usage?month=2001-02")
	wantStatus(t, "a month without requests", empty, http.StatusOK)
	has(t, empty.body, "No requests in February 2001")
	wantStatus(t, "an unknown grouping", b.get("/usage/csv?by=colour"), http.StatusNotFound)
}

func TestCSVEscapesFormulas(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	k, _ := s.key("ada@example.org", "laptop")
	b := s.signIn("ada@example.org")
	for _, tag := range []string{"\n=1", "＝1", "＠x", "@x", "\t=1"} {
		id := "req_" + rand.Text()
		s.addRequest(k, budget.Request{ID: id, User: tag, Workload: tag}, 1, 1, "")
		for _, query := range []string{"by=user", "by=workload", "by=request&q=" + id} {
			got := rows(t, b.get("/usage/csv?"+query).body)
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
	for i := range 20 {
		s.addRequest(k, budget.Request{User: fmt.Sprintf("tag-%02d", i)}, int64(100-i), 0, "")
	}
	b := s.signIn("ada@example.org")
	page := b.get("/usage").body
	has(t, page, "tag-14", "All others", "415")
	lacks(t, page, "tag-15")
	if got := rows(t, b.get("/usage/csv?by=user").body); len(got) != 21 {
		t.Errorf("by=user: got %d lines, want the header and 20 tags", len(got))
	}
}

func TestRequestsAreFilteredAndSearched(t *testing.T) {
	s, k := newSiteWithUsage(t)
	b := s.signIn("ada@example.org")
	for query, want := range map[string]int{
		"":                             6,
		"key=" + k.ID:                  4,
		"model=llama-405b":             2,
		"failed=1":                     1,
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
		if got := len(rows(t, b.get("/usage/csv?by=request&"+query).body)) - 1; got != want {
			t.Errorf("%s: got %d requests in the CSV file, want %d", query, got, want)
		}
	}
	has(t, b.get("/usage/requests").body, "vllm_oom", "502")
}

func TestForecastExtrapolatesTheMonth(t *testing.T) {
	at := func(text string) time.Time {
		parsed, err := time.Parse("2006-01-02", text)
		must(t, err)
		return parsed
	}
	for _, c := range []struct {
		now   string
		used  int64
		limit quota.Cap
		want  string
	}{
		{"2026-11-01", 100, quota.Unbounded(), ""},
		{"2026-11-11", 0, quota.Unbounded(), ""},
		{"2026-11-11", 1_000_000, quota.Unbounded(), "At this rate, about 3M by the end of the month."},
		{"2026-11-11", 1_000_000, quota.Limit(6_000_000), "At this rate, about 3M by the end of the month, 50 % of the budget."},
		{"2026-11-11", 1_000_000, quota.Limit(2_000_000), "At this rate, about 3M by the end of the month: the budget will be used up around 21 Nov."},
		{"2026-11-11", 1_000_000, quota.Limit(1_000_000), "Budget used up."},
		{"2026-12-01", 1_000_000, quota.Unbounded(), ""},
	} {
		if got := console.ForecastText(at("2026-11-01"), at(c.now), c.used, c.limit); got != c.want {
			t.Errorf("%+v: got %q", c, got)
		}
	}
}
