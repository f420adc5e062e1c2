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
	"strings"
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
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	f, failed := errors.AsType[*failure](err)
	switch {
	case !failed:
		fmt.Fprintln(stderr, usageError(cmd, err))
		return exitUsage
	case !f.printed:
		fmt.Fprintln(stderr, "basegate:", err)
	}
	return exitFailed
}

func newRoot() *cobra.Command {
	root := newGroup("basegate", "A strict reverse proxy for the completions of base models on vLLM",
		newServe(), newInit(), newDemo(), newMock(), newCheck(), newVerify(), newAccount(), newKey(), newRun(), newUsage(), newModel(), newAdapter(), newBatch(),
		newFile(), newGateway(), newReceipt(), newBackup(), newRestore(), newDatabase(), newVersion())
	root.SilenceUsage, root.SilenceErrors = true, true
	root.Version = versionLine()
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(flagError)
	root.PersistentFlags().String("config", cmp.Or(os.Getenv(configVariable), defaultConfig(packagedConfig)),
		"the configuration's file; "+configVariable+" sets the default")
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		switch c.Name() {
		case "help":
			c.Args = checkTopic
		case "completion":
			c.Short = "Print a script with which a shell completes commands and flags"
			c.Args, c.RunE = checkCommand, func(*cobra.Command, []string) error { return nil } // as of a group
			for _, shell := range c.Commands() {
				shell.Args = checkArguments
			}
		}
	}
	return root
}

// newGroup returns a command that only groups others.
func newGroup(use, short string, commands ...*cobra.Command) *cobra.Command {
	group := &cobra.Command{
		Use: use, Short: short, Args: checkCommand,
		RunE: func(*cobra.Command, []string) error { return nil }, // without it cobra prints the help, and returns no error
	}
	group.AddCommand(commands...)
	return group
}

// failure marks an error of a command whose arguments are right.
type failure struct {
	error

	printed bool // the command has written it to stderr itself
}

// newCommand returns a command that takes the arguments that use names before the first flag. The errors of its operation
// are failures and not wrong arguments. Without long, its help shows short.
func newCommand(use, short, long string, operation func(cmd *cobra.Command, args []string) error) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Long: long, Args: checkArguments, RunE: func(cmd *cobra.Command, args []string) error {
		err := operation(cmd, args)
		if _, marked := errors.AsType[*failure](err); err == nil || marked {
			return err
		}
		return &failure{error: err}
	}}
	if !strings.Contains(use, "FILE") {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	return cmd
}

// requireFlags makes flags of a command required.
func requireFlags(cmd *cobra.Command, names ...string) {
	for _, name := range names {
		cobra.CheckErr(cmd.MarkFlagRequired(name)) // fails only for a flag that is not defined
	}
}

// newStoreCommand returns a command that works on the accounts and keys of the configured database.
func newStoreCommand(
	use, short, long string, operation func(ctx context.Context, cmd *cobra.Command, store *identity.Store, args []string) error,
) *cobra.Command {
	return newCommand(use, short, long, func(cmd *cobra.Command, args []string) error {
		return withStore(cmd, func(ctx context.Context, store *identity.Store) error { return operation(ctx, cmd, store, args) })
	})
}

func configPath(cmd *cobra.Command) string { return cmd.Flag("config").Value.String() }

// loadConfig reads the file of --config.
func loadConfig(cmd *cobra.Command) (*config.Config, error) {
	cfg, err := config.Load(configPath(cmd))
	if err != nil {
		return nil, adviseInit(cmd, fmt.Errorf("read configuration: %w", err))
	}
	return cfg, nil
}

// withStore opens the configured database for one operation on accounts and keys. A running gateway applies a change
// within a second.
func withStore(cmd *cobra.Command, operation func(context.Context, *identity.Store) error) error {
	return withDatabase(cmd, func(ctx context.Context, db *database.DB) error { return operation(ctx, storeOf(db)) })
}

// storeOf returns the accounts and keys of a database.
func storeOf(db *database.DB) *identity.Store {
	return identity.New(db, zap.NewNop(), identity.Settings{})
}

// fromDatabase opens the configured database to read something.
func fromDatabase[T any](cmd *cobra.Command, read func(context.Context, *database.DB) (T, error)) (found T, err error) {
	err = withDatabase(cmd, func(ctx context.Context, db *database.DB) (err error) {
		found, err = read(ctx, db)
		return err
	})
	return found, err
}

func listKeys(ctx context.Context, db *database.DB) ([]identity.Key, error) {
	keys, err := storeOf(db).Keys.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list keys: %w", err)
	}
	return keys, nil
}

func listAccounts(ctx context.Context, db *database.DB) ([]identity.Account, error) {
	accounts, err := storeOf(db).Accounts.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list accounts: %w", err)
	}
	return accounts, nil
}

// commandLockWait is how long a command waits for another process to release the database.
const commandLockWait = 5 * time.Second

// withDatabase opens the configured database for one operation. A gateway may be running on it. Mistakes elsewhere in the
// configuration do not matter: a leaked key can be paused while somebody edits the file.
func withDatabase(cmd *cobra.Command, operation func(context.Context, *database.DB) error) error {
	configured, err := configuredDatabase(cmd)
	if err != nil {
		return err
	}
	return useDatabase(cmd.Context(), &configured, operation)
}

// withConfig opens the configured database for one operation that needs the configuration too, which must have no mistakes.
func withConfig(cmd *cobra.Command, operation func(context.Context, *config.Config, *database.DB) error) error {
	cfg, err := loadConfig(cmd)
	if err != nil {
		return err
	}
	return useDatabase(cmd.Context(), &cfg.Database, func(ctx context.Context, db *database.DB) error { return operation(ctx, cfg, db) })
}

// useDatabase opens a database for one operation.
func useDatabase(ctx context.Context, configured *config.Database, operation func(context.Context, *database.DB) error) (err error) {
	settings := gateway.DatabaseSettings(configured)
	settings.LockWait, settings.Flush = commandLockWait, 0
	db, err := database.Open(ctx, settings, zap.NewNop())
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return operation(ctx, db)
}

// configuredDatabase returns the section of the database. If the configuration has mistakes, it says so on stderr, and
// the database must exist: a command on a new one would only seem to succeed.
func configuredDatabase(cmd *cobra.Command) (config.Database, error) {
	cfg, err := config.LoadPartial(configPath(cmd))
	if err != nil {
		return config.Database{}, adviseInit(cmd, err)
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
