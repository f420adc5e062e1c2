package identity_test

import (
	"context"
	"crypto/rand"
	"testing"

	"go.uber.org/zap"

	"basegate/database"
	"basegate/identity"
	"basegate/internal/databasetest"
)

// manyKeys is the number of keys of one account beside which others change theirs.
const manyKeys = 100_000

// insertKeys gives the account of an address manyKeys keys.
func insertKeys(b *testing.B, db *database.DB, email string) {
	b.Helper()
	numbers, hash := `WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < $2)`, `randomblob(32)`
	if databasetest.Postgres() {
		numbers, hash = `WITH s (n) AS (SELECT generate_series(1, $2::bigint))`, `sha256(n::text::bytea)`
	}
	const at = 1_700_000_000_000_000
	must(b, db.WriteExclusive(b.Context(), func(tx database.Tx) error {
		_, err := tx.ExecContext(b.Context(), numbers+`
			INSERT INTO keys (id, account_id, name, prefix, secret_hash, state, created_at)
			SELECT 'many_' || n, a.id, 'n', 'acs-bm-000000', `+hash+`, 'active', $3 + n FROM s, accounts a WHERE a.email = $1`,
			email, manyKeys, int64(at))
		return err
	}))
}

// BenchmarkChangeBesideManyKeys measures a change of one account's keys in the process that makes it and in another one, while
// another account has manyKeys.
func BenchmarkChangeBesideManyKeys(b *testing.B) {
	path := newPath(b)
	db := openDatabase(b, path)
	here := startStore(b, db, zap.NewNop())
	for _, email := range []string{ada, "eve@example.org"} {
		_, err := here.Accounts.Create(b.Context(), identity.Account{Email: email})
		must(b, err)
	}
	insertKeys(b, db, "eve@example.org")
	there := startStore(b, openDatabase(b, path), zap.NewNop())
	must(b, here.Keys.CatchUp(b.Context()))
	key, _ := createKey(b, here, "one")
	b.Run("create, and use in another process", func(b *testing.B) {
		for b.Loop() {
			_, secret := createKey(b, here, rand.Text())
			_, err := there.Keys.Authenticate(b.Context(), secret)
			must(b, err)
		}
	})
	b.Run("pause and resume, and see it in another process", func(b *testing.B) {
		for b.Loop() {
			for _, change := range []func(context.Context, string) (identity.Key, error){here.Keys.Pause, here.Keys.Resume} {
				_, err := change(b.Context(), key.ID)
				must(b, err)
				must(b, there.Keys.CatchUp(b.Context()))
			}
		}
	})
	b.Run("list", func(b *testing.B) {
		eve, err := here.Accounts.Find(b.Context(), "eve@example.org")
		must(b, err)
		for b.Loop() {
			_, err := here.Keys.ListOf(b.Context(), eve.ID, 0)
			must(b, err)
		}
	})
}
