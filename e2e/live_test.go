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

// check --live takes no address but the configuration's, so what it reads here is a configuration with the address
// that the running gateway got. The certificate is for another name than localhost, as a public one would be.
func TestCheckLiveTellsWhetherTheGatewayAnswers(t *testing.T) {
	cert, key, _ := certificate(t)
	withTLS := fmt.Sprintf(", tls: {cert: %q, key: %q}", cert, key)
	for _, server := range []string{"", withTLS} {
		g, _ := gatewayOf(t, settings{server: server}, mockvllm.Options{})
		_, port, _ := strings.Cut(strings.TrimPrefix(g.url, "http://"), ":")
		for _, host := range []string{"127.0.0.1", "0.0.0.0", ""} {
			asked := filepath.Join(t.TempDir(), "config.yaml")
			write(t, asked, fmt.Sprintf("{server: {listen: %q%s}, models: [%s]}", host+":"+port, server, model("m", "http://127.0.0.1:1")))
			if stdout, stderr, code := command(t, "check", "--live", "--config", asked); code != 0 || !strings.HasSuffix(stdout, "/healthz\n") {
				t.Errorf("listen %q%s: exit code %d: %s%s", host, server, code, stdout, stderr)
			}
		}
		g.signal(syscall.SIGTERM)
		g.code()
	}
}
