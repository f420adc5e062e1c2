//go:build e2e

package e2e_test

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
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
	path, err := plainBinary()
	must(t, err)
	original := binary
	t.Cleanup(func() { binary = original })
	binary = path
}

// plainBinary builds the binary without the race detector, beside the one with it.
var plainBinary = sync.OnceValues(func() (path string, err error) {
	path = binary + "-plain"
	if out, err := exec.Command("go", "build", "-o", path, "basegate").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build basegate: %w: %s", err, out)
	}
	return path, nil
})

// startMockProcess runs basegate mockvllm and returns the process and its base URL.
func startMockProcess(t *testing.T, flags ...string) (p *process, url string) {
	t.Helper()
	p = startProcess(t, append([]string{"mockvllm", "--listen", "127.0.0.1:0"}, flags...)...)
	return p, p.waitForOutput(p.stderr, `http://\S+`)[0]
}
