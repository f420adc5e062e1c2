package gateway

import (
	"slices"
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
	next.Server.TLS.Cert = "new.pem"
	if got, want := needsRestart(old, next), []string{"server.fast_path", "database.keep_requests", "server.tls"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
