package cli

import (
	"github.com/spf13/cobra"

	"basegate/database/transfer"
)

func newDatabaseCopy() *cobra.Command {
	var from, to string
	cmd := &cobra.Command{
		Use:   "copy --from PATH --to URL",
		Short: "Copy the database from SQLite to PostgreSQL, or back; the gateways must be stopped",
		Long: "Copy every table from a SQLite database to a PostgreSQL database, or back, and compare the copy with the source,\n" +
			"row by row. One of --from and --to is the path of a file, the other a URL such as postgres://USER@HOST/DATABASE;\n" +
			"its password can be in PGPASSWORD or ~/.pgpass. The target must be empty, and is not served before the copy is\n" +
			"complete. A copy that was interrupted is continued by the same command. The source is not changed, but migrated\n" +
			"to this version. Gateways must not serve from either. Files are not in the database and stay where they are.",
		Args: cobra.NoArgs,
		RunE: run(func(cmd *cobra.Command, _ []string) error {
			return transfer.Copy(cmd.Context(), from, to, cmd.ErrOrStderr()) //nolint:wrapcheck // it says what failed
		}),
	}
	cmd.Flags().StringVar(&from, "from", "", "the source: a path or a postgres:// URL")
	cmd.Flags().StringVar(&to, "to", "", "the target: a path or a postgres:// URL")
	for _, name := range []string{"from", "to"} {
		cobra.CheckErr(cmd.MarkFlagRequired(name)) // fails only for a flag that is not defined
	}
	return cmd
}
