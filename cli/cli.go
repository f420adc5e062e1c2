// Package cli is the command line, with one file per command: it parses flags, calls the packages below and prints
// their results as a table or JSON. Data goes to stdout, everything else to stderr; the exit code distinguishes a
// failure from wrong arguments. It leaves every rule and all SQL to the packages below.
package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"basegate/database"
	"basegate/gateway"
	"basegate/gateway/config"
	"basegate/identity"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// configVariable is the environment variable that sets the default of --config, so that commands in a container need no
// flag.
const configVariable = "BASEGATE_CONFIG"

// Run runs the command in args and returns the exit code: 0, 1 if it failed, or 2 if its arguments are wrong.
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
		if !errors.As(err, new(*printedError)) {
			fmt.Fprintln(stderr, "basegate:", err)
		}
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
		RunE:          requireSubcommand,
	}
	root.CompletionOptions.HiddenDefaultCmd = true // "completion" means a model's text here
	root.PersistentFlags().String("config", cmp.Or(os.Getenv(configVariable), "config.yaml"),
		"the configuration's file; "+configVariable+" sets the default")
	root.AddCommand(
		newServe(), newDemo(), newMock(), newCheck(), newVerify(),
		newAccount(), newKey(), newUsage(), newModel(), newBatch(), newFile(), newGateway(), newReceipt(), newBackup(), newRestore(), newDatabase(), newVersion(),
	)
	return root
}

// requireSubcommand is the RunE of a command that only groups others.
func requireSubcommand(cmd *cobra.Command, _ []string) error {
	return fmt.Errorf("%s: which command?", cmd.CommandPath())
}

// failure marks an error of a command whose arguments are right.
type failure struct{ error }

// Unwrap returns the marked error.
func (f *failure) Unwrap() error { return f.error }

// printedError marks an error that the command has written to stderr itself.
type printedError struct{ error }

// Unwrap returns the marked error.
func (p *printedError) Unwrap() error { return p.error }

// run returns a RunE whose errors are failures and not wrong arguments.
func run(command func(cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := command(cmd, args); err != nil {
			return &failure{err}
		}
		return nil
	}
}

// loadConfig reads the file of --config.
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

// withStore opens the configured database for one operation on accounts and keys. A running gateway applies a change
// within a second.
func withStore(cmd *cobra.Command, operation func(context.Context, *identity.Store) error) error {
	return withDatabase(cmd, func(ctx context.Context, db *database.DB) error {
		return operation(ctx, identity.New(db, zap.NewNop(), identity.Settings{}))
	})
}

// commandLockWait is how long a command waits for another process to release the database.
const commandLockWait = 5 * time.Second

// withDatabase opens the configured database for one operation. A gateway may be running on it. Mistakes elsewhere in the
// configuration do not matter: a leaked key can be paused while somebody edits the file.
func withDatabase(cmd *cobra.Command, operation func(context.Context, *database.DB) error) (err error) {
	configured, err := configuredDatabase(cmd)
	if err != nil {
		return err
	}
	db, err := openDatabase(cmd.Context(), configured)
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return operation(cmd.Context(), db)
}

// openDatabase opens the configured database for a command.
func openDatabase(ctx context.Context, configured config.Database) (*database.DB, error) {
	settings := gateway.DatabaseSettings(&configured)
	settings.LockWait, settings.Flush = commandLockWait, 0
	return database.Open(ctx, settings, zap.NewNop())
}

// configuredDatabase returns the section of the database. If the configuration has mistakes, it says so on stderr, and
// the database must exist: a command on a new one would only seem to succeed.
func configuredDatabase(cmd *cobra.Command) (config.Database, error) {
	cfg, err := loadPartialConfig(cmd)
	if err != nil {
		return config.Database{}, err
	}
	certain, err := cfg.Config("database")
	if err != nil {
		return config.Database{}, fmt.Errorf("read configuration: %w", err)
	}
	db, mistakes := certain.Database, cfg.Mistakes()
	if mistakes == nil {
		return db, nil
	}
	if _, err := os.Stat(db.Path); err != nil && !db.Postgres() {
		return config.Database{}, fmt.Errorf("read configuration: %w", errors.Join(mistakes, err))
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "basegate: the configuration has mistakes, which basegate check lists; "+
		"this command uses only its database, %s\n", db.Location())
	return db, nil
}

// loadPartialConfig reads the file of --config, which may have mistakes.
func loadPartialConfig(cmd *cobra.Command) (*config.Partial, error) {
	path, err := cmd.Flags().GetString("config")
	if err != nil {
		return nil, fmt.Errorf("read flag: %w", err)
	}
	return config.LoadPartial(path)
}
