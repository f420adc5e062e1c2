package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/prometheus/procfs"

	"basegate/internal/wait"
)

const (
	readyTimeout = 10 * time.Second // from start to the first response
	stopTimeout  = 30 * time.Second // from SIGTERM to SIGKILL
)

// process is a child process with its own children.
type process struct {
	name    string
	command *exec.Cmd
	exited  chan struct{} // closed when it has
}

var errNotReady = errors.New("it is not ready")

// startProcess starts a program and waits until it is ready. Its output goes to a file.
func (b *testbed) startProcess(ctx context.Context, name string, isReady func(context.Context) bool, program string, args ...string) *process {
	output := must(os.Create(filepath.Join(b.dir, name+".log")))
	defer output.Close() // the child has its own descriptor
	// It ends with stop, also if ctx has ended.
	command := exec.CommandContext(context.WithoutCancel(ctx), program, args...)
	command.Stdout, command.Stderr = output, output
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C ends this program, which then ends the others
	check(command.Start())
	p := &process{name: name, command: command, exited: make(chan struct{})}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	go func() {
		_ = command.Wait() // a process that ends early fails requests, and those that end later are stopped
		close(p.exited)
		cancel()
	}()
	b.closers = append(b.closers, p.stop)
	for !isReady(ctx) {
		if !wait.For(ctx, 20*time.Millisecond) {
			text, _ := os.ReadFile(output.Name()) // the error before suffices
			check(fmt.Errorf("start %s: %w: %.1000s", name, errNotReady, text))
		}
	}
	return p
}

// stop ends the process by SIGTERM, or by SIGKILL if that does not, and waits for its exit.
func (p *process) stop() {
	_ = p.command.Process.Signal(syscall.SIGTERM) // it may have exited
	timer := time.AfterFunc(stopTimeout, func() { _ = p.command.Process.Kill() })
	defer timer.Stop()
	<-p.exited
}

// clockTick is the unit of CPU time in /proc/PID/stat, the same on every Linux that Go supports.
const clockTick = 10 * time.Millisecond

// used returns the CPU time and the resident memory of the process and its children, in bytes. The CPU time of children that
// have exited counts too.
func (p *process) used() (cpu time.Duration, memory int) {
	found := false
	for _, one := range must(procfs.AllProcs()) { // needs Linux
		s, err := one.Stat()
		if err != nil || s.PID != p.command.Process.Pid && s.PPID != p.command.Process.Pid {
			continue // it has exited, or is another one
		}
		found = found || s.PID == p.command.Process.Pid
		cpu += time.Duration(int(s.UTime+s.STime)+s.CUTime+s.CSTime) * clockTick
		memory += s.ResidentMemory()
	}
	if !found {
		check(fmt.Errorf("read the use of %s: %w", p.name, os.ErrProcessDone))
	}
	return cpu, memory
}

// memory returns the resident memory of the process and its children, in bytes.
func (p *process) memory() float64 {
	_, memory := p.used()
	return float64(memory)
}

// peakMemory returns the most resident memory that the process has had without its children, in bytes.
func (p *process) peakMemory() float64 {
	status := must(must(procfs.NewProc(p.command.Process.Pid)).NewStatus())
	return float64(status.VmHWM)
}

// wantedFiles suffice for 10,000 held streams, each of which uses two connections of a proxy.
const wantedFiles = 32_768

// raiseFileLimit raises the limit of open files for this process and its children, up to the hard limit, and returns it.
func raiseFileLimit() int {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return 1024 // a limit that every system allows
	}
	limit.Cur = min(limit.Max, wantedFiles)
	_ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit) // a process may set any limit up to its hard one
	return int(limit.Cur)
}

// maxStreams returns how many streams one process can proxy with this many descriptors. The gateway stops accepting
// connections with 1024 free descriptors, but at most half of all; others are files and listeners.
func maxStreams(descriptors int) int {
	return max(descriptors-min(1024, descriptors/2)-476, 0) / 2
}
