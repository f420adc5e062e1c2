//go:build e2e

package e2e_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// requireOpenFiles skips a test that needs more open files than the limit of a process, here or in the gateway. In CI the
// test fails instead, so that it cannot be skipped unnoticed.
func requireOpenFiles(t *testing.T, need int) {
	t.Helper()
	if have := openFileLimit(t); have < need {
		report := t.Skipf
		if os.Getenv("CI") != "" {
			report = t.Fatalf
		}
		report("the limit is %d open files, the test needs %d: ulimit -n %d", have, need, need)
	}
}

// openFileLimit returns the hard limit of open files. The Go runtime raises the soft limit to it.
func openFileLimit(t *testing.T) int {
	t.Helper()
	var limit syscall.Rlimit
	must(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	return int(min(limit.Max, 1<<30))
}

// useBinaryWithoutRaceDetector makes a test run the binary as users have it: the race detector would multiply the time
// and memory that the test measures.
func useBinaryWithoutRaceDetector(t *testing.T) {
	t.Helper()
	if os.Getenv("BASEGATE_BIN") != "" {
		return
	}
	original := binary
	t.Cleanup(func() { binary = original })
	binary = filepath.Join(t.TempDir(), "basegate")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "basegate").CombinedOutput(); err != nil {
		t.Fatalf("build basegate: %v: %s", err, out)
	}
}

// startMockProcess runs basegate mockvllm and returns the process and its base URL.
func startMockProcess(t *testing.T, flags ...string) (p *process, url string) {
	t.Helper()
	p = startProcess(t, append([]string{"mockvllm", "--listen", "127.0.0.1:0"}, flags...)...)
	return p, p.waitForOutput(p.stderr, `http://\S+`)[0]
}
