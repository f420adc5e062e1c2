package fleet_test

import (
	"net/http"
	"net/url"
	"testing"

	"go.uber.org/zap"

	"basegate/database"
	"basegate/fleet"
	"basegate/gateway/config"
	"basegate/internal/poll"
	"basegate/validate"
)

// What a backend reported in an earlier boot is known after a restart, and is forgotten with the configuration of the
// server that reported it.
func TestReportsOfAColdModelOutliveARestart(t *testing.T) {
	server := newManagedServer(t, 0)
	db := openDatabase(t)
	first := fleet.New([]config.Model{server.model(nil)}, settings, &http.Transport{DisableKeepAlives: true}, db, zap.NewNop())
	if err := first.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	m := getModel(t, first, "m")
	if got := m.MaxModelLen(); got != 0 {
		t.Errorf("before the first boot: got a context of %d tokens, want 0", got)
	}
	if err := m.Warm("test"); err != nil {
		t.Fatal(err)
	}
	wantState(t, m.Backends()[0], fleet.Ready)
	special := m.SpecialTokens()
	if err := m.Stop("test"); err != nil {
		t.Fatal(err)
	}
	wantState(t, m.Backends()[0], fleet.Stopped)
	awaitReport(t, db)
	first.Close()

	other, err := url.Parse("http://127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*config.Model)
		known  bool
	}{
		"the same":      {nil, true},
		"another label": {func(m *config.Model) { m.Precision, m.Backends[0].Launch.IdleAfter = "fp8", 1 }, true},
		"another command": {func(m *config.Model) {
			m.Backends[0].Launch.Start = append(m.Backends[0].Launch.Start, "--max-model-len=200")
		}, false},
		"another address":    {func(m *config.Model) { m.Backends[0].URL = other }, false},
		"another checkpoint": {func(m *config.Model) { m.Checkpoint = "org/N" }, false},
	} {
		f := startFleetWith(t, db, zap.NewNop(), server.model(c.change))
		wantReport(t, "after a restart with "+name, getModel(t, f, "m"), c.known)
		if c.known && getModel(t, f, "m").SpecialTokens() != special {
			t.Errorf("%s: got %d special tokens, want %d", name, getModel(t, f, "m").SpecialTokens(), special)
		}
		f.Close()
	}

	f := startFleetWith(t, db, zap.NewNop(), server.model(nil))
	changed := settings
	changed.ProbeInterval *= 2
	f.Reload([]config.Model{server.model(nil)}, changed)
	wantReport(t, "after a reload that replaces the backends", getModel(t, f, "m"), true)
	f.Reload([]config.Model{server.model(func(m *config.Model) {
		m.Backends[0].Launch.Start = append(m.Backends[0].Launch.Start, "--max-model-len=200")
	})}, changed)
	wantReport(t, "after a reload with another command", getModel(t, f, "m"), false)
}

// A server that is ready keeps what it has reported until it stops, even if it is to be started with another command then.
func TestReportIsForgottenWhenAServerThatIsReconfiguredStops(t *testing.T) {
	server := newManagedServer(t, 0)
	f := startFleetWith(t, openDatabase(t), zap.NewNop(), server.model(nil))
	if err := getModel(t, f, "m").Warm("test"); err != nil {
		t.Fatal(err)
	}
	wantState(t, getModel(t, f, "m").Backends()[0], fleet.Ready)
	f.Reload([]config.Model{server.model(func(m *config.Model) {
		m.Backends[0].Launch.Start = append(m.Backends[0].Launch.Start, "--max-model-len=200")
	})}, settings)
	m := getModel(t, f, "m")
	wantReport(t, "while it is ready", m, true)
	if err := m.Stop("test"); err != nil {
		t.Fatal(err)
	}
	wantState(t, m.Backends()[0], fleet.Stopped)
	wantReport(t, "after it has stopped", m, false)
}

func wantReport(t *testing.T, when string, m *fleet.Model, known bool) {
	t.Helper()
	b := m.Backends()[0]
	version, context := "", int64(0)
	if known {
		version, context = "0.9.2", 100
	}
	if m.MaxModelLen() != context || b.Version() != version || b.VLLM() != validate.ParseVersion(version) {
		t.Errorf("%s: got a context of %d tokens and version %q, want %d and %q", when, m.MaxModelLen(), b.Version(), context, version)
	}
}

// awaitReport waits until the report of a backend is on disk.
func awaitReport(t *testing.T, db *database.DB) {
	t.Helper()
	poll.Until(t, "the report is on disk", func() bool {
		var n int
		err := db.Read().QueryRowContext(t.Context(), "SELECT count(*) FROM backend_reports WHERE version <> ''").Scan(&n)
		return err == nil && n == 1
	})
}
