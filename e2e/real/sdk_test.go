//go:build real

package real_test

import (
	"os"
	"os/exec"
	"testing"
)

// TestSDKs runs those tests of the official SDKs for Python and Node that do not need the mock.
func TestSDKs(t *testing.T) {
	g := startGateway(t, "", backends(t)...)
	cmd := exec.CommandContext(t.Context(), "../sdk/run")
	cmd.Env = append(os.Environ(), "REAL_BASE_URL="+g.url+"/v1", "REAL_API_KEY="+g.secret)
	output, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, output)
	}
	t.Logf("%s", output)
}
