//go:build e2e

package e2e_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// An alert on a metric that does not exist never fires, and its panel stays empty, without an error anywhere. So each
// metric in the alerts and the dashboard must be one of the gateway's or of the mock's, which has vLLM's names.
func TestAlertsAndDashboardUseExistingMetrics(t *testing.T) {
	g, mock := startDashboardGateway(t)
	g.complete(smallRequest)
	g.complete(`{"model": "m", "prompt": "x", "stream": true}`)
	g.complete(`{"model": "m", "prompt": "x", "temperature": 3}`)
	has := map[string]bool{}
	for _, page := range []string{g.get(g.admin, "/metrics").body, g.get(mock.URL(), "/metrics").body} {
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
