package console_test

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"basegate/budget"
	"basegate/budget/quota"
	"basegate/budget/usage"
	"basegate/database"
	"basegate/identity"
	"basegate/proxy"
)

// refuse inserts a refusal of a key, with the given id and code.
func (s *site) refuse(k identity.Key, id, code string, at time.Time) {
	s.t.Helper()
	must(s.t, s.db.WriteExclusive(s.t.Context(), func(tx database.Tx) error {
		ctx := s.t.Context()
		_, err := tx.ExecContext(ctx, `
			INSERT INTO refusals (request_id, time, key_id, account_id, model, backend, endpoint, workload, user_tag, stream,
				status, code, queue_us, boot_us, total_us, param, expected)
			VALUES ($1, $2, $3, $4, 'llama-8b', '', '/v1/completions', '', '', false, 429, $5, 0, 0, 1500, 'n', 'expected 1 to 8')`,
			id, at.UnixMicro(), k.ID, k.AccountID, code)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `
			INSERT INTO refusal_hours (account_id, period, code, requests) VALUES ($1, $2, $3, 7)
			ON CONFLICT DO NOTHING`, k.AccountID, at.Unix()/3600, code)
		return err
	}))
}

func TestRequestsOfEveryOutcomeAreListedAndFiltered(t *testing.T) {
	s, k := newSiteWithUsage(t)
	s.refuse(k, "req_R", "budget_exceeded", time.Now())
	b := s.signIn("ada@example.org")
	all := b.get("/usage/requests").body
	has(t, all, "req_AAAA", "req_Z", "req_R", "budget_exceeded", "vllm_oom", "refused")
	for query, want := range map[string]string{
		"ending=refused":                     "req_R",
		"ending=failed":                      "req_Y",
		"ending=succeeded&q=run-7":           "req_Z",
		"q=budget":                           "req_R",
		"from=2000-01-01&to=2000-01-02":      "",
		"ending=refused&key=" + k.ID + "x":   "",
		"ending=failed&model=llama-405b":     "req_Y",
		"ending=refused&q=budget&from=x&to=": "req_R",
	} {
		body := b.get("/usage/requests?" + query).body
		var got []string
		for _, m := range regexp.MustCompile(`/usage/requests/(req_\w+)"`).FindAllStringSubmatch(body, -1) {
			got = append(got, m[1])
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s lists %v, want %q", query, got, want)
		}
	}
	link := regexp.MustCompile(`href="(/usage/requests.csv[^"]+)"`).FindStringSubmatch(b.get("/usage/requests?model=llama-405b&ending=failed").body)
	if link == nil {
		t.Fatal("the page has no link to its CSV file")
	}
	if file := rows(t, b.get(strings.ReplaceAll(link[1], "&amp;", "&")).body); len(file) != 2 || file[1][0] != "req_Y" {
		t.Errorf("the CSV file of the failed requests of a model has the rows %v, want req_Y", file)
	}
	for ending, refused := range map[string]bool{"": false, "refused": true} {
		file := b.get("/usage/requests.csv?ending=" + ending).body
		if strings.Contains(file, "req_R") != refused || strings.Contains(file, "req_Z") == refused {
			t.Errorf("the CSV file of the ending %q is:\n%s", ending, file)
		}
	}
	if got := b.get("/usage/requests?after=nonsense").status; got != http.StatusNotFound {
		t.Errorf("a malformed cursor is answered with %d, want 404", got)
	}
}

func TestPagesOfRequestsFollowEachOther(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	k, _ := s.key("ada@example.org", "laptop")
	now := time.Now()
	for i := range 70 {
		s.refuse(k, fmt.Sprintf("req_R%02d", i), "overloaded", now.Add(-time.Duration(i)*time.Second))
	}
	b := s.signIn("ada@example.org")
	first := b.get("/usage/requests").body
	has(t, first, "req_R00", "req_R49")
	lacks(t, first, "req_R50", ">Newest<")
	older := regexp.MustCompile(`href="(/usage/requests\?[^"]+)" rel="next"`).FindStringSubmatch(first)
	if older == nil {
		t.Fatal("the first page has no link to older requests")
	}
	second := b.get(strings.ReplaceAll(older[1], "&amp;", "&")).body
	has(t, second, "req_R50", "req_R69", ">Newest<")
	lacks(t, second, "req_R49", `rel="next"`)
}

