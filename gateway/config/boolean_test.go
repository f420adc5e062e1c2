package config_test

import (
	"os"
	"strings"
	"testing"

	"basegate/gateway/config"
)

func TestFastPathIsReadAndDefaultsToTrue(t *testing.T) {
	minimal, err := os.ReadFile("testdata/good/minimal.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for server, want := range map[string]bool{
		"":                                    true,
		"server: {fast_path: true}\n":         true,
		"server: {fast_path: false}\n":        false,
		"server: {fast_path: \"${VALUE}\"}\n": false,
	} {
		c, err := config.Parse("config.yaml", []byte(server+string(minimal)), variables([]byte("VALUE=false\n")))
		if err != nil {
			t.Errorf("%q: %v", strings.TrimSpace(server), err)
			continue
		}
		if got := c.Server.FastPath; got != want {
			t.Errorf("%q: got %t, want %t", strings.TrimSpace(server), got, want)
		}
	}
}
