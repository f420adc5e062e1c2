package identity

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"basegate/database"
)

// querier is what queries run on: the readers' pool, or the transaction that is about to write.
type querier interface {
	QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, text string, args ...any) *sql.Row
}

// scanner is a row, or the current one of several.
type scanner interface {
	Scan(to ...any) error
}

func selectRevision(ctx context.Context, q querier) (revision int64, err error) {
	const text = `SELECT revision FROM keys_revision WHERE only = 1`
	if err := q.QueryRowContext(ctx, text).Scan(&revision); err != nil {
		return 0, fmt.Errorf("read the revision of keys: %w", err)
	}
	return revision, nil
}

// selectEntries reads what Authenticate answers, for every key.
func selectEntries(ctx context.Context, q querier) (map[hash]entry, error) {
	const text = `
		SELECT k.secret_hash, k.state, a.state,
		       k.id, k.prefix, k.name, a.id, a.email, a.admin, coalesce(k.concurrency, 0),
		       k.month_total, k.day_total, k.month_input, k.month_output,
		       a.month_total, a.day_total, a.month_input, a.month_output
		FROM keys k JOIN accounts a ON a.id = k.account_id`
	rows, err := q.QueryContext(ctx, text)
	if err != nil {
		return nil, fmt.Errorf("read keys: %w", err)
	}
	defer rows.Close()
	entries := map[hash]entry{}
	for rows.Next() {
		var (
			secret  []byte
			state   State
			account AccountState
			i       Identity
		)
		k, a := &i.KeyCaps, &i.AccountCaps
		err := rows.Scan(&secret, &state, &account,
			&i.KeyID, &i.KeyPrefix, &i.KeyName, &i.AccountID, &i.Email, &i.Admin, &i.Concurrency,
			&k.MonthTotal, &k.DayTotal, &k.MonthInput, &k.MonthOutput,
			&a.MonthTotal, &a.DayTotal, &a.MonthInput, &a.MonthOutput)
		if err != nil {
			return nil, fmt.Errorf("read keys: %w", err)
		}
		if len(secret) != len(hash{}) {
			return nil, fmt.Errorf("read keys: the hash of %s has %d bytes", i.KeyID, len(secret))
		}
		refusal := state.refusal()
		if refusal == nil {
			refusal = account.refusal()
		}
		entries[hash(secret)] = entry{identity: i, refusal: refusal}
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read keys: %w", err)
	}
	return entries, nil
}

func insertAccount(ctx context.Context, tx database.Tx, a Account) error {
	const text = `
		INSERT INTO accounts (id, email, name, admin, state, created_at,
		                      month_total, day_total, month_input, month_output)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`
	_, err := tx.ExecContext(ctx, text, a.ID, a.Email, a.Name, a.Admin, a.State, a.CreatedAt.UnixMicro(),
		a.Caps.MonthTotal, a.Caps.DayTotal, a.Caps.MonthInput, a.Caps.MonthOutput)
	return err
}

func selectAccount(ctx context.Context, q querier, email string) (Account, error) {
	const text = `
		SELECT id, email, name, admin, state, created_at, month_total, day_total, month_input, month_output
		FROM accounts WHERE lower(email) = lower($1)`
	a, err := scanAccount(q.QueryRowContext(ctx, text, email))
	if errors.Is(err, sql.ErrNoRows) {
		return Account{}, fmt.Errorf("%w: %s", ErrNoAccount, email)
	}
	if err != nil {
		return Account{}, fmt.Errorf("read account: %w", err)
	}
	return a, nil
}

func selectAccounts(ctx context.Context, q querier) ([]Account, error) {
	const text = `
		SELECT id, email, name, admin, state, created_at, month_total, day_total, month_input, month_output
		FROM accounts ORDER BY lower(email)`
	return collect(ctx, q, scanAccount, text)
}

func updateAccountState(ctx context.Context, tx database.Tx, id string, to AccountState) error {
	const text = `UPDATE accounts SET state = $2 WHERE id = $1`
	_, err := tx.ExecContext(ctx, text, id, to)
	return err
}

func updateAccount(ctx context.Context, tx database.Tx, a Account) error {
	const text = `
		UPDATE accounts SET name = $2, admin = $3, month_total = $4, day_total = $5, month_input = $6, month_output = $7
		WHERE id = $1`
	_, err := tx.ExecContext(ctx, text, a.ID, a.Name, a.Admin,
		a.Caps.MonthTotal, a.Caps.DayTotal, a.Caps.MonthInput, a.Caps.MonthOutput)
	return err
}

func insertKey(ctx context.Context, tx database.Tx, k Key, secret hash) error {
	const text = `
		INSERT INTO keys (id, account_id, name, prefix, secret_hash, state, concurrency, created_at,
		                  month_total, day_total, month_input, month_output)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)`
	_, err := tx.ExecContext(ctx, text,
		k.ID, k.AccountID, k.Name, k.Prefix, secret[:], k.State, concurrency(k), k.CreatedAt.UnixMicro(),
		k.Caps.MonthTotal, k.Caps.DayTotal, k.Caps.MonthInput, k.Caps.MonthOutput)
	return err
}

