package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"basegate/database"
)

func newBackup() *cobra.Command {
	return &cobra.Command{
		Use:   "backup FILE",
		Short: "Copy the database to a new file, also while the gateway runs",
		Long: "Copy a consistent snapshot of the database to a file that does not exist yet. The gateway may keep\n" +
			"running. To restore the copy, stop the gateway, put the copy in place of database.path, and remove the\n" +
			"-wal and -shm files beside it.",
		Args: cobra.ExactArgs(1),
		RunE: run(func(cmd *cobra.Command, args []string) error {
			return withDatabase(cmd, func(ctx context.Context, db *database.DB) error {
				if err := db.Backup(ctx, args[0]); err != nil {
					return fmt.Errorf("back up database: %w", err)
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "the database is copied to %s\n", args[0])
				return nil
			})
		}),
	}
}
