//go:build !linux

// Package timerslack is of use on Linux only.
package timerslack

import "os/exec"

// Start starts a command.
func Start(cmd *exec.Cmd) error { return cmd.Start() } //nolint:wrapcheck // as exec.Cmd has it
