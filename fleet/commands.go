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

	commandSleep Command = "sleep" // only between gateways
)

// queuedCommand is a command that has not been executed yet.
type queuedCommand struct {
	id      int64
	model   string
	backend string // empty: the whole model
	command Command
	age     time.Duration
}

// commandTTL is how long a queued command is valid: one of yesterday must not take effect when the gateway starts.
const commandTTL = time.Minute

// pollDatabase reads the booked windows and the leases, and executes queued commands. If a read fails, the next poll
// repeats it. It reports whether the windows were read.
func (f *Fleet) pollDatabase(ctx context.Context) (windowsRead bool) {
	booked, err := Windows(ctx, f.store.db)
	if err != nil {
		f.log.Debug("read windows", zap.Error(err))
		return false
	}
	f.booked.Store(&booked)
	if f.leases != nil {
		f.pollLeases(ctx)
		f.pollOrders(ctx)
		return true
	}
	f.pollCommands(ctx)
	return true
}

// pollCommands executes each queued command once.
func (f *Fleet) pollCommands(ctx context.Context) {
	commands, err := f.store.commands(ctx)
	if err != nil || len(commands) == 0 {
		return
	}
	f.runCommands(commands)
	if err := f.store.removeCommands(ctx, commands[len(commands)-1].id); err != nil {
		f.log.Warn("executed commands not removed from the queue", zap.Error(err))
	}
}

// pollOrders executes the commands that are this gateway's to execute. Each is taken from the queue first.
func (f *Fleet) pollOrders(ctx context.Context) {
	commands, err := f.orders.take(ctx)
	if err != nil {
		f.log.Debug("take orders", zap.Error(err))
		return
	}
	f.runCommands(commands)
}

func (f *Fleet) runCommands(commands []queuedCommand) {
	for _, c := range commands {
		if err := f.runCommand(c); err != nil {
			f.log.Warn("command not executed", zap.String("model", c.model), zap.String("order", string(c.command)), zap.Error(err))
		}
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
	case c.age > commandTTL:
		return errExpired
	case c.backend != "":
		return m.runOrder(c)
	case c.command == CommandStop:
		return m.Stop("the operator stops it")
	case c.command == commandSleep:
		return m.Sleep("the operator puts it to sleep")
	}
	return m.Warm("the operator warms it")
}

// runOrder executes an order to one backend.
func (m *Model) runOrder(c queuedCommand) error {
	for _, b := range m.backends {
		if b.Name != c.backend {
			continue
		}
		order := b.requestStop
		if c.command == commandSleep {
			order = b.requestSleep
		}
		if !order("the operator stops it") {
			return ErrNotManaged
		}
	}
	return nil
}
