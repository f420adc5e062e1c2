package fleet

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"go.uber.org/zap"

	"basegate/database"
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
	booked, err := Windows(ctx, f.db)
	if err != nil {
		f.log.Debug("read windows", zap.Error(err))
		return false
	}
	f.booked.Store(&booked)
	if f.leases != nil {
		f.pollLeases(ctx)
	}
	commands, err := f.takeCommands(ctx)
	if err != nil {
		f.log.Debug("take commands", zap.Error(err))
	}
	for _, c := range commands {
		if err := f.runCommand(c); err != nil {
			f.log.Warn("command not executed", zap.String("model", c.model), zap.String("order", string(c.command)), zap.Error(err))
		}
	}
	return true
}

const (
	// takeAll takes all commands, as a gateway does that shares its backends with no other.
	takeAll = `DELETE FROM model_orders RETURNING id, model, '', order_name, $1 - given_at`
	// takeOwn takes the commands to backends and models whose lease the gateway holds, or no gateway does.
	takeOwn = `WITH held AS (
			SELECT l.model, l.backend, l.gateway = $1 AND l.epoch = $2 AS mine
			FROM backend_leases l JOIN gateway g ON g.id = l.gateway AND g.epoch = l.epoch AND g.alive WHERE l.operation <> '')
		DELETE FROM model_orders o
		WHERE EXISTS (SELECT FROM held h WHERE h.mine AND h.model = o.model AND o.backend IN ('', h.backend))
			OR NOT EXISTS (SELECT FROM held h WHERE h.model = o.model AND o.backend IN ('', h.backend))
		RETURNING id, model, backend, order_name, ` + databaseTime + ` - given_at`
)

// takeCommands removes the commands that are this gateway's to execute from the queue, and returns them, the oldest first.
// If it is unknown whether they were removed, they may come again later, and to execute them in their order once more
// changes nothing.
func (f *Fleet) takeCommands(ctx context.Context) (_ []queuedCommand, err error) {
	var queued bool
	if err := f.db.Read().QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM model_orders)`).Scan(&queued); err != nil || !queued {
		return nil, err
	}
	var found []queuedCommand
	take := func(tx database.Tx, text string, args ...any) (err error) {
		found, err = database.List(ctx, tx, scanCommand, text, args...)
		return cmp.Or(err, ctx.Err()) // a fleet that is closed executes nothing
	}
	if f.leases == nil {
		err = f.db.WriteExclusive(ctx, func(tx database.Tx) error { return take(tx, takeAll, time.Now().UnixMicro()) })
	} else {
		err = f.leases.write(ctx, func(tx database.Tx, gateway int32, epoch int64) error { return take(tx, takeOwn, gateway, epoch) })
	}
	slices.SortFunc(found, func(a, b queuedCommand) int { return cmp.Compare(a.id, b.id) })
	return found, err
}

func scanCommand(row database.Scanner) (c queuedCommand, err error) {
	var age int64
	err = row.Scan(&c.id, &c.model, &c.backend, &c.command, &age)
	c.age = micros(age)
	return c, err
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
	}
	backends := m.backends
	if c.backend != "" {
		backends = slices.DeleteFunc(slices.Clone(backends), func(b *Backend) bool { return b.Name != c.backend })
	}
	if c.command == commandSleep {
		return order(backends, (*Backend).requestSleep, "the operator puts it to sleep")
	}
	return order(backends, (*Backend).requestStop, "the operator stops it")
}
