package fleet

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"
)

// Command is an operator's command to a model. Another process queues it in the database for the running gateway.
type Command string

// The commands.
const (
	CommandWarm Command = "warm"
	CommandStop Command = "stop"
)

// queuedCommand is a command that has not been executed yet.
type queuedCommand struct {
	id       int64
	model    string
	command  Command
	queuedAt time.Time
}

// commandTTL is how long a queued command is valid: one of yesterday must not take effect when the gateway starts.
const commandTTL = time.Minute

// pollDatabase reads the booked windows and executes queued commands. If a read fails, the next poll repeats it.
func (f *Fleet) pollDatabase(ctx context.Context) {
	booked, err := Windows(ctx, f.store.db)
	if err != nil {
		f.log.Debug("read windows", zap.Error(err))
		return
	}
	f.booked.Store(&booked)
	f.pollCommands(ctx)
}

// pollCommands executes each queued command once.
func (f *Fleet) pollCommands(ctx context.Context) {
	commands, err := f.store.commands(ctx)
	if err != nil || len(commands) == 0 {
		return
	}
	for _, c := range commands {
		if err := f.runCommand(c); err != nil {
			f.log.Warn("command not executed", zap.String("model", c.model), zap.String("order", string(c.command)), zap.Error(err))
		}
	}
	if err := f.store.removeCommands(ctx, commands[len(commands)-1].id); err != nil {
		f.log.Warn("executed commands not removed from the queue", zap.Error(err))
	}
}

var (
	errUnknownModel = errors.New("the configuration has no such model")
	errExpired      = errors.New("the command has expired: no gateway was running when it was given")
)

func (f *Fleet) runCommand(c queuedCommand) error {
	m, ok := f.Model(c.model)
	switch {
	case !ok:
		return errUnknownModel
	case time.Since(c.queuedAt) > commandTTL:
		return errExpired
	}
	if c.command == CommandStop {
		return m.Stop("the operator stops it")
	}
	return m.Warm("the operator warms it")
}
