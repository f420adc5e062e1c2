//go:build e2e

package e2e_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
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

	"basegate/internal/poll"
)

// waitTimeout limits every wait for an event that should happen soon, also on a loaded machine.
const waitTimeout = 3 * time.Minute

// output collects what a process writes, in a file because a soak's log has gigabytes.
type output struct {
	t       *testing.T
	mu      sync.Mutex
	file    *os.File
	size    int64
	changed chan struct{} // closed and replaced at each write
}

func newOutput(t *testing.T) *output {
	t.Helper()
	file, err := os.CreateTemp(t.TempDir(), "output")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	return &output{t: t, file: file, changed: make(chan struct{})}
}

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(o.changed)
	o.changed = make(chan struct{})
	n, err := o.file.Write(p)
	o.size += int64(n)
	return n, err
}

// last returns up to limit bytes from the end of the output, and a channel that is closed at the next write.
func (o *output) last(limit int64) (text string, changed <-chan struct{}) {
	o.t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	last := make([]byte, min(o.size, limit))
	if _, err := o.file.ReadAt(last, o.size-int64(len(last))); err != nil {
		o.t.Errorf("read output: %v", err)
	}
	return string(last), o.changed
}

// String returns all output.
func (o *output) String() string {
	text, _ := o.last(math.MaxInt64)
	return text
}

// tail returns the end of the output, for failure messages.
func (o *output) tail() string {
	text, _ := o.last(64 << 10)
	return text
}

// contains reports whether a line contains the text.
func (o *output) contains(text string) bool {
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
	exited chan struct{} // closed when the process has exited
}

// startProcess runs basegate until it exits or the test ends. The test fails if the race detector reports a data race.
func startProcess(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(binary, args...), stdout: newOutput(t), stderr: newOutput(t), exited: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p.stdout, p.stderr
	p.start(args)
	return p
}

// startPiped runs basegate with one pipe as its stdout and stderr, and returns the end that the test reads or closes.
func startPiped(t *testing.T, args ...string) (*process, *os.File) {
	t.Helper()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	t.Cleanup(func() { reader.Close() })
	p := &process{t: t, cmd: exec.Command(binary, args...), stdout: newOutput(t), stderr: newOutput(t), exited: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = writer, writer
	p.start(args)
	return p, reader
}

func (p *process) start(args []string) {
	t := p.t
	t.Helper()
	p.cmd.Dir = t.TempDir()
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.exited)
		p.cmd.Wait()
	}()
	t.Cleanup(func() {
		p.cmd.Process.Kill()
		<-p.exited
		if p.stderr.contains("WARNING: DATA RACE") {
			t.Errorf("basegate %s: data race", args[0])
		}
		if t.Failed() {
			t.Logf("basegate %s\nstdout:\n%s\nstderr:\n%s", strings.Join(args, " "), p.stdout.tail(), p.stderr.tail())
		}
	})
}

// waitForOutput waits until the lines of an output match the pattern and returns the submatches.
func (p *process) waitForOutput(o *output, pattern string) []string {
	p.t.Helper()
	re := regexp.MustCompile(pattern)
	deadline := time.NewTimer(waitTimeout)
	defer deadline.Stop()
	for {
		text, changed := o.last(math.MaxInt64)
		whole := text[:strings.LastIndexByte(text, '\n')+1] // the last line may still be written
		if match := re.FindStringSubmatch(whole); match != nil {
			return match
		}
		select {
		case <-changed:
		case <-p.exited:
			if match := re.FindStringSubmatch(o.String()); match != nil {
				return match
			}
			p.t.Fatalf("exited without writing %q", pattern)
		case <-deadline.C:
			p.t.Fatalf("did not write %q within %v", pattern, waitTimeout)
		}
	}
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatalf("signal %v: %v", s, err)
	}
}

// waitExit waits until the process exits and returns its exit code.
func (p *process) waitExit() int {
	p.t.Helper()
	deadline := time.NewTimer(waitTimeout)
	defer deadline.Stop()
	select {
	case <-p.exited:
	case <-deadline.C:
		p.t.Fatalf("did not exit within %v", waitTimeout)
	}
	return p.cmd.ProcessState.ExitCode()
}

// waitStop waits until a gateway that was told to stop exits with 0. A clean-up that the machine has held up for longer than the
// ten seconds that it has is no error of the gateway, but exits with 1.
func (p *process) waitStop() {
	p.t.Helper()
	switch code := p.waitExit(); {
	case code == 1 && p.stderr.contains("deadline exceeded"):
		p.t.Log("the clean-up took too long")
	case code != 0:
		p.t.Errorf("exit code %d, want 0", code)
	}
}

// awaitCommand runs basegate again and again until its outcome is accepted: a command that waits for seconds gives up if the
// machine stalls.
func awaitCommand(t *testing.T, description string, accept func(stdout, stderr string, code int) bool, args ...string) {
	t.Helper()
	before := ""
	poll.Until(t, description, func() bool {
		stdout, stderr, code := runCommand(t, args...)
		if accept(stdout, stderr, code) {
			return true
		}
		if got := fmt.Sprintf("%s: exit code %d: %s%s", strings.Join(args, " "), code, stdout, stderr); got != before {
			t.Log(got)
			before = got
		}
		return false
	})
}

// runCommand runs basegate until it exits.
func runCommand(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.Dir = &out, &errs, t.TempDir()
	if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// writeFile writes a file that only this user can read.
func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
