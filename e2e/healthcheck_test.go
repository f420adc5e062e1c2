//go:build e2e

package e2e_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"basegate/mockvllm"
)

// check --live finds the gateway by the configuration alone, so the test writes a configuration with the port that the
// running gateway got. The certificate is not for localhost, as that of a public gateway would not be either. A mistake in the
// configuration does not matter: Docker would call the gateway unhealthy, and `up --wait` would fail, although it serves.
func TestCheckLiveFindsTheGatewayByItsConfiguration(t *testing.T) {
	cert, key, _ := certificate(t)
	withTLS := fmt.Sprintf(", tls: {cert: %q, key: %q}", cert, key)
	live := func(config, what string) {
		t.Helper()
		awaitCommand(t, "check --live finds the gateway by "+what, func(stdout, _ string, code int) bool {
			return code == 0 && strings.HasSuffix(stdout, "/healthz\n")
		}, "check", "--live", "--config", config)
	}
	for _, server := range []string{"", withTLS} {
		g, _ := startGateway(t, settings{server: server}, mockvllm.Options{})
		_, port, _ := strings.Cut(strings.TrimPrefix(g.url, "http://"), ":")
		for _, host := range []string{"127.0.0.1", "0.0.0.0", ""} {
			config := filepath.Join(t.TempDir(), "config.yaml")
			writeFile(t, config, fmt.Sprintf("{server: {listen: %q%s}, models: [%s]}", host+":"+port, server, modelConfig("m", "http://127.0.0.1:1")))
			live(config, fmt.Sprintf("listen %q%s", host, server))
		}
		database, _ := g.databaseConfig(settings{})
		writeFile(t, g.config, fmt.Sprintf(brokenConfiguration, database))
		live(g.config, "a configuration with mistakes"+server)
		g.signal(syscall.SIGTERM)
		g.waitExit()
		if _, _, code := runCommand(t, "check", "--live", "--config", g.config); code != 1 {
			t.Errorf("after the gateway has stopped: exit code %d, want 1", code)
		}
	}
}
