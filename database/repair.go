package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// repair brings the schema that an edited migration has left to the form that a later migration expects. Migrations 2
// and 5 were changed after databases had been made with them; since then, checksums keep migrations as they are.
type repair struct {
	before     int64  // the migration that would fail
	condition  string // a query for one row: whether the schema has the other form
	statements []string
}

var repairs = []repair{
	{ // commits 767869c to 8c570de: migration 2 created no index by key, which migration 6 drops
		before: 6,
		condition: `SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'requests')
			AND NOT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'requests_key')`,
		statements: []string{`CREATE INDEX requests_key ON requests (key_id) WHERE false`},
	},
	{ // commits 86d636f to 8c570de: migration 2 created key_uses, as migration 6 does; it fills the table from requests
		before:     6,
		condition:  `SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'key_uses')`,
		statements: []string{`DROP TABLE key_uses`},
	},
	{ // commits 129a88c to 571a4cd: migration 5 had no searchable text of prompts, which migration 9 reads
		before: 9,
		condition: `SELECT EXISTS (SELECT 1 FROM pragma_table_info('prompts'))
			AND NOT EXISTS (SELECT 1 FROM pragma_table_info('prompts') WHERE name = 'words')`,
		statements: []string{
			`ALTER TABLE prompts ADD COLUMN words TEXT NOT NULL DEFAULT ''`,
			`UPDATE prompts SET words = lower(name || char(10) || coalesce(
				(SELECT group_concat(atom, char(10)) FROM json_tree(document) WHERE type = 'text'), ''))`,
		},
	},
}

// repairSchema applies the repairs that the database needs, in one transaction.
func repairSchema(ctx context.Context, writer *sql.DB) (err error) {
	tx, err := writer.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() {
		if rollback := tx.Rollback(); !errors.Is(rollback, sql.ErrTxDone) {
			err = errors.Join(err, rollback)
		}
	}()
	if existing, err := hasTable(ctx, tx, "goose_db_version"); err != nil || !existing {
		return err // a new database
	}
	for _, r := range repairs {
		var needed bool
		const applied = "SELECT NOT EXISTS (SELECT 1 FROM goose_db_version WHERE version_id = $1 AND is_applied)"
		if err := tx.QueryRowContext(ctx, applied, r.before).Scan(&needed); err != nil {
			return err
		}
		if needed {
			if err := tx.QueryRowContext(ctx, r.condition).Scan(&needed); err != nil {
				return err
			}
		}
		if !needed {
			continue
		}
		for _, text := range r.statements {
			if _, err := tx.ExecContext(ctx, text); err != nil {
				return fmt.Errorf("before migration %d: %w", r.before, err)
			}
		}
	}
	return tx.Commit()
}
