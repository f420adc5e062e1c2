package fleet

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"go.uber.org/zap"

	"basegate/database"
	"basegate/internal/wait"
)

// Command is an operator's command to a model. Another process queues it in the database for the running gateway.
type Command string

// The commands.
const (
	CommandWarm Command = "warm"
	CommandStop Command = "stop"

	commandSleep Command = "sleep" // only from a gateway to the one that leads
)

type queuedCommand struct {
	id      int64
	model   string
	command Command
	age     time.Duration
}

const (
	// commandTTL is how long a queued command is valid: one of yesterday must not take effect when the gateway starts.
	commandTTL = time.Minute
	// forwardRetry is the pause before a command is queued again after a failure of the database.
	forwardRetry = 250 * time.Millisecond
)

// pollDatabase reads the booked windows, the adapters and what the other gateways have written, and executes queued commands. If a read
// fails, the next poll repeats it. It reports whether the windows were read.
func (f *Fleet) pollDatabase(ctx context.Context) (windowsRead bool) {
	booked, err := Windows(ctx, f.db)
	if err != nil {
		f.log.Debug("read windows", zap.Error(err))
		return false
	}
	f.booked.Store(&booked)
	if err := f.pollAdapters(ctx); err != nil {
		f.log.Debug("poll adapters", zap.Error(err))
	}
	if f.cluster != nil {
		f.sync(ctx)
	}
	commands, err := f.takeCommands(ctx)
	if err != nil {
		f.log.Debug("take commands", zap.Error(err))
	}
	for _, c := range commands {
		if err := f.runCommand(c); err != nil {
			f.log.Warn("command not executed", zap.String("model", c.model), zap.String("command", string(c.command)), zap.Error(err))
		}
	}
	return true
}

// takeCommands removes the commands from the queue, unless several gateways share it, and returns them, the oldest first. They may
// come again if it is unknown whether they were removed: to execute them in their order once more changes nothing.
func (f *Fleet) takeCommands(ctx context.Context) (_ []queuedCommand, err error) {
	if f.cluster != nil {
		return f.cluster.commands(ctx)
	}
	var queued bool
	if err := f.db.Read().QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM model_orders)`).Scan(&queued); err != nil || !queued {
		return nil, err
	}
	var found []queuedCommand
	err = f.db.WriteExclusive(ctx, func(tx database.Tx) (err error) {
		const text = `DELETE FROM model_orders RETURNING id, model, order_name, $1 - given_at`
		found, err = database.List(ctx, tx, scanCommand, text, time.Now().UnixMicro())
		return cmp.Or(err, ctx.Err()) // a fleet that is closed executes nothing
	})
	slices.SortFunc(found, func(a, b queuedCommand) int { return cmp.Compare(a.id, b.id) })
	return found, err
}

func scanCommand(row database.Scanner) (c queuedCommand, err error) {
	var age int64
	err = row.Scan(&c.id, &c.model, &c.command, &age)
	c.age = micros(age)
	return c, err
}

// forward queues a command for the gateway that leads, and repeats that while the database is away.
func (f *Fleet) forward(model string, c Command) {
	f.tasks.Run(func(ctx context.Context) {
		for Enqueue(ctx, f.db, model, c) != nil && wait.For(ctx, forwardRetry) {
		}
	})
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
	case c.command == CommandWarm:
		return m.Warm("the operator warms it")
	case c.command == commandSleep:
		return m.Sleep("the operator puts it to sleep")
	}
	return m.Stop("the operator stops it")
}
