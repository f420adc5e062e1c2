package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"basegate/gateway"
	"basegate/gateway/config"
	"basegate/gateway/logwriter"
)

func newServe() *cobra.Command {
	return newCommand("serve", "Run the gateway",
		"Run the gateway in the foreground. SIGHUP reloads the configuration. SIGTERM or an interrupt refuses new\n"+
			"requests and waits for those in flight, up to server.drain_timeout; a second one stops at once.",
		func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			signals, endSignals := catchSignals()
			defer endSignals()
			log, writer := newLogger(cfg.Log, cmd.ErrOrStderr())
			return endLog(writer, serve(cmd, cfg, signals, log, writer))
		})
}

// serve runs the gateway until a signal or a failure stops it.
func serve(cmd *cobra.Command, cfg *config.Config, signals caughtSignals, log *zap.Logger, writer *logwriter.Writer) error {
	ballast := make([]byte, ballastSize)
	defer runtime.KeepAlive(ballast)
	ctx, cancel := context.WithCancelCause(cmd.Context()) // New may wait for the database
	defer cancel(nil)
	stopWatching := onSignal(signals.stop, func() { cancel(errStopped) })
	g, err := gateway.New(ctx, cfg, versionText(), log, writer)
	stopWatching()
	stopped := ctx.Err() != nil
	switch {
	case err != nil && stopped:
		log.Info("stopped before the start was complete", zap.NamedError("unfinished", err))
		return nil
	case err != nil:
		return err
	}
	for _, w := range cfg.Warnings {
		log.Warn("configuration", zap.String("at", w.Error()))
	}
	if socket := unneededDockerSocket(cmd.Context(), cfg); socket != "" {
		log.Warn(dockerSocketWarning, zap.String("socket", socket))
	}
	if err := g.Start(cmd.Context()); err != nil {
		return err
	}
	if stopped { // the signal came when New was about to return
		return stop(cmd.Context(), g, cfg.Server.DrainTimeout, signals)
	}
	return serveUntilSignal(cmd, g, cfg.Server.DrainTimeout, signals)
}

var errStopped = errors.New("a signal has stopped the start")

// onSignal calls act at each signal, until the function that it returns is called.
func onSignal(signals <-chan os.Signal, act func()) (end func()) {
	ended := make(chan struct{})
	var watcher sync.WaitGroup
	watcher.Go(func() {
		for {
			select {
			case <-signals:
				act()
			case <-ended:
				return
			}
		}
	})
	return func() { close(ended); watcher.Wait() }
}

// ballastSize is the size of a GC ballast, in bytes: an allocation that is never touched, and so takes no memory, but
// counts as live heap, so that the garbage collector waits for as much more garbage. The live heap is so small that it
// would otherwise run dozens of times a second under load. debug.SetGCPercent(400) saves as much CPU time, but lets the
// garbage grow with the live heap: 31 instead of 26 KB for each of 9,500 held streams.
const ballastSize = 32 << 20

// caughtSignals are the signals that the process has received.
type caughtSignals struct {
	stop   <-chan os.Signal // SIGTERM and interrupts
	reload <-chan os.Signal // SIGHUP; one waits here for the end of the start
}

// catchSignals starts to receive signals; end ends that. It is called before the gateway logs that it listens,
// because a signal sent in response to that message would otherwise kill the process. SIGPIPE is caught and dropped: it
// would kill the process when the reader of its stdout or stderr has gone. Ignoring it instead would be inherited by
// launch commands.
func catchSignals() (caught caughtSignals, end func()) {
	stops, reloads, pipes := make(chan os.Signal, 4), make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(stops, syscall.SIGTERM, os.Interrupt)
	signal.Notify(reloads, syscall.SIGHUP)
	signal.Notify(pipes, syscall.SIGPIPE)
	return caughtSignals{stops, reloads}, func() { signal.Stop(stops); signal.Stop(reloads); signal.Stop(pipes) }
}

// serveUntilSignal reloads the configuration on each SIGHUP. It returns after another signal or a failure has stopped the
// gateway.
func serveUntilSignal(cmd *cobra.Command, g *gateway.Gateway, drain time.Duration, signals caughtSignals) error {
	for {
		select {
		case err := <-g.Failed():
			return errors.Join(err, stop(cmd.Context(), g, 0, signals))
		case <-signals.stop:
			return stop(cmd.Context(), g, drain, signals)
		case <-signals.reload:
		}
		if cfg, err := loadConfig(cmd); err != nil {
			g.ReloadRefused(err)
		} else {
			drain = cfg.Server.DrainTimeout
			g.Reload(cfg)
		}
	}
}

// stop stops the gateway after a drain of at most the given duration. Another signal except SIGHUP ends the drain.
func stop(ctx context.Context, g *gateway.Gateway, drain time.Duration, signals caughtSignals) error {
	ctx, cancel := context.WithTimeout(ctx, drain)
	defer cancel()
	defer onSignal(signals.stop, cancel)()
	if err := g.Stop(ctx); err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	return nil
}

// newLogger returns a logger with the configured level and format, and the writer through which it writes, which the
// caller closes.
func newLogger(c config.Log, to io.Writer) (*zap.Logger, *logwriter.Writer) {
	level, _ := zapcore.ParseLevel(c.Level) // the configuration has been validated
	encoding := zap.NewProductionEncoderConfig()
	encoding.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	encoding.TimeKey = "time"
	encoder := zapcore.NewJSONEncoder(encoding)
	if c.Format == "console" {
		encoding.EncodeLevel = zapcore.CapitalLevelEncoder
		encoder = zapcore.NewConsoleEncoder(encoding)
	}
	writer := logwriter.New(to)
	return zap.New(zapcore.NewCore(encoder, zapcore.AddSync(writer), level)), writer
}

// logFlushTimeout limits how long the end of a command waits for the reader of its log.
const logFlushTimeout = 2 * time.Second

// endLog writes the error that ends a command behind the lines of its log, and closes the log. Run would wait without a
// limit for a reader that has stalled.
func endLog(writer *logwriter.Writer, err error) error {
	if err != nil {
		fmt.Fprintln(writer, "basegate:", err)
		err = &failure{err, true}
	}
	writer.Close(logFlushTimeout) // an error means that nothing reads stderr, where it would be reported
	return err
}
