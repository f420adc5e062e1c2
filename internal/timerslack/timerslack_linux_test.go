package timerslack_test

import (
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"basegate/internal/timerslack"
)

func TestEveryThreadHasTheSlack(t *testing.T) {
	if started := childSlack(t); started != 50_000 {
		t.Skipf("the tests were started with a slack of %d ns, which is kept", started)
	}
	var threads sync.WaitGroup
	for range 8 { // each on a thread of its own
		threads.Go(func() {
			runtime.LockOSThread()
			if got := ownSlack(t); got != 1_000_000 {
				t.Errorf("a thread has a slack of %d ns, want a millisecond", got)
			}
		})
	}
	threads.Wait()
}

func TestStartedCommandDoesNotInheritTheSlack(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := ownSlack(t)
	if started := childSlack(t); before == 1_000_000 && started == before {
		t.Errorf("a command has a slack of %d ns, that of this process", started)
	}
	if after := ownSlack(t); after != before {
		t.Errorf("the thread that started a command has a slack of %d ns afterwards, and had %d", after, before)
	}
}

func TestStartReturnsTheErrorOfTheCommand(t *testing.T) {
	if err := timerslack.Start(exec.Command("/nonexistent")); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("got error %v, want that there is no such file", err)
	}
}

// ownSlack returns the slack of the calling thread, in nanoseconds.
func ownSlack(t *testing.T) int {
	t.Helper()
	slack, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil {
		t.Errorf("read the timer slack: %v", err)
	}
	return slack
}

// childSlack returns the slack of a command that was started by Start, in nanoseconds.
func childSlack(t *testing.T) int {
	t.Helper()
	var out strings.Builder
	cmd := exec.Command("cat", "/proc/self/timerslack_ns")
	cmd.Stdout = &out
	if err := timerslack.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	slack, err := strconv.Atoi(strings.TrimSpace(out.String()))
	if err != nil {
		t.Fatal(err)
	}
	return slack
}
