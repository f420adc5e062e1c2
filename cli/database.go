package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"basegate/config"
	"basegate/database"
	"basegate/usage"
)

func newDatabase() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "database",
		Short: "Check the rollups of the ledger, and rebuild them",
		Args:  cobra.NoArgs,
		RunE:  requireSubcommand,
	}
	cmd.AddCommand(newDatabaseCheck(), newDatabaseMigrate())
	return cmd
}

// maxDifferences limits the differences that are printed.
const maxDifferences = 20

var errDifferences = errors.New("the rollups differ from the ledger; to rebuild them, stop the gateway and run: basegate database check --repair")

func newDatabaseCheck() *cobra.Command {
	var repair bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Compare the rollups, which usage pages read, with the requests of the ledger",
		Long: "Compare the rollups, which usage pages read, with the requests of the ledger. The exit code is 1 if they\n" +
			"differ. The gateway may keep running. With --repair, rebuild all rollups from the requests: the gateway must\n" +
			"be stopped, and the requests are not changed.",
		Args: cobra.NoArgs,
		RunE: run(func(cmd *cobra.Command, _ []string) error {
			if !repair {
				return withDatabase(cmd, func(ctx context.Context, db *database.DB) error { return checkRollups(ctx, cmd, db) })
			}
			configured, err := configuredDatabase(cmd)
			if err != nil {
				return err
			}
			return withLock(cmd.Context(), configured, func() error {
				return withDatabase(cmd, func(ctx context.Context, db *database.DB) error { return repairRollups(ctx, cmd, db) })
			})
		}),
	}
	cmd.Flags().BoolVar(&repair, "repair", false, "rebuild the rollups; the gateway must be stopped")
	return cmd
}

// withLock runs an operation that no gateway may interfere with.
func withLock(ctx context.Context, configured config.Database, operation func() error) (err error) {
	if configured.Postgres() {
		return errNeedsSQLite
	}
	lock, err := database.Acquire(ctx, configured.Path, "repairs the database")
	if err != nil {
		return fmt.Errorf("lock database: %w", err)
	}
	defer func() { err = errors.Join(err, lock.Release()) }()
	return operation()
}

// errNeedsSQLite is returned by commands that need a SQLite database that no gateway uses.
var errNeedsSQLite = errors.New("this works on SQLite only, and database.url is set")

func checkRollups(ctx context.Context, cmd *cobra.Command, db *database.DB) error {
	found := 0
	err := usage.New(db, zap.NewNop()).Check(ctx, func(d usage.Difference) {
		if found++; found <= maxDifferences {
			fmt.Fprintln(cmd.OutOrStdout(), d)
		}
	})
	if err != nil {
		return err
	}
	if found > maxDifferences {
		fmt.Fprintf(cmd.OutOrStdout(), "and %d more differences\n", found-maxDifferences)
	}
	if found > 0 {
		return errDifferences
	}
	fmt.Fprintln(cmd.ErrOrStderr(), "the rollups are the sums of the ledger's requests")
	return nil
}

func repairRollups(ctx context.Context, cmd *cobra.Command, db *database.DB) error {
	if err := usage.New(db, zap.NewNop()).Rebuild(ctx); err != nil {
		return err
	}
	fmt.Fprintln(cmd.ErrOrStderr(), "the rollups are rebuilt from the ledger's requests")
	return nil
}
