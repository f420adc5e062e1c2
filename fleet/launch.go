package fleet

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
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
	endWithin = 2 * time.Second
)

// execute runs a configured command to its end: a program and its arguments, no shell, with the gateway's environment
// and folder. It has a process group of its own, so that a Ctrl-C at the gateway does not reach what it starts. Its
// output goes to the log, and its last line into the error.
//
// When ctx ends the whole group is ended, unless spare says that the command is the model itself, which is up. What the
// model then says is not for the log: some versions of vLLM print prompts.
func (b *Backend) execute(ctx context.Context, command []string, spare, heard func() bool) error {
	if ctx.Err() != nil { // nothing is begun that is given up already
		return fmt.Errorf("%s: %w", command[0], context.Cause(ctx))
	}
	read, write, err := os.Pipe() // not one of exec's, which would wait for whatever the command leaves running
	if err != nil {
		return fmt.Errorf("%s: %w", command[0], err)
	}
	cmd := exec.Command(command[0], command[1:]...) //nolint:gosec,noctx // the operator's configuration says what to run; ctx is obeyed below
	cmd.Stdout, cmd.Stderr = write, write
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = cmd.Start()
	write.Close() // the command has its own
	if err != nil {
		read.Close()
		return fmt.Errorf("%s: %w", command[0], err)
	}
	out := &output{log: b.log, heard: heard, done: make(chan struct{})}
	b.crew.run(func(ctx context.Context) { out.follow(ctx, read) })
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err = <-ended:
		return out.explain(command[0], err)
	case <-ctx.Done():
	}
	if spare() {
		return nil
	}
	endGroup(cmd.Process.Pid, ended)
	return fmt.Errorf("%s: %w", command[0], context.Cause(ctx))
}

// endGroup ends a process and all that it has started, by force where they do not end by themselves. A shell may end before
// what it runs.
func endGroup(leader int, ended <-chan error) {
	syscall.Kill(-leader, syscall.SIGTERM) //nolint:errcheck // it may have ended by itself
	timer := time.NewTimer(endWithin)
	defer timer.Stop()
	look := time.NewTicker(endWithin / 100)
	defer look.Stop()
	for running := true; running; {
		select {
		case <-ended: //nolint:errcheck // it was ended, whatever it says
			ended = nil
		case <-look.C:
			running = ended != nil || syscall.Kill(-leader, 0) == nil
		case <-timer.C:
			syscall.Kill(-leader, syscall.SIGKILL) //nolint:errcheck // as above
			running = false
		}
	}
	if ended != nil {
		<-ended //nolint:errcheck // as above
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

// output reads what a command says, line by line, for as long as the command or what it has started says anything.
type output struct {
	log   *zap.Logger
	heard func() bool   // whether it is logged
	done  chan struct{} // closed when there is nothing more
	mu    sync.Mutex
	last  string
}

// follow reads to the end, or until ctx ends.
func (o *output) follow(ctx context.Context, source *os.File) {
	defer close(o.done)
	defer context.AfterFunc(ctx, func() { source.Close() })() // so that the read below ends
	defer source.Close()
	lines := bufio.NewReaderSize(source, outputLine)
	for count := 1; ; count++ {
		part, long, err := lines.ReadLine()
		if err != nil {
			return
		}
		text := strings.TrimSpace(strings.ToValidUTF8(string(part), ""))
		for long && err == nil { // the rest of a line that is too long
			_, long, err = lines.ReadLine()
		}
		if text == "" {
			continue
		}
		o.mu.Lock()
		o.last = text
		o.mu.Unlock()
		if count <= outputLines && o.heard() {
			o.log.Info("command says", zap.String("line", text))
		}
	}
}

// explain is the error of a command that has ended, with the last thing that it said.
func (o *output) explain(program string, err error) error {
	if err == nil {
		return nil
	}
	wait := time.NewTimer(endWithin) // it may have left something running that holds its output
	defer wait.Stop()
	select {
	case <-o.done:
	case <-wait.C:
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.last == "" {
		return fmt.Errorf("%s: %w", program, err)
	}
	return fmt.Errorf("%s: %w: %s", program, err, o.last)
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
