package cli

import (
	"github.com/spf13/cobra"

	"basegate/database/transfer"
)

func newDatabaseCopy() *cobra.Command {
	var from, to string
	cmd := &cobra.Command{
		Use:   "copy --from PATH --to URL",
		Short: "Copy the database from SQLite to PostgreSQL; the gateways must be stopped",
		Long: "Copy every table from a SQLite database to a PostgreSQL database, and compare the copy with the source, row by row.\n" +
			"--from is the path of a file, --to a URL such as postgres://USER@HOST/DATABASE; its password can be in PGPASSWORD or\n" +
			"~/.pgpass. The target must be empty, and stays so unless the copy is complete. The source is not changed, but migrated\n" +
			"to this version. Gateways must not serve from either. Files are not in the database and stay where they are.",
		Args: cobra.NoArgs,
		RunE: run(func(cmd *cobra.Command, _ []string) error {
			return transfer.Copy(cmd.Context(), from, to, cmd.ErrOrStderr())
		}),
	}
	cmd.Flags().StringVar(&from, "from", "", "the path of the SQLite database")
	cmd.Flags().StringVar(&to, "to", "", "the postgres:// URL of the target")
	for _, name := range []string{"from", "to"} {
		cobra.CheckErr(cmd.MarkFlagRequired(name)) // fails only for a flag that is not defined
	}
	return cmd
}
