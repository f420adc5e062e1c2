package gateway

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"basegate/gateway/config"
)

func TestChangedSettingsThatNeedARestartAreNamed(t *testing.T) {
	old, next := config.Default(), config.Default()
	if got := needsRestart(old, next); len(got) > 0 {
		t.Errorf("equal configurations: got %v, want nothing", got)
	}
	next.Server.FastPath = !old.Server.FastPath
	next.Database.KeepRequests += time.Hour
	if got, want := needsRestart(old, next), []string{"server.fast_path", "database.keep_requests"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// The list in the documentation lacked three settings.
func TestSettingsThatNeedARestartAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../docs/operations/run.md")
	if err != nil {
		t.Fatal(err)
	}
	_, list, found := strings.Cut(string(page), "These settings need a restart")
	list, _, _ = strings.Cut(list, "\n\n")
	if !found {
		t.Fatal("docs/operations/run.md has no list of the settings that need a restart")
	}
	for _, s := range restartSettings {
		if !strings.Contains(list, "`"+s.name+"`") {
			t.Errorf("docs/operations/run.md does not list %s", s.name)
		}
	}
}
