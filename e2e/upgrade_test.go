//go:build e2e

package e2e_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"basegate/internal/postgrestest"
	"basegate/mockvllm"
)

// While a later release has migrated, gateways of this one serve, those that restart included. They refuse a schema that lacks
// what they use.
func TestGatewayServesOnASchemaThatALaterReleaseHasMigrated(t *testing.T) {
	server := postgrestest.Shared(t)
	running, restarted, _ := startTwo(t, server, settings{probeTimeout: loadedProbe}, mockvllm.Options{})
	address, err := url.Parse(running.postgresURL)
	must(t, err)
	name := strings.TrimPrefix(address.Path, "/")
	if !postgrestest.Newer() {
		server.Expand(t, name)
	}
	restarted.kill()
	restarted = restarted.serveWithKey(running.secret)
	secret := running.createKey("later")
	for what, g := range map[string]*gateway{"the gateway that runs": running, "the one that was restarted": restarted} {
		if got, err := post(g.url, secret, smallRequest); err != nil || got.status != http.StatusOK {
			t.Errorf("%s: got %+v, error %v", what, got, err)
		}
		g.signIn()
	}
	if n := len(running.usageRows()); n != 2 {
		t.Errorf("the usage has %d rows, want 2", n)
	}
	if !strings.Contains(restarted.stderr.String(), "the schema is newer than this program") {
		t.Errorf("the log does not name the newer schema: %s", restarted.stderr.String())
	}
	awaitCommand(t, "check names both versions", func(table, _ string, code int) bool {
		return code == 0 && strings.Contains(table, "this program knows up to")
	}, "check", "--config", running.config)

	server.Exec(t, name, `UPDATE basegate.schema_compatibility SET oldest = 9998;
		INSERT INTO basegate.schema_migrations (version_id, is_applied) VALUES (9999, true)`)
	for _, command := range [][]string{{"serve"}, {"key", "list"}, {"check"}, {"database", "migrate"}} {
		stdout, stderr, code := runCommand(t, append(command, "--config", restarted.config)...)
		if code != 1 || !strings.Contains(stdout+stderr, "version 9999, which needs a program that knows version 9998") {
			t.Errorf("%v: exit code %d, %s%s; want 1 and the versions", command, code, stdout, stderr)
		}
	}
}
