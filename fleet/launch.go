package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"
)

const (
	// outputLines is how much of a command's output goes to the log, and outputLine how much of a line, in bytes.
	outputLines = 200
	outputLine  = 1000
	// endWithin is how long a command that is given up has to end by itself.
	endWithin = 5 * time.Second
)

// execute runs a configured command to its end: a program and its arguments, no shell, with the gateway's environment
// and folder. It has a process group of its own, so that a Ctrl-C at the gateway does not reach what it starts; when ctx
// ends it is told to stop. Its output goes to the log, and its last line into the error.
func (b *Backend) execute(ctx context.Context, command []string) error {
	out := &output{log: b.log}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...) //nolint:gosec // the operator's configuration says what to run
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = endWithin
	err := cmd.Run()
	last := out.end()
	switch {
	case err == nil, errors.Is(err, exec.ErrWaitDelay): // what it has left running may hold its output open
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", command[0], context.Cause(ctx))
	case last != "":
		return fmt.Errorf("%s: %w: %s", command[0], err, last)
	default:
		return fmt.Errorf("%s: %w", command[0], err)
	}
}

// LaunchPrograms are the programs that start and stop the backend, where it is ours to launch.
func (b *Backend) LaunchPrograms() []string {
	var programs []string
	if launch := b.policy().Launch; launch != nil {
		for _, command := range [][]string{launch.Start, launch.Stop} {
			if len(command) > 0 && !slices.Contains(programs, command[0]) {
				programs = append(programs, command[0])
			}
		}
	}
	return programs
}

// output logs what a command says, line by line.
type output struct {
	log   *zap.Logger
	mu    sync.Mutex
	part  []byte // of a line that has not ended
	last  string
	lines int
}

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for rest := p; len(rest) > 0; {
		line, after, whole := bytes.Cut(rest, []byte("\n"))
		o.part = append(o.part, line[:min(len(line), outputLine-min(len(o.part), outputLine))]...)
		if whole {
			o.line()
		}
		rest = after
	}
	return len(p), nil
}

// line logs the line that has ended.
func (o *output) line() {
	text := string(bytes.ToValidUTF8(bytes.TrimSpace(o.part), nil))
	o.part = o.part[:0]
	if text == "" {
		return
	}
	o.last = text
	if o.lines++; o.lines <= outputLines {
		o.log.Info("command says", zap.String("line", text))
	}
}

// end is the last line that the command has said.
func (o *output) end() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.line()
	return o.last
}

// post tells vLLM to do something.
func (b *Backend) post(ctx context.Context, path, query string) error {
	address := b.URL(path)
	address.RawQuery = query
	answer, err := b.send(ctx, http.MethodPost, address, nil)
	if err != nil {
		return err
	}
	if answer.Status != http.StatusOK {
		return fmt.Errorf("%s answered %d; vLLM's sleep mode needs --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1", path, answer.Status) //nolint:err113 // for the reason of a state
	}
	return nil
}