func TestPageOfARequestShowsItsTimesAttemptsAndCharge(t *testing.T) {
	s := newSite(t)
	a := s.account("ada@example.org", false)
	s.account("eve@example.org", false)
	s.account("root@example.org", true)
	k, _ := s.key("ada@example.org", "laptop")
	r, err := s.ledger.Reserve(t.Context(), budget.Payer{Key: k.ID, Account: a.ID}, budget.Request{
		ID: "req_D", Model: "llama-8b", Endpoint: "/v1/completions", Stream: true,
	}, budget.Demand{PromptTokens: 12, Exact: true, Candidates: 1, MaxTokens: 301}, nil)
	must(t, err)
	must(t, r.Settle(t.Context(), budget.Outcome{
		Prompt: 12, Completion: 301, Status: 200, Backend: "gpu2", Queue: time.Second, Boot: 2 * time.Second,
		FirstToken: 4 * time.Second, Total: 10 * time.Second,
		Reported: usage.Reported{CachedTokens: new(int64(8)), CreatedTokens: new(int64(4)), Queue: new(int64(2_000_000)), Prefill: new(int64(500_000))},
		Attempts: []usage.Attempt{
			{Backend: "gpu1", Class: "refused", Start: 3 * time.Second, Took: 10 * time.Millisecond},
			{Backend: "gpu2", Class: "success", Start: 3100 * time.Millisecond, Took: 6900 * time.Millisecond},
		},
	}))
	s.refuse(k, "req_R", "budget_exceeded", time.Now())
	b := s.signIn("ada@example.org")
	page := b.get("/usage/requests/req_D").body
	has(t, page, "12 prompt + 301 completion tokens", "50 tokens/s", "10.00\u202fs",
		"Boot <span class=\"soft\">2.00\u202fs", "Queue <span class=\"soft\">1.00\u202fs", "first token <span class=\"soft\">1.00\u202fs",
		"Stream <span class=\"soft\">6.00\u202fs", "gpu1", "refused", "gpu2", "success", `x="30%"`,
		"Cached: 8 of the prompt, 4 newly cached", "In the engine: queue 2.00\u202fs, prefill 500\u202fms, first token after 2.50\u202fs<")
	has(t, b.get("/usage/requests/req_R").body, "budget_exceeded", "Nothing: the request was refused",
		"The request exceeds what is left of a budget. Lower max_tokens, choose another key, or wait until the budget resets.",
		"<p>The field <code>n</code> was not accepted: expected 1 to 8.</p>", "<summary>Details</summary><code>429 · budget_exceeded · n · req_R</code>")
	for _, id := range []string{"req_D", "req_R"} {
		if got := s.signIn("eve@example.org").get("/usage/requests/" + id).status; got != http.StatusNotFound {
			t.Errorf("another account gets %s with status %d, want 404", id, got)
		}
	}
	if got := s.signIn("root@example.org").get("/usage/requests/req_D").status; got != http.StatusOK {
		t.Errorf("an administrator gets the request with status %d, want 200", got)
	}
	if got := b.get("/usage/requests/req_none").status; got != http.StatusNotFound {
		t.Errorf("an unknown request is answered with %d, want 404", got)
	}
}

func TestUsageOfAnyRangeIsShownAndExported(t *testing.T) {
	s, k := newSiteWithUsage(t)
	s.refuse(k, "req_R", "budget_exceeded", time.Now())
	b := s.signIn("ada@example.org")
	page := b.get("/usage?interval=hour&by=key").body
	has(t, page, "1,541", "laptop", "cluster", "Tokens per day", "budget_exceeded", "Time to first token") // 30 days are too many hours
	today := time.Now().UTC().Format(time.DateOnly)
	has(t, b.get("/usage?interval=hour&from="+today+"&to="+today).body, "Tokens per hour", "1,101")
	has(t, b.get("/usage?by=user").body, "run-7", "Latencies are not kept by user tag")
	has(t, b.get("/usage?by=endpoint&interval=month").body, "Tokens per month", "By Endpoint")
	lacks(t, b.get("/usage?model=llama-8b").body, "1,101", "User tag")
	has(t, b.get("/usage?from=1999-01-01&to=nonsense&by=x&interval=y").body, "1,541")
	has(t, b.get("/usage?from=2001-01-01&to=2001-02-01").body, "No tokens were used")

	for by, want := range map[string]string{
		"model": "llama-405b,2,1,1001,100,1101", "workload": "batch,2,1,1001,100,1101", "endpoint": ",6,1,1401,140,1541",
	} {
		text := b.get("/usage/export?what=groups&format=csv&by=" + by).body
		if !strings.Contains(text, "\n"+want+",") {
			t.Errorf("the file by %s has no line %s:\n%s", by, want, text)
		}
	}
	got := b.get("/usage/export?what=intervals&format=json&by=model")
	var rows []struct {
		Day    string
		Model  string
		Tokens int64 `json:"total_tokens"`
	}
	must(t, json.Unmarshal([]byte(got.body), &rows))
	if len(rows) != 2 || rows[0].Day != today || rows[0].Tokens+rows[1].Tokens != 1541 {
		t.Errorf("the intervals as JSON: %s", got.body)
	}
	if name := got.header.Get("Content-Disposition"); !strings.Contains(name, "by-day-model.json") {
		t.Errorf("the file is called %s", name)
	}
	links := regexp.MustCompile(`href="(/usage/export[^"]+)"`).FindAllStringSubmatch(b.get("/usage?model=llama-405b&by=key").body, -1)
	if len(links) != 5 {
		t.Fatalf("the page has %d links to files, want 5", len(links))
	}
	for _, l := range links {
		file := b.get(strings.ReplaceAll(l[1], "&amp;", "&"))
		tokens := "1101"
		if strings.Contains(l[1], "what=requests") {
			tokens = "1000,100"
		}
		has(t, file.body, "cluster", tokens)
		lacks(t, file.body, "laptop")
	}
	if got := b.get("/usage/export?format=xml").status; got != http.StatusNotFound {
		t.Errorf("an unknown format is answered with %d", got)
	}
	if got := b.get("/usage?account=all").status; got != http.StatusNotFound {
		t.Errorf("a user gets the usage of all accounts with status %d", got)
	}
}

