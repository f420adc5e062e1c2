package cli

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"basegate/database"
	"basegate/gateway"
)

// standardStream is the FILE that means stdout or stdin.
const standardStream = "-"

// errPostgresBackup is returned with database.url: a dump of PostgreSQL is not a file that basegate could check.
var errPostgresBackup = errors.New("basegate backup and restore copy a SQLite file, and database.url is set: use PostgreSQL's own tools, " +
	"pg_dump and pg_restore, or pg_basebackup with archived WAL; see docs/operations/postgresql.md")

func newBackup() *cobra.Command {
	return newCommand("backup FILE", "Copy the database to a new file, also while the gateway runs",
		"Copy a consistent snapshot of the database to a file that does not exist yet, or to stdout if FILE is -, and\n"+
			"check the copy. The gateway may keep running, and the database is not migrated. For stdout, the copy takes\n"+
			"space in $TMPDIR, or beside the database. basegate restore FILE puts the copy back.",
		func(cmd *cobra.Command, args []string) error {
			configured, err := configuredDatabase(cmd)
			if err != nil {
				return err
			}
			if configured.Postgres() {
				return errPostgresBackup
			}
			path, to := configured.Path, args[0]
			var contents database.Contents
			if to == standardStream {
				to = "stdout"
				contents, err = database.BackupTo(cmd.Context(), path, cmp.Or(os.Getenv("TMPDIR"), filepath.Dir(path)), cmd.OutOrStdout())
			} else {
				contents, err = database.Backup(cmd.Context(), path, to)
			}
			if err != nil {
				return fmt.Errorf("back up database: %w", err)
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "the database is copied to %s: %s\n", to, describeContents(contents))
			fmt.Fprintln(cmd.ErrOrStderr(), "the copy is checked and on disk; to go back to it, stop the gateway and run: basegate restore FILE")
			return nil
		})
}

func newRestore() *cobra.Command {
	return newCommand("restore FILE", "Put a backup in the place of the database, which is kept; the gateway must be stopped",
		"Check a backup, and put a copy of it in the place of the database: FILE, or stdin if FILE is -. The gateway must\n"+
			"be stopped. The database that is replaced is kept beside the new one. If the backup is damaged, is not a\n"+
			"database of basegate, or was made by a newer version, nothing changes. An older backup is migrated by the next\n"+
			"start of the gateway, or by the next command.",
		func(cmd *cobra.Command, args []string) error {
			cfg, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			if cfg.Database.Postgres() {
				return errPostgresBackup
			}
			path, from := cfg.Database.Path, args[0]
			var restored database.Restored
			if from == standardStream {
				from = "stdin"
				restored, err = database.RestoreFrom(cmd.Context(), path, cmd.InOrStdin())
			} else {
				restored, err = database.Restore(cmd.Context(), path, from)
			}
			if err != nil {
				return fmt.Errorf("restore %s: %w", from, err)
			}
			printRestored(cmd, path, from, gateway.ReceiptSettings(cfg).Folder, restored)
			return nil
		})
}

// printRestored says what was done and what the operator does next.
func printRestored(cmd *cobra.Command, path, from, receiptsFolder string, r database.Restored) {
	say := func(format string, args ...any) { fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", args...) }
	say("the backup %s is restored to %s: %s", from, path, describeContents(r.Contents))
	if r.Previous == "" {
		say("there was no database before")
	} else {
		say("the previous database is kept: %s", r.Previous)
	}
	if r.SchemaVersion < r.Newest {
		say("the next start migrates it from schema version %d to %d", r.SchemaVersion, r.Newest)
	}
	if _, err := os.Stat(receiptsFolder); err == nil {
		say("the receipt log ends with the backup, and must not go on under its key: before the next start, run: basegate receipt log new")
	}
	say("next: start the gateway, and run: basegate check")
	say("what happened after the backup is not in it. Keys that were revoked or paused since then work again, keys that were")
	say("created since then do not, and budgets do not count what was used since then: see basegate key list")
}

// describeContents describes a database in a line without its end.
func describeContents(c database.Contents) string {
	parts := []string{
		humanize.IBytes(uint64(c.Bytes)), fmt.Sprintf("schema version %d", c.SchemaVersion),
		count(c.Accounts, "account"), count(c.Keys, "key"), count(c.Requests, "request"),
	}
	if !c.Latest.IsZero() {
		parts = append(parts, "the latest of "+c.Latest.Format(time.DateTime)+" UTC")
	}
	return strings.Join(parts, ", ")
}
