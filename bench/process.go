package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"syscall"
	"time"
)

const (
	readyTimeout = 10 * time.Second // from start to the first response
	stopTimeout  = 30 * time.Second // from SIGTERM to SIGKILL
)

// process is a child process and its own children. Its output goes to a file.
type process struct {
	name    string
	command *exec.Cmd
	exited  chan error
}

var (
	errNotReady = errors.New("no response")
	errStuck    = errors.New("killed, since SIGTERM did not end it")
)

// startProcess starts a program and waits until the URL ready responds with 200.
func startProcess(ctx context.Context, name string, output io.Writer, ready, program string, args ...string) (*process, error) {
	command := exec.CommandContext(context.WithoutCancel(ctx), program, args...) //nolint:gosec // this binary or basegate
	command.Stdout, command.Stderr = output, output
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // to kill its workers with it
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &process{name: name, command: command, exited: make(chan error, 1)}
	go func() { p.exited <- command.Wait() }()
	if err := p.awaitReady(ctx, func(ctx context.Context) bool { return respondsOK(ctx, ready) }); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", name, err), p.stop())
	}
	return p, nil
}

func (p *process) awaitReady(ctx context.Context, isReady func(context.Context) bool) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		if isReady(ctx) {
			return nil
		}
		pause := time.NewTimer(20 * time.Millisecond)
		select {
		case <-pause.C:
		case err := <-p.exited:
			p.exited <- nil // for stop
			return errors.Join(errNotReady, err)
		case <-ctx.Done():
			return errNotReady
		}
	}
}

// respondsOK reports whether the URL responds with 200.
func respondsOK(ctx context.Context, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return false
	}
	return resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
}

// stop terminates the process, by SIGKILL if SIGTERM does not, and waits for its exit.
func (p *process) stop() error {
	if err := p.command.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s: %w", p.name, err)
	}
	timer := time.NewTimer(stopTimeout)
	defer timer.Stop()
	select {
	case err := <-p.exited:
		if err != nil && !exitedBySignal(p.command.ProcessState) {
			return fmt.Errorf("stop %s: %w", p.name, err)
		}
		return nil
	case <-timer.C:
		err := errors.Join(errStuck, syscall.Kill(-p.command.Process.Pid, syscall.SIGKILL))
		<-p.exited //nolint:errcheck // killed, so its error says nothing
		return fmt.Errorf("stop %s: %w", p.name, err)
	}
}

// exitedBySignal reports whether SIGTERM ended the process, by its wait status or, as with HAProxy, by a shell's exit
// status for it.
func exitedBySignal(state *os.ProcessState) bool {
	status, known := state.Sys().(syscall.WaitStatus)
	return known && (status.Signaled() && status.Signal() == syscall.SIGTERM || status.ExitStatus() == 128+int(syscall.SIGTERM))
}
