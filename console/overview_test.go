package console_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"basegate/budget"
	"basegate/budget/admission"
	"basegate/budget/cluster"
	"basegate/console"
	"basegate/console/history"
	"basegate/internal/poll"
	"basegate/proxy"
)

// overviewData returns what the page's script draws.
func overviewData(t *testing.T, page string) gjson.Result {
	t.Helper()
	_, rest, _ := strings.Cut(page, `id="chart-data">`)
	data, _, found := strings.Cut(rest, "</script>")
	if !found || !gjson.Valid(data) {
		t.Fatalf("the page has no valid data for its script:\n%s", page)
	}
	return gjson.Parse(data)
}

func TestOverviewShowsFiguresByModelAndBackend(t *testing.T) {
	s := newSite(t)
	s.account("root@example.org", true)
	for range 60 {
		s.history.Record(proxy.Ended{Model: "llama-8b", Backend: "gpu1", Prompt: 1000, Completion: 200, FirstToken: 300 * time.Millisecond})
	}
	s.history.Record(proxy.Ended{Model: "llama-405b", Backend: "node1", Code: "out_of_memory"})
	for range 2 {
		s.history.Record(proxy.Ended{Model: "llama-405b", Backend: "node1", Code: "context_length_exceeded"})
	}
	s.history.Record(proxy.Ended{Model: "llama-405b", Backend: "node1", Code: "client_gone"})
	b := s.signIn("root@example.org")
	page := b.get("/admin/overview")
	wantStatus(t, "overview", page, http.StatusOK)
	has(t, page.body, "Errors of the service", "Refused", `<td class="n nowrap">25.0`+"\u202f"+`%</td><td class="n nowrap">50.0`+"\u202f"+`%</td>`)
	has(t, page.body, "llama-8b", "gpu1", "node1", "out_of_memory", "72,000", "aria-current=\"page\">Overview")
	data := overviewData(t, page.body)
	if got := data.Get(`charts.#(id=="requests").series.#.name`).String(); got != `["all","llama-405b","llama-8b"]` {
		t.Errorf("lines of the requests: got %s, want all requests and each model", got)
	}
	values := data.Get(`charts.#(id=="requests").series.0.values`).Array()
	if begin := data.Get("begin").Int(); len(values) != 30 || data.Get("points").Int() != 30 || time.Since(time.Unix(begin, 0)) > 5*time.Minute {
		t.Errorf("got %d points since %d of a gateway that has just started, want the 30 of the last five minutes", len(values), begin)
	}
	var sum float64
	for _, v := range values {
		sum += 10 * v.Float()
	}
	if sum < 63.9 || sum > 64.1 {
		t.Errorf("the chart of the requests shows %v requests, want 64", sum)
	}
	for chart, want := range map[string]string{"errors": `["out_of_memory"]`, "refusals": `["context_length_exceeded","client_gone"]`} {
		if got := data.Get(`charts.#(id=="` + chart + `").series.#.name`).String(); got != want {
			t.Errorf("lines of the %s: got %s, want %s", chart, got, want)
		}
	}
	errors, refusals, _ := strings.Cut(page.body[strings.Index(page.body, `id="overview-errors"`):], `id="overview-refusals"`)
	has(t, errors, `<a href="/usage/requests?account=all&amp;q=out_of_memory"><code>out_of_memory</code></a>`)
	lacks(t, errors, "context_length_exceeded", "client_gone")
	has(t, refusals, "context_length_exceeded", "client_gone")

	one := b.get("/admin/overview?period=day&series=llama-8b+%2F+gpu1")
	has(t, one.body, `<option selected>llama-8b / gpu1</option>`, `value="day" selected`)
	data = overviewData(t, one.body)
	if got := data.Get(`charts.#(id=="tokens").series.#.name`).String(); got != `["llama-8b / gpu1"]` {
		t.Errorf("lines of a backend: got %s, want its own", got)
	}
	if got := data.Get("points").Int(); got != 2 {
		t.Errorf("got %d points of the last day, want 2", got)
	}
}

