package console_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"go.uber.org/zap"

	"basegate/console"
	"basegate/fleet"
	"basegate/gateway/config"
	"basegate/identity"
)

func TestAdaptersOnTheModelsPage(t *testing.T) {
	const id, page = "/adapters/sql/v3", "/admin/models/llama-8b/adapters"
	s := newSite(t, func(_ *console.Settings, d *console.Deps) {
		d.Fleet = fleet.New([]config.Model{{
			ID: "llama-8b", Checkpoint: "org/llama-8b", MaxAdapters: 1, Completions: true,
			Backends: []config.Backend{{Name: "gpu1", URL: &url.URL{Scheme: "http", Host: "127.0.0.1:9"}}},
		}}, fleetSettings, http.DefaultTransport, d.DB, zap.NewNop())
	})
	s.account("root@example.org", true)
	b := s.signIn("root@example.org")
	for _, wrong := range [][]string{{"id", "a b", "path", "/x"}, {"id", "a", "path", ""}, {"id", "llama-8b", "path", "/x"}} {
		if got := b.post(page, wrong...); got.status != http.StatusUnprocessableEntity {
			t.Errorf("%v: got %d", wrong, got.status)
		}
	}
	has(t, b.follow(b.post(page, "id", id, "path", id)).body, id+": added.", `name="id" value="/adapters/sql/v3"`)
	has(t, b.post(page, "id", "second", "path", "/x").body, "as many adapters as it may have")
	has(t, b.get("/console/api/workbench").body, `"id":"/adapters/sql/v3"`)
	has(t, b.get("/dashboard").body, id)
	has(t, b.get("/keys/new").body, `name="models" value="/adapters/sql/v3"`)
	has(t, b.follow(b.post(page+"/remove", "id", id)).body, id+": removed.")
	if got := b.post(page+"/remove", "id", id); !strings.Contains(got.body, "no such adapter") {
		t.Errorf("removed twice: got %d %s", got.status, got.body)
	}
	changes, _, err := s.auditLog.Find(t.Context(), identity.AuditFilter{}, "", 2)
	must(t, err)
	if changes[0].Action != "remove adapter" || changes[1].Action != "add adapter" || changes[1].Subject != id {
		t.Errorf("the audit log has %+v", changes)
	}
}
