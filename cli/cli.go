// Package cli is the command line: one file a command, each of which turns flags into a call of the packages below
// and its result into a table or JSON. Data goes to stdout, everything else to stderr.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"basegate/config"
	"basegate/database"
	"basegate/identity"
)

// The exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// Run runs the command that args name and returns the exit code: 0, 1 when it failed, 2 when it was called wrongly.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	var f *failure
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &f):
		fmt.Fprintln(stderr, "basegate:", err)
		return exitFailed
	default:
		fmt.Fprintln(stderr, "basegate:", err)
		fmt.Fprintln(stderr, "See basegate help, or basegate COMMAND --help.")
		return exitUsage
	}
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "basegate",
		Short:         "A strict reverse proxy for the completions of base models on vLLM",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          group,
	}
	root.CompletionOptions.HiddenDefaultCmd = true // "completion" means something else here
	root.PersistentFlags().String("config", "config.yaml", "the configuration's file")
	root.AddCommand(
		newServe(), newDemo(), newMock(), newCheck(),
		newAccount(), newKey(), newUsage(), newModel(), newBackup(), newVersion(),
	)
	return root
}

// group is the RunE of a command that only holds others.
func group(cmd *cobra.Command, _ []string) error {
	return fmt.Errorf("%s: which command?", cmd.CommandPath())
}

// failure is an error of a command that was called rightly.
type failure struct{ error }

// Unwrap is the error itself.
func (f *failure) Unwrap() error { return f.error }

// run makes a RunE whose errors are failures and not misuse.
func run(do func(cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := do(cmd, args); err != nil {
			return &failure{err}
		}
		return nil
	}
}

// loadConfig reads the file that --config names.
func loadConfig(cmd *cobra.Command) (*config.Config, error) {
	path, err := cmd.Flags().GetString("config")
	if err != nil {
		return nil, fmt.Errorf("read flag: %w", err)
	}
	cfg, err := config.Load(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	return cfg, nil
}

// withStore opens the configured database for one operation on accounts and keys. A running server sees the change
// within a second.
func withStore(cmd *cobra.Command, do func(context.Context, *identity.Store) error) error {
	return withDatabase(cmd, func(ctx context.Context, db *database.DB) error {
		return do(ctx, identity.New(db, zap.NewNop(), identity.Settings{}))
	})
}

// withDatabase opens the configured database, also beside a running server.
func withDatabase(cmd *cobra.Command, do func(context.Context, *database.DB) error) (err error) {
	cfg, err := loadConfig(cmd)
	if err != nil {
		return err
	}
	settings := database.Settings{Path: cfg.Database.Path, LockWait: commandLockWait}
	db, err := database.Open(cmd.Context(), settings, zap.NewNop())
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return do(cmd.Context(), db)
}
