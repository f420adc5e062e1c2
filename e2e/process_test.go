//go:build e2e

package e2e_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience bounds every wait for something that should happen soon.
const patience = 20 * time.Second

// output is what a process has written so far, and a way to wait for more.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
	more chan struct{} // closed and replaced by each write
}

func newOutput() *output { return &output{more: make(chan struct{})} }

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(o.more)
	o.more = make(chan struct{})
	return o.text.Write(p)
}

func (o *output) read() (text string, more <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String(), o.more
}

// String is all that has been written.
func (o *output) String() string {
	text, _ := o.read()
	return text
}

// tail is the last of what has been written.
func (o *output) tail() string {
	const most = 64 << 10
	text := o.String()
	return text[max(0, len(text)-most):]
}

// process is a running basegate.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdout *output
	stderr *output
	ended  chan struct{} // closed when it has ended
}

// start runs basegate until the test ends, if it does not end before. What the race detector has found fails the
// test.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(binary, args...), stdout: newOutput(), stderr: newOutput(), ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p.stdout, p.stderr
	p.cmd.Dir = t.TempDir()
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		p.cmd.Wait()
	}()
	t.Cleanup(func() {
		p.cmd.Process.Kill()
		<-p.ended
		if strings.Contains(p.stderr.String(), "WARNING: DATA RACE") {
			t.Errorf("basegate %s: data race", args[0])
		}
		if t.Failed() {
			t.Logf("basegate %s\nstdout:\n%s\nstderr:\n%s", strings.Join(args, " "), p.stdout.tail(), p.stderr.tail())
		}
	})
	return p
}

// says waits until an output has the pattern, and returns its groups.
func (p *process) says(o *output, pattern string) []string {
	p.t.Helper()
	wanted := regexp.MustCompile(pattern)
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		text, more := o.read()
		if found := wanted.FindStringSubmatch(text); found != nil {
			return found
		}
		select {
		case <-more:
		case <-p.ended:
			if found := wanted.FindStringSubmatch(o.String()); found != nil {
				return found
			}
			p.t.Fatalf("ended without saying %q", pattern)
		case <-deadline.C:
			p.t.Fatalf("did not say %q", pattern)
		}
	}
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatalf("signal %v: %v", s, err)
	}
}

// code waits for the end and returns the exit code.
func (p *process) code() int {
	p.t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	select {
	case <-p.ended:
	case <-deadline.C:
		p.t.Fatal("did not end")
	}
	return p.cmd.ProcessState.ExitCode()
}

// command runs basegate to its end.
func command(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.Dir = &out, &errs, t.TempDir()
	if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// eventually polls until holds, for as long as patience.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	within(t, patience, what, holds)
}

// within polls until holds, for the given time at most.
func within(t *testing.T, limit time.Duration, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(limit)
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", limit, what)
		}
		<-poll.C
	}
}

// write makes a file.
func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
