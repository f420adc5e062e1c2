package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"basegate/budget/usage"
	"basegate/database"
	"basegate/database/consistency"
	"basegate/gateway"
	"basegate/gateway/config"
	"basegate/identity"
)

func newDatabase() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "database",
		Short: "Check, repair, copy and migrate the database",
		Args:  cobra.NoArgs,
		RunE:  requireSubcommand,
	}
	cmd.AddCommand(newDatabaseCheck(), newDatabaseCopy(), newDatabaseMigrate())
	return cmd
}

// maxDifferences limits the differences of rollups that are printed.
const maxDifferences = 20

var errDifferences = errors.New("the database contradicts itself, see above; to mend it: basegate database check --repair")

func newDatabaseCheck() *cobra.Command {
	var repair bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Compare the rollups, the ledger's counters and the files with what they are made of",
		Long: "Compare the rollups, which usage pages read, with the requests of the ledger, and the rows of files with the\n" +
			"storage. On PostgreSQL, compare also the counters of keys and accounts with their requests, and look for requests\n" +
			"in flight of gateways that do not run. The exit code is 1 if something differs. Gateways may keep running.\n\n" +
			"With --repair, rebuild all rollups from the requests, count the counters that differ again, end the requests of\n" +
			"gateways that do not run, mark files and delete saved prompts whose bytes are lost, and delete objects that\n" +
			"belong to neither. The requests are not changed. On SQLite the gateway must be stopped. On PostgreSQL,\n" +
			"requests of an account wait while it is counted again.",
		Args: cobra.NoArgs,
		RunE: run(func(cmd *cobra.Command, _ []string) error {
			if !repair {
				return withDatabase(cmd, func(ctx context.Context, db *database.DB) error { return checkConsistency(ctx, cmd, db) })
			}
			configured, err := configuredDatabase(cmd)
			if err != nil {
				return err
			}
			return withLock(cmd.Context(), configured, func() error {
				return withDatabase(cmd, func(ctx context.Context, db *database.DB) error { return repairConsistency(ctx, cmd, db) })
			})
		}),
	}
	cmd.Flags().BoolVar(&repair, "repair", false, "mend what differs; on SQLite the gateway must be stopped")
	return cmd
}

// withLock runs an operation that the gateway of a SQLite database may not interfere with.
func withLock(ctx context.Context, configured config.Database, operation func() error) (err error) {
	if configured.Postgres() {
		return operation()
	}
	lock, err := database.Acquire(ctx, configured.Path, "repairs the database")
	if err != nil {
		return fmt.Errorf("lock database: %w", err)
	}
	defer func() { err = errors.Join(err, lock.Release()) }()
	return operation()
}

// checkConsistency prints what differs.
func checkConsistency(ctx context.Context, cmd *cobra.Command, db *database.DB) error {
	differs, err := checkRollups(ctx, cmd, db)
	if err != nil {
		return err
	}
	report := func(p consistency.Problem) {
		to := cmd.OutOrStdout()
		if p.Note {
			to = cmd.ErrOrStderr()
		}
		differs = differs || !p.Note
		fmt.Fprintln(to, p)
	}
	if server := db.Postgres(); server != nil {
		if err := consistency.NewLedger(server).Check(ctx, report); err != nil {
			return err
		}
	}
	err = withFiles(cmd, db, func(f *consistency.Files) error { return f.Check(ctx, report) })
	if err != nil {
		return err
	}
	if differs {
		return errDifferences
	}
	fmt.Fprintln(cmd.ErrOrStderr(), "the rollups are the sums of the ledger's requests")
	if db.Postgres() != nil {
		fmt.Fprintln(cmd.ErrOrStderr(), "so are the counters, and every request in flight has a gateway")
	}
	return nil
}

// repairConsistency mends what differs, and prints what it did.
func repairConsistency(ctx context.Context, cmd *cobra.Command, db *database.DB) error {
	report := func(text string) { fmt.Fprintln(cmd.ErrOrStderr(), text) }
	if server := db.Postgres(); server != nil {
		if err := consistency.NewLedger(server).Repair(ctx, report); err != nil {
			return err
		}
	}
	if err := usage.New(db, zap.NewNop()).Rebuild(ctx); err != nil {
		return err
	}
	report("the rollups are rebuilt from the ledger's requests")
	return withFiles(cmd, db, func(f *consistency.Files) error { return f.Repair(ctx, report) })
}

// withFiles runs an operation on the files. Where they are is known only from a configuration without mistakes.
func withFiles(cmd *cobra.Command, db *database.DB, operation func(*consistency.Files) error) (err error) {
	cfg, err := loadConfig(cmd)
	if err != nil {
		fmt.Fprintln(cmd.ErrOrStderr(), "files are not checked: the configuration has mistakes, which basegate check lists")
		return nil
	}
	store, err := gateway.OpenFiles(cfg)
	if err != nil {
		return fmt.Errorf("open the storage of files: %w", err)
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	accounts := identity.New(db, zap.NewNop(), identity.Settings{})
	return operation(consistency.NewFiles(db, store, accounts.AuditLog))
}

// checkRollups prints the rollups that differ, and reports whether there are any.
func checkRollups(ctx context.Context, cmd *cobra.Command, db *database.DB) (differs bool, err error) {
	found := 0
	err = usage.New(db, zap.NewNop()).Check(ctx, func(d usage.Difference) {
		if found++; found <= maxDifferences {
			fmt.Fprintln(cmd.OutOrStdout(), d)
		}
	})
	if err != nil {
		return false, err
	}
	if found > maxDifferences {
		fmt.Fprintf(cmd.OutOrStdout(), "and %d more differences\n", found-maxDifferences)
	}
	return found > 0, nil
}
