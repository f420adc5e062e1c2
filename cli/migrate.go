package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"basegate/database"
)

func newDatabaseMigrate() *cobra.Command {
	return &cobra.Command{
		Use:   "migrate",
		Short: "Migrate the database to this version, as a gateway does at its start unless database.migrate is false",
		Long: "Migrate the database to this version. A gateway does the same at its start, unless database.migrate is false\n" +
			"because its role may not change the schema. Gateways of the version before may keep running meanwhile.",
		Args: cobra.NoArgs,
		RunE: run(func(cmd *cobra.Command, _ []string) (err error) {
			configured, err := configuredDatabase(cmd)
			if err != nil {
				return err
			}
			configured.Migrate = true
			db, err := openDatabase(cmd.Context(), configured)
			if err != nil {
				return fmt.Errorf("open database: %w", err)
			}
			defer func() { err = errors.Join(err, db.Close()) }()
			return printSchema(cmd, db)
		}),
	}
}

// printSchema says that the database is migrated, and to which version unless it is this program's.
func printSchema(cmd *cobra.Command, db *database.DB) error {
	if err := db.Ping(context.WithoutCancel(cmd.Context())); err != nil {
		return err
	}
	text := "the database is migrated"
	if server := db.Postgres(); server != nil {
		schema, err := server.CheckSchema(cmd.Context())
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
