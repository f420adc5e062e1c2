package console_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"basegate/gateway/config"
)

// Pages of a user say nothing of what the operator runs: commands, addresses, names of backends and settings.
func TestUsersSeeNothingOfTheOperators(t *testing.T) {
	s := newSite(t)
	address := &url.URL{Scheme: "http", Host: "backend.internal:8000"}
	managed := config.Model{ID: "managed", Checkpoint: "org/managed", Backends: []config.Backend{{Name: "gpubox7", URL: address, Launch: &config.Launch{
		Start: []string{"/opt/start-vllm", "--port=8000"}, Stop: []string{"/opt/stop-vllm"}, BootEstimate: time.Minute, BootTimeout: time.Minute,
	}}}}
	down := config.Model{ID: "down", Checkpoint: "org/down", Backends: []config.Backend{{Name: "gpubox8", URL: address, APIKey: config.NewSecret("backend-key")}}}
	s.reload(managed, down)
	s.account("ada@example.org", false)
	user := s.signIn("ada@example.org")
	for _, path := range []string{"/dashboard", "/workbench", "/usage", "/account"} {
		page := user.get(path)
		if page.status != http.StatusOK {
			t.Errorf("%s: got %d", path, page.status)
		}
		wantNothingOfTheOperator(t, path, page.body)
	}
	if page := user.get("/dashboard"); !strings.Contains(page.body, "managed") || !strings.Contains(page.body, "down") {
		t.Error("the dashboard does not list the models")
	}
	if page := user.get("/admin/models"); page.status == http.StatusOK || strings.Contains(page.body, "gpubox7") {
		t.Errorf("/admin/models as a user: got %d %s", page.status, page.body)
	}
}

func wantNothingOfTheOperator(t *testing.T, path, body string) {
	t.Helper()
	for _, own := range []string{
		"start-vllm", "stop-vllm", "--port", "gpubox", "backend.internal", "backend-key", "config.yaml", "launch", "max_model_len:",
		"idle_after", "basegate serve", "basegate check", "basegate model", "basegate key", "basegate account",
	} {
		if strings.Contains(body, own) {
			t.Errorf("%s shows a user %q", path, own)
		}
	}
}
