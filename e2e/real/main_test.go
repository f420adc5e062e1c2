//go:build real

// Package real_test runs the built binary in front of real vLLM servers on the CPU, with a tiny model of random weights.
// `make real` installs what it needs. With -short it starts one server instead of two, and leaves out what takes long.
package real_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

const (
	// modelID and checkpoint are those of the demo, so that the tests of the SDKs run unchanged.
	modelID    = "llama-8b"
	checkpoint = "meta-llama/Llama-3.1-8B"
	contextLen = 8192
)

// paths of what the tests run.
var (
	binary = os.Getenv("BASEGATE_BIN")        // basegate
	venv   = os.Getenv("BASEGATE_REAL_VENV")  // of vLLM
	tools  = os.Getenv("BASEGATE_REAL_TOOLS") // the venv of lm-eval and guidellm; empty: their tests are skipped
	model  string                             // the folder of the model
)

func TestMain(m *testing.M) {
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	if binary == "" || venv == "" {
		fmt.Fprintln(os.Stderr, "BASEGATE_BIN and BASEGATE_REAL_VENV are not set: run make real")
		return 1
	}
	dir, err := os.MkdirTemp("", "basegate-real-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "make folder:", err)
		return 1
	}
	defer os.RemoveAll(dir)
	model = filepath.Join(dir, "model")
	if output, err := exec.Command(filepath.Join(venv, "bin", "python"), "make_model.py", model).CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "make model: %v\n%s", err, output)
		return 1
	}
	defer stopServers()
	return m.Run()
}
