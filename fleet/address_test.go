package fleet_test

import (
	"fmt"
	"net/http"
	"net/url"
	"testing"

	"go.uber.org/zap"

	"basegate/fleet"
	"basegate/gateway/config"
	"basegate/internal/poll"
)

// nowhere is the address of a backend whose server is where its launch says.
func nowhere(t *testing.T) *url.URL {
	t.Helper()
	u, err := url.Parse("http://127.0.0.1:1/base")
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func TestBackendIsWhereItsLaunchSays(t *testing.T) {
	server, db := newManagedServer(t, 0), openDatabase(t)
	server.script("start", fmt.Sprintf("echo url=http://first:1; touch $0.up; echo started >> $0.log; echo url=%s/", server.URL))
	model := server.model(func(m *config.Model) { m.Backends[0].URL = nowhere(t) })
	first := fleet.New([]config.Model{model}, settings, &http.Transport{DisableKeepAlives: true}, db, zap.NewNop())
	if err := first.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	m := getModel(t, first, "m")
	b := m.Backends()[0]
	if err := m.Warm("test"); err != nil {
		t.Fatal(err)
	}
	wantState(t, b, fleet.Ready)
	if got := b.CompletionsURL().String(); got != server.URL+"/v1/completions" {
		t.Errorf("completions go to %s, want those of %s", got, server.URL)
	}
	awaitReport(t, db)
	first.Close()

	m = getModel(t, startFleetWith(t, db, zap.NewNop(), model), "m")
	b = m.Backends()[0]
	wantState(t, b, fleet.Ready) // found after a restart
	if err := m.Stop("test"); err != nil {
		t.Fatal(err)
	}
	wantState(t, b, fleet.Stopped)
	if got := b.ChatURL().String(); got != "http://127.0.0.1:1/base/v1/chat/completions" {
		t.Errorf("after a stop, chat completions go to %s, want the configured address", got)
	}
	if got := fmt.Sprint(server.commands()); got != "[started stopped]" {
		t.Errorf("got the commands %s", got)
	}
}

func TestLaunchWithAMalformedAddressFails(t *testing.T) {
	for _, line := range []string{"url=", "url=node1:8000", "url=ftp://node1", "url=http://", "url=http://user@node1", "url=http://node1?a=b", "url=http://a b"} {
		server := newManagedServer(t, 0)
		server.script("start", "echo '"+line+"'")
		m := getModel(t, startFleetWith(t, nil, zap.NewNop(), server.model(nil)), "m")
		if err := m.Warm("test"); err != nil {
			t.Fatal(err)
		}
		wantState(t, m.Backends()[0], fleet.Failed)
		want := fmt.Sprintf("launch: the last line is %q, want url=http://HOST:PORT", line)
		poll.Until(t, "the reason is known", func() bool { _, reason := m.Backends()[0].State(); return reason == want })
	}
}
