// Package timerslack lets the kernel end the sleeps of this process up to a millisecond late. Go's system monitor
// sleeps for 20 µs at a time as long as anything runs. With the kernel's default slack of 50 µs these wake-ups take up
// to a fifth of the gateway's CPU time: docs/performance.md has the figures. No timer of the gateway has to be more
// exact than a millisecond. A slack that the process was started with, such as TimerSlackNSec of systemd, is kept.
//
// Importing the package is enough. Programs are started by Start, or they inherit the slack.
package timerslack

/*
#include <sys/prctl.h>

enum { DEFAULT_SLACK = 50000, SLACK = 1000000 }; // nanoseconds; the first is Linux's

static int raised;

// A thread has the slack of the one that creates it, so it is set before Go's runtime creates the first.
__attribute__((constructor)) static void raise_timer_slack(void) {
	raised = prctl(PR_GET_TIMERSLACK) == DEFAULT_SLACK && prctl(PR_SET_TIMERSLACK, SLACK) == 0;
}

static int slack_is_raised(void) { return raised; }
*/
import "C"

import (
	"fmt"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// Start starts a command with the slack that this process was started with: other programs may need their timers exact.
func Start(cmd *exec.Cmd) error {
	if C.slack_is_raised() == 0 {
		return cmd.Start() //nolint:wrapcheck // as exec.Cmd has it
	}
	runtime.LockOSThread() // a process has the slack of the thread that creates it
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, C.DEFAULT_SLACK, 0, 0, 0); err != nil {
		return fmt.Errorf("set the timer slack: %w", err)
	}
	defer unix.Prctl(unix.PR_SET_TIMERSLACK, C.SLACK, 0, 0, 0) //nolint:errcheck // the one before succeeded
	return cmd.Start()                                         //nolint:wrapcheck // as above
}
