//go:build e2e

package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"basegate/internal/poll"
	"basegate/internal/postgrestest"
)

// An alert on a metric that does not exist never fires, and its panel stays empty, without an error anywhere. So each
// metric in the alerts and the dashboard must be one of the gateway's or of the mock's, which has vLLM's names; and each of the
// gateway's must have a panel.
func TestAlertsAndDashboardMatchTheMetrics(t *testing.T) {
	g, mock := startDashboardGateway(t)
	sendDashboardLoad(g)
	cert, key, _ := certificate(t)
	launched := `{id: m, checkpoint: c, backends: [{name: b, url: "http://127.0.0.1:1", launch: {start: ["true"], stop: ["true"]}}]}`
	second := newEnvironment(t, settings{server: fmt.Sprintf(", tls: {cert: %q, key: %q}", cert, key), models: launched}).serve()
	third := newEnvironment(t, settings{postgres: postgrestest.Shared(t)}, mock.URL()).serve()
	poll.Until(t, "the age of snapshots is known", func() bool {
		return strings.Contains(third.get(third.admin, "/metrics").body, "\nbasegate_database_oldest_snapshot_age_seconds ")
	})
	metrics := g.get(g.admin, "/metrics").body
	checkPanels(t, metrics)
	has := map[string]bool{}
	for _, page := range []string{
		metrics, second.get(second.admin, "/metrics").body, third.get(third.admin, "/metrics").body,
		g.get(mock.URL(), "/metrics").body,
	} {
		for _, sample := range regexp.MustCompile(`(?m)^[a-z][a-z0-9_:]*`).FindAllString(page, -1) {
			has[sample] = true
		}
	}
	named := 0
	for _, file := range []string{"prometheus/alerts.yaml", "grafana/dashboards/basegate.json"} {
		text, err := os.ReadFile(filepath.Join("../deploy", file))
		if err != nil {
			t.Fatal(err)
		}
		for _, metric := range regexp.MustCompile(`\b(?:basegate_|vllm:)[a-z0-9_]+`).FindAllString(string(text), -1) {
			named++
			if !has[metric] {
				t.Errorf("%s: neither the gateway nor vLLM has %s", file, metric)
			}
		}
	}
	if named < 30 {
		t.Errorf("found only %d metric names in the alerts and the dashboard, want at least 30", named)
	}
}
