package console_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"basegate/budget"
	"basegate/console"
)

func TestUnknownPathsAndMethodsGetTheNotFoundPage(t *testing.T) {
	s := newSite(t)
	s.account("root@example.org", true)
	b := s.signIn("root@example.org")
	for _, c := range []struct{ method, path string }{
		{http.MethodGet, "/admin/nowhere"},
		{http.MethodGet, "/sign-in/"},
		{http.MethodGet, "/sign-in/more"},
		{http.MethodGet, "/static"},
		{http.MethodPost, "/static/none/console.css"},
		{http.MethodGet, "/keys"},
		{http.MethodGet, "/models/llama-8b/warm"},
		{http.MethodGet, "/tutorial/overview/more"}, // a parameter is one segment
		{http.MethodGet, "/invitation/"},
		{http.MethodPost, "/keys//pause"},
		{http.MethodPost, "/"},
		{http.MethodPost, "/dashboard"},
		{http.MethodDelete, "/account"},
		{http.MethodPut, "/admin/accounts"},
		{http.MethodOptions, "/sign-in"},
		{http.MethodGet, "/console/nowhere"},
	} {
		got := b.send(c.method, c.path, nil)
		if got.status != http.StatusNotFound || !strings.HasPrefix(got.header.Get("Content-Type"), "text/html") {
			t.Errorf("%s %s: got %d %s, want 404 and a page", c.method, c.path, got.status, got.header.Get("Content-Type"))
		}
		has(t, got.body, "Page not found")
		has(t, got.header.Get("Content-Security-Policy"), "default-src 'none'")
	}
	for _, c := range []struct{ method, path string }{
		{http.MethodGet, "/console/api/nowhere"},
		{http.MethodGet, "/console/api/completions"},
		{http.MethodGet, "/console/api/chat/completions"},
		{http.MethodOptions, "/console/api/prompts"},
	} {
		got := b.send(c.method, c.path, nil)
		if got.status != http.StatusNotFound || got.header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %s: got %d %s, want 404 and JSON", c.method, c.path, got.status, got.header.Get("Content-Type"))
		}
	}
}

func TestRoutesForGETServeHEAD(t *testing.T) {
	b := newSite(t).browser()
	for _, path := range []string{"/sign-in", "/llms.txt"} {
		got := b.send(http.MethodHead, path, nil)
		if got.status != http.StatusOK || got.body != "" {
			t.Errorf("%s: got %d and a body of %d bytes, want 200 and none", path, got.status, len(got.body))
		}
	}
}

// Echo matches some paths undecoded: then it is the console that decodes the parameters.
func TestPathParametersAreDecoded(t *testing.T) {
	b := newSite(t).browser()
	for _, path := range []string{"/tutorial/overview", "/tutorial/over%76iew"} {
		if got := b.get(path); got.status != http.StatusOK {
			t.Errorf("%s: got %d, want 200", path, got.status)
		}
	}
}

// panicker is a Completer that panics.
type panicker struct{ value any }

func (p panicker) ServeOnBehalfOf(_, _, _ string, _ http.ResponseWriter, _ *http.Request) {
	panic(p.value)
}

func (p panicker) AllowFreeText(budget.Payer, int64) error { panic(p.value) }

func TestPanicBecomesAnErrorResponseAndItsValueIsNotLogged(t *testing.T) {
	core, logs := observer.New(zap.ErrorLevel)
	s := newSite(t, func(_ *console.Settings, d *console.Deps) {
		d.Completer, d.Log = panicker{"a private prompt"}, zap.New(core)
	})
	s.account("ada@example.org", false)
	got := s.signIn("ada@example.org").sendJSON(http.MethodPost, "/console/api/completions", `{}`)
	if got.status != http.StatusInternalServerError || gjson.Get(got.body, "error.code").Str != "internal_error" {
		t.Errorf("got %d %s, want 500 and internal_error", got.status, got.body)
	}
	entries := logs.FilterMessage("panic").All()
	if len(entries) != 1 || entries[0].ContextMap()["path"] != "/console/api/completions" {
		t.Errorf("got %d log entries of a panic: %v, want 1 with the path", len(entries), entries)
	}
	for _, e := range logs.All() {
		lacks(t, fmt.Sprint(e.Message, e.ContextMap()), "a private prompt")
	}
}

func TestAbortedResponseClosesTheConnection(t *testing.T) {
	s := newSite(t, func(_ *console.Settings, d *console.Deps) { d.Completer = panicker{http.ErrAbortHandler} })
	s.account("ada@example.org", false)
	b := s.signIn("ada@example.org")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.url+"/console/api/completions", strings.NewReader("{}"))
	must(t, err)
	req.Header.Set("Sec-Fetch-Site", "same-origin")
	if resp, err := b.client.Do(req); err == nil {
		resp.Body.Close()
		t.Errorf("got status %d, want a closed connection", resp.StatusCode)
	}
}
