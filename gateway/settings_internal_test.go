package gateway

import (
	"slices"
	"testing"

	"basegate/config"
)

func TestChangedFastPathNeedsARestart(t *testing.T) {
	old, next := config.Default(), config.Default()
	if got := needsRestart(old, next); len(got) > 0 {
		t.Errorf("equal configurations: got %v, want nothing", got)
	}
	next.Server.FastPath = !old.Server.FastPath
	if got, want := needsRestart(old, next), []string{"server.fast_path"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
