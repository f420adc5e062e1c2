//go:build e2e

package e2e_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// enoughFiles skips a test that needs more open files than a process may have, here or in the gateway. In CI it fails:
// there nothing is to go untested unseen.
func enoughFiles(t *testing.T, need int) {
	t.Helper()
	if have := fileLimit(t); have < need {
		tell := t.Skipf
		if os.Getenv("CI") != "" {
			tell = t.Fatalf
		}
		tell("a process may have %d files open, and this needs %d: ulimit -n %d", have, need, need)
	}
}

// fileLimit is how many files a process may have open. Go raises its limit to the hard one by itself.
func fileLimit(t *testing.T) int {
	t.Helper()
	var limit syscall.Rlimit
	must(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	return int(min(limit.Max, 1<<30))
}

// withoutRaceDetector has a test drive a binary as users have it: the detector would multiply what is measured.
func withoutRaceDetector(t *testing.T) {
	t.Helper()
	if os.Getenv("BASEGATE_BIN") != "" {
		return
	}
	detecting := binary
	t.Cleanup(func() { binary = detecting })
	binary = filepath.Join(t.TempDir(), "basegate")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "basegate").CombinedOutput(); err != nil {
		t.Fatalf("build basegate: %v: %s", err, out)
	}
}

// separateMock starts a mock in a process of its own and returns its URL.
func separateMock(t *testing.T, flags ...string) string {
	t.Helper()
	p := start(t, append([]string{"mockvllm", "--listen", "127.0.0.1:0"}, flags...)...)
	return p.says(p.stderr, `mock vLLM on (\S+)`)[1]
}
