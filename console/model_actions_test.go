package console_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"basegate/gateway/config"
	"basegate/internal/poll"
)

// manage replaces the fleet's models with one that the gateway can start and stop: by a command, or else by one that does not exist.
func (s *site) manage(id string, start ...string) {
	s.t.Helper()
	server := httptest.NewServer(http.NotFoundHandler())
	s.t.Cleanup(server.Close)
	address, err := url.Parse(server.URL)
	must(s.t, err)
	if len(start) == 0 {
		start = []string{"/nowhere/start-vllm"}
	}
	s.reload(config.Model{ID: id, Checkpoint: "org/" + id, Backends: []config.Backend{{Name: "gpu1", URL: address, Launch: &config.Launch{
		Start: start, Stop: []string{"/nowhere/stop-vllm"}, BootEstimate: time.Minute, BootTimeout: time.Minute,
	}}}})
}

func TestAdministratorsControlModels(t *testing.T) {
	s := newSite(t)
	s.account("root@example.org", true)
	s.account("ada@example.org", false)
	b, user := s.signIn("root@example.org"), s.signIn("ada@example.org")
	has(t, b.get("/admin/models").body, "the gateway cannot start or stop it")
	wantStatus(t, "warm a model without launch", b.post("/admin/models/llama-8b/warm"), http.StatusConflict)

	s.manage("cold")
	has(t, b.get("/admin/models").body, `action="/admin/models/cold/warm"`, "launch: ", "/nowhere/start-vllm")
	for _, action := range []string{"warm", "stop", "sleep", "windows"} {
		if got := user.post("/admin/models/cold/" + action); got.status == http.StatusSeeOther || got.status == http.StatusOK {
			t.Errorf("a user who is not an administrator: %s: got %d", action, got.status)
		}
	}
	wantRedirect(t, "warm", b.post("/admin/models/cold/warm"), "/admin/models#model-cold")
	wantStatus(t, "sleep without a sleep section", b.post("/admin/models/cold/sleep"), http.StatusConflict)
	wantStatus(t, "an unknown action", b.post("/admin/models/cold/explode"), http.StatusNotFound)
	wantStatus(t, "an unknown model", b.post("/admin/models/none/warm"), http.StatusNotFound)

	got := b.post("/admin/models/cold/windows", "from", "2101-01-02T18:00", "to", "2101-01-02T17:00")
	wantStatus(t, "a window that ends before it begins", got, http.StatusUnprocessableEntity)
	has(t, got.body, "must end after it begins", "2101-01-02T18:00")
	wantStatus(t, "a window without an end", b.post("/admin/models/cold/windows", "from", "2101-01-02T18:00"), http.StatusUnprocessableEntity)
	wantRedirect(t, "book", b.post("/admin/models/cold/windows", "from", "2101-01-02T18:00", "to", "2101-01-02T20:00"), "/admin/models#model-cold")
	wantStatus(t, "an unknown window", b.post("/admin/models/cold/windows/99/remove"), http.StatusNotFound)
	has(t, b.get("/admin/audit").body, "warm model", "book window", "2 Jan 2101, 18:00 to 2 Jan 2101, 20:00 UTC")
}

func TestFailedBootIsAStateWithItsReasonAndTheNextAttempt(t *testing.T) {
	s := newSite(t)
	s.account("root@example.org", true)
	s.account("ada@example.org", false)
	root, user := s.signIn("root@example.org"), s.signIn("ada@example.org")
	s.manage("cold")
	must(t, s.fleet.Start(t.Context()))
	defer s.fleet.Close()
	has(t, user.get("/dashboard").body, `Cold</span> boots in about 1`+"\u202f"+`min`)
	wantRedirect(t, "warm", root.post("/admin/models/cold/warm"), "/admin/models#model-cold")
	page := ""
	poll.Until(t, "the boot has failed", func() bool {
		page = root.get("/admin/models").body
		return strings.Contains(page, "Boot failed")
	})
	has(t, page, `<span class="tag bad">failed</span><br><small class="soft">launch: `, "<small>Next boot attempt in ")
	lacks(t, page, "Healthy", "closed")
	page = user.get("/dashboard").body
	has(t, page, `<span class="tag bad">Boot failed</span> could not be started. Next boot attempt in `)
	lacks(t, page, "/nowhere")
}

func TestModelThatBootsIsStarting(t *testing.T) {
	s := newSite(t)
	s.account("root@example.org", true)
	b := s.signIn("root@example.org")
	s.manage("cold", "sleep", "300")
	must(t, s.fleet.Start(t.Context()))
	defer s.fleet.Close()
	wantRedirect(t, "warm", b.post("/admin/models/cold/warm"), "/admin/models#model-cold")
	has(t, b.get("/admin/models").body, `<span class="tag warn">Starting</span>`)
	has(t, b.get("/dashboard").body, `<span class="tag warn">Starting</span> will be ready in about `)
}

// A page that refreshes itself in the background must not take the confirmation that the next page shows.
func TestRefreshLeavesTheConfirmationForThePage(t *testing.T) {
	s := newSite(t)
	s.account("ada@example.org", false)
	k, _ := s.key("ada@example.org", "laptop")
	b := s.signIn("ada@example.org")
	done := b.post("/keys/" + k.ID + "/pause")
	const want = "Key laptop paused."
	if got := b.send(http.MethodGet, "/dashboard", nil, "Basegate-Live", "1"); strings.Contains(got.body, want) {
		t.Error("the refresh shows the confirmation")
	}
	has(t, b.follow(done).body, want)
}
