//go:build e2e

// Package e2e_test is the end-to-end test of the built binary: it drives basegate over HTTP, by its commands and by
// signals, with mock vLLM servers as backends.
package e2e_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"basegate/internal/postgrestest"
	"basegate/internal/s3test"
)

// binary is the path of the basegate under test: BASEGATE_BIN, or a binary built with the race detector.
var binary string

func TestMain(m *testing.M) {
	if isHonestClient() {
		os.Exit(runHonestClient())
	}
	os.Exit(withBinary(postgrestest.Main{M: m}.Run))
}

func withBinary(run func() int) int {
	os.Setenv("GORACE", "atexit_sleep_ms=0") // otherwise the race detector sleeps for a second at each exit
	for name, value := range s3test.Environment {
		os.Setenv(name, value) // here, since parallel tests cannot
	}
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
