//go:build !linux

// Package timerslack changes nothing on systems other than Linux, which have no timer slack.
package timerslack

import "os/exec"

// Start starts a command.
func Start(cmd *exec.Cmd) error { return cmd.Start() } //nolint:wrapcheck // as exec.Cmd has it
