package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"basegate/budget/cluster"
	"basegate/budget/usage"
	"basegate/database"
	"basegate/database/consistency"
	"basegate/database/transfer"
	"basegate/gateway"
	"basegate/gateway/config"
)

func newDatabase() *cobra.Command {
	return newGroup("database", "Check, repair, copy and migrate the database", newDatabaseCheck(), newDatabaseCopy(), newDatabaseMigrate())
}

// maxDifferences limits the differences of rollups that are printed.
const maxDifferences = 20

var errDifferences = errors.New("the database contradicts itself, see above; to mend it: basegate database check --repair")

func newDatabaseCheck() *cobra.Command {
	var repair bool
	cmd := newCommand("check", "Compare the rollups, the ledger's counters and the files with what they are made of",
		"Compare the rollups, which usage pages read, with the requests of the ledger, and the rows of files with the\n"+
			"storage. On PostgreSQL, compare also the counters of keys and accounts with their requests, and look for requests\n"+
			"in flight of gateways that do not run. The exit code is 1 if something differs. Gateways may keep running.\n\n"+
			"With --repair, rebuild all rollups from the requests, count the counters that differ again, end the requests of\n"+
			"gateways that do not run, mark files whose bytes are lost, and delete objects that belong to no file and no\n"+
			"saved prompt. The requests are not changed. On SQLite the gateway must be stopped. On PostgreSQL, requests of an\n"+
			"account wait while it is counted again.",
		func(cmd *cobra.Command, _ []string) error {
			configured, err := configuredDatabase(cmd)
			if err != nil {
				return err
			}
			if !repair {
				return useDatabase(cmd.Context(), &configured, func(ctx context.Context, db *database.DB) error { return checkConsistency(ctx, cmd, db) })
			}
			return useAlone(cmd.Context(), &configured, func(ctx context.Context, db *database.DB) error { return repairConsistency(ctx, cmd, db) })
		})
	cmd.Flags().BoolVar(&repair, "repair", false, "mend what differs; on SQLite the gateway must be stopped")
	return cmd
}

// useAlone is useDatabase for an operation that the gateway of a SQLite database may not interfere with.
func useAlone(ctx context.Context, configured *config.Database, operation func(context.Context, *database.DB) error) (err error) {
	if configured.Postgres() {
		return useDatabase(ctx, configured, operation)
	}
	lock, err := database.Acquire(ctx, configured.Path, "repairs the database")
	if err != nil {
		return fmt.Errorf("lock database: %w", err)
	}
	defer func() { err = errors.Join(err, lock.Release()) }()
	return useDatabase(ctx, configured, operation)
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
		endLeft := func(ctx context.Context) (int64, error) { return cluster.EndLeft(ctx, server) }
		if err := consistency.NewLedger(server).Repair(ctx, endLeft, report); err != nil {
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
	return operation(consistency.NewFiles(db, store, storeOf(db).AuditLog))
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

func newDatabaseCopy() *cobra.Command {
	var from, to string
	cmd := newCommand("copy --from PATH --to URL", "Copy the database from SQLite to PostgreSQL; the gateways must be stopped",
		"Copy every table from a SQLite database to a PostgreSQL database, and compare the copy with the source, row by row.\n"+
			"--from is the path of a file, --to a URL such as postgres://USER@HOST/DATABASE; its password can be in PGPASSWORD or\n"+
			"~/.pgpass. The target must be empty, and stays so unless the copy is complete. The source is not changed, but migrated\n"+
			"to this version. Gateways must not serve from either. Files are not in the database and stay where they are.",
		func(cmd *cobra.Command, _ []string) error {
			return transfer.Copy(cmd.Context(), from, to, cmd.ErrOrStderr())
		})
	cmd.Flags().StringVar(&from, "from", "", "the path of the SQLite database")
	cmd.Flags().StringVar(&to, "to", "", "the postgres:// URL of the target")
	requireFlags(cmd, "from", "to")
	return cmd
}

func newDatabaseMigrate() *cobra.Command {
	return newCommand("migrate", "Migrate the database to this version, as a gateway does at its start unless database.migrate is false",
		"Migrate the database to this version. A gateway does the same at its start, unless database.migrate is false\n"+
			"because its role may not change the schema. Gateways of the version before may keep running meanwhile.",
		func(cmd *cobra.Command, _ []string) error {
			configured, err := configuredDatabase(cmd)
			if err != nil {
				return err
			}
			configured.Migrate = true
			return useDatabase(cmd.Context(), &configured, func(ctx context.Context, db *database.DB) error { return printSchema(ctx, cmd, db) })
		})
}

// printSchema says that the database is migrated, and to which version unless it is this program's.
func printSchema(ctx context.Context, cmd *cobra.Command, db *database.DB) error {
	if err := db.Ping(ctx); err != nil {
		return err
	}
	text := "the database is migrated"
	if server := db.Postgres(); server != nil {
		schema, err := server.CheckSchema(ctx)
		if err != nil {
			return err
		}
		if schema.Newer() {
			text = fmt.Sprintf("nothing to migrate: the schema has version %d, this program knows up to %d and may work on it",
				schema.Version, schema.Known)
		}
	}
	_, err := fmt.Fprintln(cmd.ErrOrStderr(), text)
	return err
}