// concurrency is a key's own as the database keeps it: NULL where it has none.
func concurrency(k Key) sql.NullInt64 {
	return sql.NullInt64{Int64: int64(k.Concurrency), Valid: k.Concurrency > 0}
}

func selectKeys(ctx context.Context, q querier) ([]Key, error) {
	const text = `
		SELECT k.id, k.account_id, a.email, k.name, k.prefix, k.state, coalesce(k.concurrency, 0), k.created_at,
		       k.month_total, k.day_total, k.month_input, k.month_output
		FROM keys k JOIN accounts a ON a.id = k.account_id
		ORDER BY lower(a.email), k.created_at, k.id`
	return collect(ctx, q, scanKey, text)
}

func selectKeysOf(ctx context.Context, q querier, account string) ([]Key, error) {
	const text = `
		SELECT k.id, k.account_id, a.email, k.name, k.prefix, k.state, coalesce(k.concurrency, 0), k.created_at,
		       k.month_total, k.day_total, k.month_input, k.month_output
		FROM keys k JOIN accounts a ON a.id = k.account_id
		WHERE a.id = $1
		ORDER BY k.created_at, k.id`
	return collect(ctx, q, scanKey, text, account)
}

// selectKeysLike reads up to two keys of an id, or whose prefix begins with which, all of it or so much of it that it
// says more than what all keys begin with.
func selectKeysLike(ctx context.Context, q querier, which string) ([]Key, error) {
	const text = `
		SELECT k.id, k.account_id, a.email, k.name, k.prefix, k.state, coalesce(k.concurrency, 0), k.created_at,
		       k.month_total, k.day_total, k.month_input, k.month_output
		FROM keys k JOIN accounts a ON a.id = k.account_id
		WHERE k.id = $1 OR (length($1) > $2 AND substr(k.prefix, 1, length($1)) = $1)
		ORDER BY k.created_at, k.id LIMIT 2`
	return collect(ctx, q, scanKey, text, which, len(secretHead))
}

func selectKeyByHash(ctx context.Context, q querier, secret hash) (Key, error) {
	const text = `
		SELECT k.id, k.account_id, a.email, k.name, k.prefix, k.state, coalesce(k.concurrency, 0), k.created_at,
		       k.month_total, k.day_total, k.month_input, k.month_output
		FROM keys k JOIN accounts a ON a.id = k.account_id
		WHERE k.secret_hash = $1`
	k, err := scanKey(q.QueryRowContext(ctx, text, secret[:]))
	if errors.Is(err, sql.ErrNoRows) {
		return Key{}, ErrNoKey
	}
	if err != nil {
		return Key{}, fmt.Errorf("read key: %w", err)
	}
	return k, nil
}

func updateKeyState(ctx context.Context, tx database.Tx, id string, to State) error {
	const text = `UPDATE keys SET state = $2 WHERE id = $1`
	_, err := tx.ExecContext(ctx, text, id, to)
	return err
}

func updateKey(ctx context.Context, tx database.Tx, k Key) error {
	const text = `
		UPDATE keys SET name = $2, concurrency = $3, month_total = $4, day_total = $5, month_input = $6, month_output = $7
		WHERE id = $1`
	_, err := tx.ExecContext(ctx, text, k.ID, k.Name, concurrency(k),
		k.Caps.MonthTotal, k.Caps.DayTotal, k.Caps.MonthInput, k.Caps.MonthOutput)
	return err
}

func scanAccount(row scanner) (a Account, err error) {
	var created int64
	err = row.Scan(&a.ID, &a.Email, &a.Name, &a.Admin, &a.State, &created,
		&a.Caps.MonthTotal, &a.Caps.DayTotal, &a.Caps.MonthInput, &a.Caps.MonthOutput)
	a.CreatedAt = time.UnixMicro(created).UTC()
	return a, err
}

func scanKey(row scanner) (k Key, err error) {
	var created int64
	err = row.Scan(&k.ID, &k.AccountID, &k.Email, &k.Name, &k.Prefix, &k.State, &k.Concurrency, &created,
		&k.Caps.MonthTotal, &k.Caps.DayTotal, &k.Caps.MonthInput, &k.Caps.MonthOutput)
	k.CreatedAt = time.UnixMicro(created).UTC()
	return k, err
}

// collect reads all rows of a query.
func collect[T any](ctx context.Context, q querier, scan func(scanner) (T, error), text string, args ...any) ([]T, error) {
	rows, err := q.QueryContext(ctx, text, args...)
	if err != nil {
		return nil, fmt.Errorf("read list: %w", err)
	}
	defer rows.Close()
	var all []T
	for rows.Next() {
		one, err := scan(rows)
		if err != nil {
			return nil, fmt.Errorf("read list: %w", err)
		}
		all = append(all, one)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read list: %w", err)
	}
	return all, nil
}