func TestUsageIsComparedWithTheRangeBefore(t *testing.T) {
	s := newSite(t)
	a := s.account("ada@example.org", false)
	k, _ := s.key("ada@example.org", "laptop")
	for days, tokens := range map[int]int64{0: 300, 1: 300, 2: 100, 3: 300, 4: 9999} {
		s.insertEnded(a, k, fmt.Sprint("req_", days), tokens, time.Now().UTC().AddDate(0, 0, -days))
	}
	from := time.Now().UTC().AddDate(0, 0, -1).Format(time.DateOnly)
	page := s.signIn("ada@example.org").get("/usage?from=" + from).body
	has(t, page, ">600<", "&#43;50\u202f%", "against 400")
}

// insertEnded inserts a request that has ended.
func (s *site) insertEnded(a identity.Account, k identity.Key, id string, tokens int64, at time.Time) {
	s.t.Helper()
	must(s.t, s.db.WriteExclusive(s.t.Context(), func(tx database.Tx) error {
		_, err := tx.ExecContext(s.t.Context(), `
			INSERT INTO requests (request_id, time, key_id, account_id, model, backend, endpoint, workload, user_tag, stream,
				status, code, state, prompt_tokens, completion_tokens, queue_us, first_token_us, total_us)
			VALUES ($1, $2, $3, $4, 'llama-8b', 'gpu1', '/v1/completions', '', '', true, 200, '', 'settled', $5, 0, 0, 250000, 900000)`,
			id, at.UnixMicro(), k.ID, a.ID, tokens)
		return err
	}))
}

func TestDashboardBeginsWithWhatIsLeft(t *testing.T) {
	s := newSite(t)
	a := s.account("ada@example.org", false)
	b := s.signIn("ada@example.org")
	has(t, b.get("/dashboard").body, "Unlimited", "First steps", "Create a key", "$BASEGATE_KEY", "OpenAI(base_url=")
	_, err := s.accounts.Set(t.Context(), "ada@example.org", func(f *identity.Account) {
		f.Caps[quota.MonthTotal], f.Caps[quota.DayTotal] = quota.Limit(100_000), quota.Limit(2000)
	})
	must(t, err)
	k, _ := s.key("ada@example.org", "laptop")
	s.addRequest(k, budget.Request{ID: "req_1"}, 500, 40, "")
	for days := 1; days <= 5; days++ {
		s.insertEnded(a, k, fmt.Sprint("req_d", days), 1000, time.Now().UTC().AddDate(0, 0, -days))
	}
	page := b.get("/dashboard").body
	has(t, page, "1,460", "daily budget of 2,000", "A usual day has 1,000.", `<rect class="used" width="27%"`)
	lacks(t, page, "First steps", `class="spark"`, "of 2,000</span>") // six days are no chart, and the limit is not shown twice
	s.insertEnded(a, k, "req_d6", 1000, time.Now().UTC().AddDate(0, 0, -6))
	has(t, b.get("/dashboard").body, `aria-label="6,540 tokens in the last 30 days"`)
	has(t, b.get("/keys/"+k.ID).body, "6,540 tokens in the last 30 days", "/usage/requests/req_1", "llama-8b")
}

func TestDashboardShowsTheMedianDecodeSpeedOfStreams(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	for _, e := range []proxy.Ended{
		{Completion: 51, FirstToken: time.Second, Total: 2 * time.Second},
		{Completion: 121, FirstToken: 10 * time.Second, Total: 12 * time.Second},
		{Completion: 701, FirstToken: time.Second, Total: 2 * time.Second},
		{Completion: 3, FirstToken: time.Second, Total: 2 * time.Second, Code: "client_gone"},
		{Completion: 1, FirstToken: time.Second, Total: 2 * time.Second},
		{Completion: 2, Total: time.Minute}, // not streamed
	} {
		e.Model, e.Backend = "llama-8b", "gpu1"
		s.history.Record(e)
	}
	page := s.signIn("ada@example.org").get("/dashboard").body
	has(t, page, "to first token")
	lacks(t, page, "no streams")
	found := regexp.MustCompile(`([0-9.]+) <span class="soft">tokens/s</span>`).FindStringSubmatch(page)
	if found == nil {
		t.Fatalf("no decode speed in:\n%s", page)
	}
	if speed, err := strconv.ParseFloat(found[1], 64); err != nil || math.Abs(speed-60) > 60./8 {
		t.Errorf("got %s tokens a second, want 60 within an eighth", found[1])
	}
}
