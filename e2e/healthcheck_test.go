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
// running gateway got. The certificate is not for localhost, as that of a public gateway would not be either.
func TestCheckLiveFindsTheGatewayByItsConfiguration(t *testing.T) {
	cert, key, _ := certificate(t)
	withTLS := fmt.Sprintf(", tls: {cert: %q, key: %q}", cert, key)
	for _, server := range []string{"", withTLS} {
		g, _ := startGateway(t, settings{server: server}, mockvllm.Options{})
		_, port, _ := strings.Cut(strings.TrimPrefix(g.url, "http://"), ":")
		for _, host := range []string{"127.0.0.1", "0.0.0.0", ""} {
			config := filepath.Join(t.TempDir(), "config.yaml")
			writeFile(t, config, fmt.Sprintf("{server: {listen: %q%s}, models: [%s]}", host+":"+port, server, modelConfig("m", "http://127.0.0.1:1")))
			if stdout, stderr, code := runCommand(t, "check", "--live", "--config", config); code != 0 || !strings.HasSuffix(stdout, "/healthz\n") {
				t.Errorf("listen %q%s: exit code %d: %s%s", host, server, code, stdout, stderr)
			}
		}
		g.signal(syscall.SIGTERM)
		g.waitExit()
	}
}
