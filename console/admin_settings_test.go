package console_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"basegate/console"
	"basegate/gateway/config"
)

func TestAdministratorsTestTheChannelsThatAreConfigured(t *testing.T) {
	var tested []string
	answer := error(nil)
	s := newSite(t, func(s *console.Settings, d *console.Deps) {
		s.Configuration = []config.Setting{{Key: "notifications.webhook", Value: "https://chat.example.org/…"}, {Key: "mail.smtp"}}
		d.TestWebhook = func(_ context.Context, channel, by string) error {
			tested = append(tested, channel+" by "+by)
			return answer
		}
	})
	s.account("root@example.org", true)
	s.account("ada@example.org", false)
	b := s.signIn("root@example.org")
	page := b.get("/admin/settings").body
	has(t, page, `action="/admin/settings/test/webhook"`, "not configured")
	lacks(t, page, "/admin/settings/test/mail")

	got := b.post("/admin/settings/test/webhook")
	wantRedirect(t, "test", got, "/admin/settings")
	has(t, b.follow(got).body, "Webhook of notifications: the test message was accepted.")
	lacks(t, b.get("/admin/settings").body, "was accepted")
	answer = errors.New("refused: status 404")
	got = b.post("/admin/settings/test/webhook")
	wantStatus(t, "a webhook that refuses", got, http.StatusUnprocessableEntity)
	has(t, got.body, `role="alert"`, "Webhook of notifications: the test message was not sent: refused: status 404.")
	got = b.post("/admin/settings/test/mail")
	wantStatus(t, "mail without a server", got, http.StatusUnprocessableEntity)
	has(t, got.body, "no mail server is configured")
	wantStatus(t, "an unknown channel", b.post("/admin/settings/test/pigeon"), http.StatusNotFound)
	wantStatus(t, "a user", s.signIn("ada@example.org").post("/admin/settings/test/webhook"), http.StatusNotFound)
	if len(tested) != 2 || tested[0] != "webhook by root@example.org" {
		t.Errorf("got tests %q, want two of the webhook", tested)
	}
}

func TestSettingsAreListedByModel(t *testing.T) {
	s := newSite(t, func(s *console.Settings, _ *console.Deps) {
		s.Configuration = []config.Setting{
			{Key: "server.listen", Value: ":1", Changed: true},
			{Key: "models[0].id", Value: "llama-8b", Changed: true},
			{Key: "models[0].chat", Value: "false"},
			{Key: "models[1].id", Value: "llama-405b", Changed: true},
		}
	})
	s.account("root@example.org", true)
	page := s.signIn("root@example.org").get("/admin/settings").body
	_, first, _ := strings.Cut(page, "<h2>Model llama-8b</h2>")
	first, second, found := strings.Cut(first, "<h2>Model llama-405b</h2>")
	if !found {
		t.Fatalf("the page has no section for each model:\n%s", page)
	}
	has(t, first, "models[0].chat", "Settings of llama-8b that have their default (1)")
	lacks(t, first, "server.listen", "models[1]")
	has(t, second, "models[1].id")
}
