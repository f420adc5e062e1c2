//go:build e2e

package e2e_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"math"
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

// output is what a process has written so far, in a file, since a soak's log has gigabytes, and a way to wait for more.
type output struct {
	t    *testing.T
	mu   sync.Mutex
	file *os.File
	size int64
	more chan struct{} // closed and replaced by each write
}

func newOutput(t *testing.T) *output {
	t.Helper()
	file, err := os.CreateTemp(t.TempDir(), "output")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	return &output{t: t, file: file, more: make(chan struct{})}
}

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(o.more)
	o.more = make(chan struct{})
	n, err := o.file.Write(p)
	o.size += int64(n)
	return n, err
}

// read is all that has been written, or the last of it.
func (o *output) read(most int64) (text string, more <-chan struct{}) {
	o.t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	last := make([]byte, min(o.size, most))
	if _, err := o.file.ReadAt(last, o.size-int64(len(last))); err != nil {
		o.t.Errorf("read output: %v", err)
	}
	return string(last), o.more
}

// String is all that has been written.
func (o *output) String() string {
	text, _ := o.read(math.MaxInt64)
	return text
}

// tail is the last of what has been written.
func (o *output) tail() string {
	text, _ := o.read(64 << 10)
	return text
}

// has looks for a line that contains the text.
func (o *output) has(text string) bool {
	lines := bufio.NewScanner(io.NewSectionReader(o.file, 0, math.MaxInt64))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if strings.Contains(lines.Text(), text) {
			return true
		}
	}
	if err := lines.Err(); err != nil {
		o.t.Errorf("search output: %v", err)
	}
	return false
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
	p := &process{t: t, cmd: exec.Command(binary, args...), stdout: newOutput(t), stderr: newOutput(t), ended: make(chan struct{})}
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
		if p.stderr.has("WARNING: DATA RACE") {
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
		text, more := o.read(math.MaxInt64)
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

// write makes a file.
func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
