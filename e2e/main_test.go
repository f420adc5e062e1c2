//go:build e2e

// Package e2e_test drives the built binary from outside: over HTTP, by its command line and by signals.
package e2e_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// binary is the basegate under test: the one that BASEGATE_BIN names, or one built with the race detector.
var binary string

func TestMain(m *testing.M) {
	os.Exit(withBinary(m.Run))
}

func withBinary(run func() int) int {
	os.Setenv("GORACE", "atexit_sleep_ms=0") // the race detector sleeps for a second at each exit otherwise
	if binary = os.Getenv("BASEGATE_BIN"); binary != "" {
		return run()
	}
	dir, err := os.MkdirTemp("", "basegate-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "make folder:", err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "basegate")
	build := exec.Command("go", "build", "-race", "-o", binary, "basegate")
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build basegate:", err)
		return 1
	}
	return run()
}
