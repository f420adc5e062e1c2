package fleet

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"
)

const (
	// maxOutputLines limits how many lines of a command's output are logged.
	maxOutputLines = 200
	// maxLineLength limits a logged line, in bytes.
	maxLineLength = 1000
	// fenceVariable is the environment variable with the fencing number: a higher one than those of all programs that were run
	// for the backend before.
	fenceVariable = "BASEGATE_FENCE"
	// terminateTimeout is how long a cancelled command may take to exit after SIGTERM.
	terminateTimeout = 2 * time.Second
)

// execute runs a configured command without a shell and waits for it. The command has a process group of its own, so that a Ctrl-C
// at the gateway does not reach it. The last line of its output is returned, or part of the error.
//
// When ctx ends, the whole process group is terminated, unless keepRunning returns true: the command is then the model
// itself, which is up. Output is logged only while logOutput returns true, since some versions of vLLM print prompts.
func (b *Backend) execute(ctx context.Context, command []string, fence int64, keepRunning, logOutput func() bool) (last string, err error) {
	if ctx.Err() != nil { // the boot was aborted before its command started
		return "", fmt.Errorf("%s: %w", command[0], context.Cause(ctx))
	}
	read, write, err := os.Pipe() // a pipe of os/exec would make Wait wait for processes that the command leaves running
	if err != nil {
		return "", fmt.Errorf("%s: %w", command[0], err)
	}
	cmd := exec.Command(command[0], command[1:]...) //nolint:noctx // the operator configures the command; ctx is handled below
	cmd.Stdout, cmd.Stderr = write, write
	cmd.Env = append(os.Environ(), fenceVariable+"="+strconv.FormatInt(fence, 10))
	if n := b.Replica(); n > 0 {
		cmd.Env = append(cmd.Env, replicaVariable+"="+strconv.Itoa(n))
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = cmd.Start()
	write.Close() // the command has its own descriptor
	if err != nil {
		read.Close()
		return "", fmt.Errorf("%s: %w", command[0], err)
	}
	out := &output{log: b.log, kept: &b.commands, enabled: logOutput, done: make(chan struct{})}
	b.fleet.tasks.Run(func(ctx context.Context) { out.copyToLog(ctx, read) })
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	select {
	case err = <-exited:
		return out.result(command[0], err)
	case <-ctx.Done():
	}
	if keepRunning() {
		return "", nil
	}
	terminateGroup(cmd.Process.Pid, exited)
	return "", fmt.Errorf("%s: %w", command[0], context.Cause(ctx))
}

// terminateGroup sends SIGTERM to a process group, and SIGKILL after terminateTimeout. It waits for all processes of the group and
// not only for its leader, since a shell may exit before those that it runs.
func terminateGroup(leader int, exited <-chan error) {
	syscall.Kill(-leader, syscall.SIGTERM)
	timeout := time.NewTimer(terminateTimeout)
	defer timeout.Stop()
	poll := time.NewTicker(terminateTimeout / 100)
	defer poll.Stop()
	for running := true; running; {
		select {
		case <-exited: //nolint:errcheck // it was terminated
			exited = nil
		case <-poll.C:
			running = exited != nil || syscall.Kill(-leader, 0) == nil
		case <-timeout.C:
			syscall.Kill(-leader, syscall.SIGKILL)
			running = false
		}
	}
	if exited != nil {
		<-exited //nolint:errcheck // as above
	}
}

// output logs the output of a command and of the processes it starts, and keeps its last lines.
type output struct {
	log     *zap.Logger
	kept    *commandLog
	enabled func() bool   // whether a line is logged and kept
	done    chan struct{} // closed at the end of the output
	mu      sync.Mutex
	last    string
}

// copyToLog reads until the end of the output or of ctx.
func (o *output) copyToLog(ctx context.Context, source *os.File) {
	defer close(o.done)
	defer context.AfterFunc(ctx, func() { source.Close() })() // makes ReadLine return
	defer source.Close()
	lines := bufio.NewReaderSize(source, maxLineLength)
	for count := 1; ; count++ {
		part, long, err := lines.ReadLine()
		if err != nil {
			return
		}
		text := strings.TrimSpace(strings.ToValidUTF8(string(part), ""))
		for long && err == nil { // skip the rest of a line that is too long
			_, long, err = lines.ReadLine()
		}
		if text == "" {
			continue
		}
		o.mu.Lock()
		o.last = text
		o.mu.Unlock()
		if !o.enabled() {
			continue
		}
		o.kept.add(time.Now(), text)
		if count <= maxOutputLines {
			o.log.Info("command output", zap.String("line", text))
		}
	}
}

// result returns the last line of the output of a command that has exited, or its error with that line.
func (o *output) result(program string, err error) (last string, _ error) {
	timeout := time.NewTimer(terminateTimeout) // a process left running may keep the output open
	defer timeout.Stop()
	select {
	case <-o.done:
	case <-timeout.C:
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case err == nil:
		return o.last, nil
	case o.last == "":
		return "", fmt.Errorf("%s: %w", program, err)
	}
	return "", fmt.Errorf("%s: %w: %s", program, err, o.last)
}

// post sends a request without a body to vLLM's sleep API.
func (b *Backend) post(ctx context.Context, path, query string) error {
	address := b.URL(path)
	address.RawQuery = query
	response, err := b.do(ctx, http.MethodPost, address, nil, maxResponseBody)
	if err != nil {
		return err
	}
	if response.Status != http.StatusOK {
		return fmt.Errorf("%s answered %d; vLLM's sleep mode needs --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1", path, response.Status)
	}
	return nil
}