func TestOverviewListsTheTopAccountsAndKeysOfTheHour(t *testing.T) {
	s := newSite(t)
	s.account("root@example.org", true)
	s.account("ada@example.org", false)
	s.account("eve@example.org", false)
	few, _ := s.key("ada@example.org", "few")
	many, _ := s.key("ada@example.org", "many")
	own, _ := s.key("eve@example.org", "own")
	s.addRequest(few, budget.Request{}, 100, 5, "")
	s.addRequest(many, budget.Request{}, 2000, 34, "")
	s.addRequest(own, budget.Request{}, 900, 1, "")
	page := s.signIn("root@example.org").get("/admin/overview").body
	_, page, _ = strings.Cut(page, `id="overview-accounts"`)
	accounts, keys, _ := strings.Cut(page, `id="overview-keys"`)
	has(t, accounts, ">ada@example.org</a>", ">2</a>", "2,139", "901")
	keys, _, _ = strings.Cut(keys, "</table>")
	has(t, keys, ">many</a>", "2,034", "/usage/requests?account="+many.AccountID+"&amp;key="+many.ID)
	if strings.Index(keys, ">many<") > strings.Index(keys, ">own<") || strings.Index(keys, ">own<") > strings.Index(keys, ">few<") {
		t.Errorf("the keys are not ordered by their tokens:\n%s", keys)
	}
}

func TestOverviewListsTheGatewaysOnOneDatabase(t *testing.T) {
	alone := newSite(t)
	alone.account("root@example.org", true)
	lacks(t, alone.signIn("root@example.org").get("/admin/overview").body, "overview-gateways")

	s := newSite(t, func(_ *console.Settings, d *console.Deps) {
		d.Gateways = func(context.Context) ([]cluster.Gateway, error) {
			return []cluster.Gateway{
				{Name: "gw-1", State: cluster.GatewayAlive, Epoch: 3, Version: "v1.2", InFlight: 1234, HeartbeatLag: 1.2},
				{Name: "gw-<2>", State: cluster.GatewaySilent, Epoch: 7, Version: "v1.1", HeartbeatLag: 15},
			}, nil
		}
	})
	s.account("root@example.org", true)
	page := s.signIn("root@example.org").get("/admin/overview").body
	has(t, page, "gw-1", `<span class="tag good">alive</span>`, "1,234", "v1.2", "gw-&lt;2&gt;", `<span class="tag bad">silent</span>`, "15", "ago")
}

func TestOverviewShowsWhoWaitsForWhat(t *testing.T) {
	uploads, reports := admission.NewTurns(1, 1), admission.NewTurns(2, 1)
	s := newSite(t, func(_ *console.Settings, d *console.Deps) {
		d.Turns = map[string]*admission.Turns{"uploads": uploads, "reports": reports}
	})
	s.account("root@example.org", true)
	ada, eve := s.account("ada@example.org", false), s.account("eve@example.org", false)
	b := s.signIn("root@example.org")
	has(t, b.get("/admin/overview").body, "Who waits for what", "Nobody")
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer cancel()
	for _, held := range []struct {
		turns   *admission.Turns
		account string
	}{{uploads, ada.ID}, {reports, "unnamed 7"}} {
		_, err := held.turns.Acquire(ctx, held.account)
		must(t, err)
	}
	waiting.Go(func() { uploads.Acquire(ctx, eve.ID) })
	poll.Until(t, "an upload waits", func() bool { return uploads.Stats().Waiting == 1 })
	page := b.get("/admin/overview").body
	_, page, _ = strings.Cut(page, `id="overview-turns"`)
	page, _, _ = strings.Cut(page, "</table>")
	has(t, page, "Uploads of files", `<a href="/admin/accounts/`+ada.ID+`">ada@example.org</a>`, "eve@example.org", "Reports", "the gateway", `<td class="n">1</td><td class="n nowrap">`)
	lacks(t, page, "unnamed")
}

func TestOverviewNamesTheAccountsOfBudgetAlarms(t *testing.T) {
	s := newSite(t)
	s.account("root@example.org", true)
	s.account("ada@example.org", false)
	k, _ := s.key("ada@example.org", "laptop")
	s.history.Add(t.Context(), history.Event{Kind: history.BudgetNear, AccountID: k.AccountID, KeyID: k.ID, Detail: "80 of 100 tokens"})
	s.history.Add(t.Context(), history.Event{Kind: history.BreakerOpened, Model: "llama-8b", Backend: "gpu1"})
	s.history.Add(t.Context(), history.Event{Kind: history.BootFailed, Model: "llama-8b", Backend: "gpu1", Detail: "launch: <exit status 3>"})
	page := s.signIn("root@example.org").get("/admin/overview").body
	has(t, page, "Budget 80\u202f% used", "ada@example.org, key laptop", `href="/admin/keys/`+k.ID+`"`, "80 of 100 tokens",
		"Breaker opened", "llama-8b / gpu1", "launch: &lt;exit status 3&gt;")
	if strings.Index(page, "Boot failed") > strings.Index(page, "Budget 80") {
		t.Error("an older event is above a newer one")
	}
}

