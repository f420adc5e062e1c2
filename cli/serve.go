package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"basegate/config"
	"basegate/gateway"
)

func newServe() *cobra.Command {
	return &cobra.Command{
		Use:   "serve",
		Short: "Run the gateway",
		Long: "Run the gateway until it is told to stop. SIGHUP reads the configuration again; SIGTERM or an interrupt\n" +
			"lets the requests under way end, for up to server.drain_timeout, and a second one stops at once.",
		Args: cobra.NoArgs,
		RunE: run(func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			signals, end := catchSignals()
			defer end()
			ballast := make([]byte, ballastSize)
			defer runtime.KeepAlive(ballast)
			log := newLogger(cfg.Log, cmd.ErrOrStderr())
			g, err := gateway.New(cmd.Context(), cfg, log)
			if err != nil {
				return err
			}
			for _, w := range cfg.Warnings {
				log.Warn("configuration", zap.String("at", w.Error()))
			}
			if err := g.Start(cmd.Context()); err != nil {
				return err
			}
			return attend(cmd, g, cfg.Server.DrainTimeout, signals, log)
		}),
	}
}

// ballastSize is what the garbage collector takes for live memory, in bytes, although it is never touched and therefore
// none. The gateway lives on so little that the collector would otherwise run dozens of times a second under load: it
// may pile up this much garbage more before it does.
const ballastSize = 32 << 20

// catchSignals begins to collect signals. It comes before the gateway says that it listens: from then on whoever
// reads that may send one, and one that is not caught kills.
func catchSignals() (signals <-chan os.Signal, end func()) {
	caught := make(chan os.Signal, 4)
	signal.Notify(caught, syscall.SIGHUP, syscall.SIGTERM, os.Interrupt)
	return caught, func() { signal.Stop(caught) }
}

// attend lets the gateway run and obeys signals, until it has stopped.
func attend(cmd *cobra.Command, g *gateway.Gateway, drain time.Duration, signals <-chan os.Signal, log *zap.Logger) error {
	for {
		select {
		case err := <-g.Failed():
			return errors.Join(err, stop(cmd.Context(), g, 0, signals))
		case s := <-signals:
			if s != syscall.SIGHUP {
				return stop(cmd.Context(), g, drain, signals)
			}
			cfg, err := loadConfig(cmd)
			if err != nil {
				log.Error("reload refused, the old configuration stays", zap.Error(err))
				continue
			}
			drain = cfg.Server.DrainTimeout
			g.Reload(cfg)
		}
	}
}

// stop drains for up to the given time; another signal to stop ends the drain.
func stop(ctx context.Context, g *gateway.Gateway, drain time.Duration, signals <-chan os.Signal) error {
	ctx, cancel := context.WithTimeout(ctx, drain)
	defer cancel()
	stopped := make(chan struct{})
	defer close(stopped)
	go func() { // ends with this function
		for {
			select {
			case s := <-signals:
				if s != syscall.SIGHUP {
					cancel()
				}
			case <-stopped:
				return
			}
		}
	}()
	if err := g.Stop(ctx); err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	return nil
}

// newLogger makes the logger that the configuration asks for.
func newLogger(c config.Log, to io.Writer) *zap.Logger {
	level, err := zapcore.ParseLevel(c.Level)
	if err != nil { // cannot be: the configuration has been checked
		level = zapcore.InfoLevel
	}
	form := zap.NewProductionEncoderConfig()
	form.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	form.TimeKey = "time"
	encoder := zapcore.NewJSONEncoder(form)
	if c.Format == "console" {
		form.EncodeLevel = zapcore.CapitalLevelEncoder
		encoder = zapcore.NewConsoleEncoder(form)
	}
	return zap.New(zapcore.NewCore(encoder, zapcore.Lock(zapcore.AddSync(to)), level))
}
