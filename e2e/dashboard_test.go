//go:build e2e

package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"basegate/internal/loopback"
	"basegate/internal/poll"
	"basegate/mockvllm"
)

const dashboardFile = "../deploy/grafana/dashboards/basegate.json"

// withoutPanel are the gateway's metrics that no panel shows, each with the reason.
var withoutPanel = map[string]string{}

// dashboardQuery is a query of a panel.
type dashboardQuery struct{ panel, expr string }

// dashboardQueries returns the queries of all panels, with every model in place of the dashboard's variable and a rate
// interval for scrapes every second.
func dashboardQueries(t *testing.T) []dashboardQuery {
	t.Helper()
	text, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	var queries []dashboardQuery
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			expr := strings.NewReplacer("$model", ".*", "$__rate_interval", "30s").Replace(target.Expr)
			queries = append(queries, dashboardQuery{p.Title, expr})
		}
	}
	return queries
}

// startDashboardGateway starts a gateway with a backup, whose models have backends of the same name: one of them is
// dead, and one has not been launched.
func startDashboardGateway(t *testing.T) (*gateway, *mockvllm.Process) {
	t.Helper()
	mock := startMock(t, mockvllm.Options{Models: []string{checkpoint}})
	deadURL := "http://" + loopback.Address(t)
	models := strings.Join([]string{
		modelConfig("m", mock.URL()), modelConfig("other", mock.URL()), modelConfig("dead", deadURL),
		fmt.Sprintf(`{id: cold, checkpoint: org/cold, backends: [{name: b0, url: %q, launch: {start: ["true"], stop: ["true"]}}]}`, deadURL),
	}, ", ")
	env := newEnvironment(t, settings{models: models})
	env.run("backup", filepath.Join(env.dir, "backup.db"))
	return env.serve(), mock
}

// sendDashboardLoad sends requests of every kind that a panel shows.
func sendDashboardLoad(g *gateway) {
	for _, model := range []string{"m", "other", "dead"} {
		g.complete(fmt.Sprintf(`{"model": %q, "prompt": "x", "max_tokens": 4}`, model))
		g.complete(fmt.Sprintf(`{"model": %q, "prompt": "x", "max_tokens": 4, "stream": true}`, model))
	}
	g.complete(`{"model": "m", "prompt": "x", "temperature": 3}`)
}

// checkPanels checks that each metric on a gateway's page has a panel or a reason. A metric without a panel is one that nobody
// looks at before it is needed.
func checkPanels(t *testing.T, page string) {
	t.Helper()
	var shown strings.Builder
	for _, q := range dashboardQueries(t) {
		shown.WriteString(q.expr + "\n")
	}
	families := regexp.MustCompile(`(?m)^# TYPE (basegate_[a-z0-9_]+) `).FindAllStringSubmatch(page, -1)
	if len(families) < 20 {
		t.Fatalf("the gateway exports %d metrics, want at least 20", len(families))
	}
	exported := map[string]bool{}
	for _, family := range families {
		name := family[1]
		exported[name] = true
		panel := regexp.MustCompile(`\b` + name + `(_bucket|_sum|_count)?\b`).MatchString(shown.String())
		switch reason, listed := withoutPanel[name]; {
		case panel && listed:
			t.Errorf("%s has a panel, but withoutPanel says that it has none because %s", name, reason)
		case !panel && reason == "":
			t.Errorf("%s has no panel in %s, and withoutPanel has no reason", name, dashboardFile)
		}
	}
	for name := range withoutPanel {
		if !exported[name] {
			t.Errorf("withoutPanel has %s, which the gateway does not export", name)
		}
	}
}

// Models may have backends of the same name, so a panel that shows backends must show their models too.
func TestPanelsOfBackendsNameTheModel(t *testing.T) {
	aggregation := regexp.MustCompile(`by \(([^)]*)\)`)
	for _, q := range dashboardQueries(t) {
		for _, labels := range aggregation.FindAllStringSubmatch(q.expr, -1) {
			if strings.Contains(labels[1], "backend") && !strings.Contains(labels[1], "model") {
				t.Errorf("panel %q: %s adds up backends of different models", q.panel, q.expr)
			}
		}
	}
}

// Prometheus scrapes a gateway and a mock under load, and every query of the dashboard must return numbers.
func TestEveryPanelHasData(t *testing.T) {
	t.Parallel() // it waits for scrapes
	if _, err := exec.LookPath("prometheus"); err != nil {
		t.Skip("prometheus is not installed: apt-get install prometheus")
	}
	g, mock := startDashboardGateway(t)
	base := startPrometheus(t, g.admin, mock.URL())
	for _, q := range dashboardQueries(t) {
		poll.Until(t, fmt.Sprintf("panel %q has data for %s", q.panel, q.expr), func() bool {
			sendDashboardLoad(g)
			body := g.get(base, "/api/v1/query?query="+url.QueryEscape(q.expr)).body
			if gjson.Get(body, "status").Str == "error" {
				t.Fatalf("panel %q: %s: %s", q.panel, q.expr, body)
			}
			for _, value := range gjson.Get(body, "data.result.#.value.1").Array() {
				if value.Str != "NaN" {
					return true
				}
			}
			return false
		})
	}
}

// startPrometheus starts a Prometheus that scrapes a gateway and a backend of its model m, and returns its address.
func startPrometheus(t *testing.T, gatewayURL, backendURL string) string {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yaml")
	target := func(address string) string { return strings.TrimPrefix(address, "http://") }
	writeFile(t, config, fmt.Sprintf(`global: {scrape_interval: 1s}
scrape_configs:
  - {job_name: basegate, static_configs: [{targets: [%q]}]}
  - {job_name: vllm, static_configs: [{targets: [%q], labels: {model: m}}]}
`, target(gatewayURL), target(backendURL)))
	address := loopback.Address(t) // Prometheus does not report the port that it was given for 0
	output := newOutput(t)
	cmd := exec.Command("prometheus", "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)
	cmd.Stdout, cmd.Stderr = output, output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Log(output.tail())
		}
	})
	poll.Until(t, "Prometheus is ready", func() bool { return output.contains("Server is ready to receive web requests") })
	return "http://" + address
}