// The charts have the starts and the ends of the backends that they show, and no other events.
func TestOverviewMarksBootsAndDeaths(t *testing.T) {
	s := newSite(t)
	s.account("root@example.org", true)
	s.history.Record(proxy.Ended{Model: "llama-8b", Backend: "gpu1"})
	for _, e := range []history.Event{
		{Kind: history.BootBegun, Model: "llama-8b", Backend: "gpu1"},
		{Kind: history.BootEnded, Model: "llama-8b", Backend: "gpu1", Time: time.Now().Add(-10 * time.Minute)},
		{Kind: history.BackendDied, Model: "llama-8b", Backend: "gpu1"},
		{Kind: history.BootFailed, Model: "llama-405b", Backend: "node1"},
	} {
		s.history.Add(t.Context(), e)
	}
	b := s.signIn("root@example.org")
	for path, want := range map[string]string{
		"/admin/overview": `["llama-405b / node1: Boot failed","llama-8b / gpu1: Does not respond","llama-8b / gpu1: Boot ended: ready"]`,
		"/admin/overview?period=quarter&series=llama-8b": `["llama-8b / gpu1: Does not respond","llama-8b / gpu1: Boot ended: ready"]`,
	} {
		data := overviewData(t, b.get(path).body)
		if got := data.Get("marks.#.text").String(); got != want {
			t.Errorf("marks of %s: got %s, want %s", path, got, want)
		}
		if at := data.Get("marks.0.time").Int(); at < data.Get("begin").Int() {
			t.Errorf("marks of %s: got one at %d, before the charts begin", path, at)
		}
	}
	if points := overviewData(t, b.get("/admin/overview?period=quarter").body).Get("points").Int(); points != 61 {
		t.Errorf("got %d points of the last 15 minutes, want the 61 since the first mark", points)
	}
}

func TestOverviewOfAQuietGatewayIsComplete(t *testing.T) {
	s := newSite(t)
	s.account("root@example.org", true)
	b := s.signIn("root@example.org")
	for _, path := range []string{"/admin/overview", "/admin/overview?period=day", "/admin/overview?period=never&series=none"} {
		page := b.get(path)
		wantStatus(t, path, page, http.StatusOK)
		has(t, page.body, "Nothing happened in this period", "None in this period", "All requests")
		overviewData(t, page.body)
	}
	wantRedirect(t, "administration", b.get("/admin"), "/admin/overview")
}

func TestOnlyAdministratorsSeeTheOverview(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	wantStatus(t, "overview of a user", s.signIn("ada@example.org").get("/admin/overview"), http.StatusNotFound)
	if got := s.browser().get("/admin/overview"); got.status != http.StatusSeeOther {
		t.Errorf("overview without signing in: got %d, want a redirect", got.status)
	}
}

// Vendored files are those of the package that their README names.
func TestVendoredFilesHaveTheirChecksums(t *testing.T) {
	folders, err := filepath.Glob("static/vendor/*")
	must(t, err)
	for _, folder := range folders {
		sums, err := os.ReadFile(filepath.Join(folder, "SHA256SUMS"))
		must(t, err)
		listed := map[string]bool{"SHA256SUMS": true, "README.md": true}
		for line := range strings.Lines(string(sums)) {
			want, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
			listed[name] = true
			content, err := os.ReadFile(filepath.Join(folder, name))
			must(t, err)
			if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != want {
				t.Errorf("%s/%s is not the file whose checksum is recorded", folder, name)
			}
		}
		files, err := os.ReadDir(folder)
		must(t, err)
		for _, f := range files {
			if !listed[f.Name()] {
				t.Errorf("%s/%s has no checksum", folder, f.Name())
			}
		}
		if !listed["LICENSE"] {
			t.Errorf("%s has no licence", folder)
		}
	}
}
