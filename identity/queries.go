package identity

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"basegate/database"
)

// Accounts.

// accountColumns are the columns that scanAccount scans, of accounts a.
const accountColumns = `
	a.id, a.email, a.name, a.admin, a.state, a.created_at, coalesce(a.concurrency, 0), a.caps`

// scanAccount scans the columns before those of the account into before.
func scanAccount(row database.Scanner, before ...any) (a Account, err error) {
	var created int64
	err = row.Scan(append(before, &a.ID, &a.Email, &a.Name, &a.Admin, &a.State, &created, &a.Concurrency, &a.Caps)...)
	a.CreatedAt = time.UnixMicro(created).UTC()
	return a, err
}

func insertAccount(ctx context.Context, tx database.Tx, a Account) error {
	const text = `
		INSERT INTO accounts (id, email, name, admin, state, created_at, concurrency, caps)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`
	return database.Exec(ctx, tx, text, a.ID, a.Email, a.Name, a.Admin, a.State, a.CreatedAt.UnixMicro(), nullable(a.Concurrency), a.Caps)
}

// selectAccount returns ErrNoAccount if no account has the address.
func selectAccount(ctx context.Context, q database.Reader, email string) (Account, error) {
	const text = `SELECT` + accountColumns + ` FROM accounts a WHERE lower(a.email) = lower($1)`
	a, err := scanAccount(q.QueryRowContext(ctx, text, email))
	return orMissing(a, err, fmt.Errorf("%w: %s", ErrNoAccount, cmp.Or(email, `""`)))
}

// orMissing returns a row that was scanned. The error of a row that does not exist is missing.
func orMissing[T any](row T, err, missing error) (T, error) {
	var none T
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return none, missing
	case err != nil:
		return none, fmt.Errorf("read row: %w", err)
	}
	return row, nil
}

func updateAccount(ctx context.Context, tx database.Tx, a Account) error {
	const text = `
		UPDATE accounts SET name = $2, admin = $3, concurrency = $4, caps = $5 WHERE id = $1`
	return database.Exec(ctx, tx, text, a.ID, a.Name, a.Admin, nullable(a.Concurrency), a.Caps)
}

// deleteOf deletes the rows of an account from tables.
func deleteOf(ctx context.Context, tx database.Tx, account string, tables ...string) error {
	for _, table := range tables {
		if err := database.Exec(ctx, tx, `DELETE FROM `+table+` WHERE account_id = $1`, account); err != nil {
			return err
		}
	}
	return nil
}

// signIns are the tables of the sessions and the known browsers of accounts.
var signIns = []string{"sessions", "known_browsers"}

// deletePendingAccount deletes an account and all rows that refer to it. It does not delete keys, because a pending
// account has none: no account becomes pending after its creation.
func deletePendingAccount(ctx context.Context, tx database.Tx, id string) error {
	if err := deleteOf(ctx, tx, id, append(signIns, "access_requests", "invitations", "passwords")...); err != nil {
		return err
	}
	return database.Exec(ctx, tx, `DELETE FROM accounts WHERE id = $1`, id)
}

// Requests for access.

func insertAccessRequest(ctx context.Context, tx database.Tx, a Account, r AccessRequest) error {
	const text = `INSERT INTO access_requests (account_id, purpose, network, created_at) VALUES ($1, $2, $3, $4)`
	return database.Exec(ctx, tx, text, a.ID, r.Purpose, r.Network, a.CreatedAt.UnixMicro())
}

// countAccessRequests returns the number of open requests, and that of the open requests from a network.
func countAccessRequests(ctx context.Context, q database.Reader, network string) (all, ofNetwork int, err error) {
	const text = `
		SELECT count(*), count(CASE WHEN r.network = $1 THEN 1 END)
		FROM accounts a LEFT JOIN access_requests r ON r.account_id = a.id WHERE a.state = 'pending'`
	err = q.QueryRowContext(ctx, text, network).Scan(&all, &ofNetwork)
	return all, ofNetwork, err
}

func scanAccessRequest(row database.Scanner) (r AccessRequest, err error) {
	var at int64
	err = row.Scan(&r.Email, &r.Name, &r.Purpose, &r.Network, &at)
	r.Time = time.UnixMicro(at).UTC()
	return r, err
}

// Keys.

// selectKey selects the columns that scanKey scans.
const selectKey = `
	SELECT k.id, k.account_id, a.email, k.name, k.prefix, k.state, coalesce(k.concurrency, 0), k.created_at,
	       k.caps, k.paused_by_operator, coalesce(k.operator_concurrency, 0), k.operator_caps,
	       k.expires_at, k.operator_expires_at, coalesce(k.models, ''), coalesce(k.operator_models, ''),
	       (SELECT max(r.valid_until) FROM replaced_secrets r WHERE r.key_id = k.id),
	       coalesce(k.parent, ''), coalesce(k.run, ''), k.children, k.adapters, k.stops
	FROM keys k JOIN accounts a ON a.id = k.account_id`

func scanKey(row database.Scanner) (k Key, err error) {
	var created int64
	err = row.Scan(&k.ID, &k.AccountID, &k.Email, &k.Name, &k.Prefix, &k.State, &k.Concurrency, &created,
		&k.Caps, &k.PausedByOperator, &k.Operator.Concurrency, &k.Operator.Caps,
		nullableTime{&k.ExpiresAt}, nullableTime{&k.Operator.ExpiresAt}, &k.Models, &k.Operator.Models,
		nullableTime{&k.ReplacedUntil}, &k.Parent, &k.Run, &k.Children, &k.Adapters, &k.Stops)
	k.CreatedAt = time.UnixMicro(created).UTC()
	return k, err
}

func insertKey(ctx context.Context, tx database.Tx, k Key, secret secretHash) error {
	const text = `
		INSERT INTO keys (id, account_id, name, prefix, secret_hash, state, concurrency, created_at,
		                  caps, operator_concurrency, operator_caps, expires_at, operator_expires_at, models, operator_models,
		                  parent, run, children, adapters)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, nullif($14, ''), nullif($15, ''), nullif($16, ''), nullif($17, ''), $18, $19)`
	o := k.Operator
	return database.Exec(ctx, tx, text,
		k.ID, k.AccountID, k.Name, k.Prefix, secret[:], k.State, nullable(k.Concurrency), k.CreatedAt.UnixMicro(),
		k.Caps, nullable(o.Concurrency), o.Caps, timeColumn(k.ExpiresAt), timeColumn(o.ExpiresAt), k.Models, o.Models,
		k.Parent, k.Run, k.Children, k.Adapters)
}

// nullable returns NULL for a concurrency of 0.
func nullable(concurrency int) sql.NullInt64 {
	return sql.NullInt64{Int64: int64(concurrency), Valid: concurrency > 0}
}

// selectKeysAbove returns keys of an account that are not revoked and have a cap above the account's, the oldest 20.
func selectKeysAbove(ctx context.Context, q database.Reader, a Account) (above []Key, err error) {
	const text = selectKey + `
		WHERE k.account_id = $1 AND k.state <> 'revoked' AND k.caps IS NOT NULL ORDER BY k.created_at, k.id`
	err = database.Each(ctx, q, func(row *sql.Rows) error {
		k, err := scanKey(row)
		if _, excess := k.Caps.Excess(a.Caps); err == nil && len(above) < 20 && excess != "" {
			above = append(above, k)
		}
		return err
	}, text, a.ID)
	return above, err
}

// selectKeysByID returns the key with an id, or none.
func selectKeysByID(ctx context.Context, q database.Reader, id string) ([]Key, error) {
	return database.List(ctx, q, scanKey, selectKey+` WHERE k.id = $1`, id)
}

// Conditions of liveKeys: the keys of an account, without children, and the children of a key.
const (
	ofAccount = `account_id = $1 AND parent IS NULL`
	ofParent  = `parent = $1`
)

// liveKeys is an expression for how many keys that a condition selects are neither revoked nor expired at $2, at most $3. It reads by
// the indexes keys_live and keys_parent, without those that have expired.
func liveKeys(condition string) string {
	keys := `SELECT 1 FROM keys WHERE ` + condition + ` AND state <> 'revoked' AND expires_at `
	return `(SELECT count(*) FROM (` + keys + `IS NULL UNION ALL ` + keys + `> $2 LIMIT $3) live)`
}

func countLive(ctx context.Context, q database.Reader, condition, id string, limit int) (n int, err error) {
	err = q.QueryRowContext(ctx, `SELECT `+liveKeys(condition), id, now().UnixMicro(), limit).Scan(&n)
	return n, err
}

// countLiveChildrenOf returns the live children of each key of an account that has some and has not expired. It finds these keys by the
// index keys_live.
func countLiveChildrenOf(ctx context.Context, q database.Reader, account string, limit int) (map[string]int, error) {
	all := map[string]int{}
	err := database.Each(ctx, q, func(row *sql.Rows) error {
		var id string
		var n int
		err := row.Scan(&id, &n)
		if n > 0 {
			all[id] = n
		}
		return err
	}, `SELECT p.id, `+liveKeys(`parent = p.id`)+` FROM keys p
		WHERE p.account_id = $1 AND p.state <> 'revoked' AND p.parent IS NULL AND (p.expires_at IS NULL OR p.expires_at > $2)`,
		account, now().UnixMicro(), limit)
	return all, err
}

func selectRun(ctx context.Context, q database.Reader, account, run string) ([]Key, error) {
	const text = selectKey + `
		WHERE k.run IS NOT NULL AND ($1 = '' OR k.account_id = $1) AND ($2 = '' OR k.run = $2)
		ORDER BY lower(a.email), k.created_at, k.id`
	return database.List(ctx, q, scanKey, text, account, run)
}

// selectKeysByPrefix returns at most two keys with a secret, or a replaced one, whose prefix begins with ref. A ref no longer
// than secretTag, with which all secrets begin, matches none.
func selectKeysByPrefix(ctx context.Context, q database.Reader, ref string) ([]Key, error) {
	begins := `substr(prefix, 1, length($1)) = $1`
	switch {
	case len(ref) <= len(secretTag):
		return nil, nil
	case len(ref) == prefixLength: // of which there is an index
		begins = `prefix = $1`
	}
	text := selectKey + `
		WHERE k.id IN (SELECT id FROM keys WHERE ` + begins + ` UNION SELECT key_id FROM replaced_secrets WHERE ` + begins + `)
		ORDER BY k.created_at, k.id LIMIT 2`
	return database.List(ctx, q, scanKey, text, ref)
}

// selectKeysByName returns at most two keys with a name, those that are not revoked first, and then children last, of one account
// or of all if it is empty.
func selectKeysByName(ctx context.Context, q database.Reader, name, account string) ([]Key, error) {
	const text = selectKey + `
		WHERE k.name = $1 AND ($2 = '' OR k.account_id = $2) ORDER BY (k.state = 'revoked'), (k.parent IS NOT NULL), k.created_at, k.id LIMIT 2`
	return database.List(ctx, q, scanKey, text, name, account)
}

// selectKeyByHash returns ErrNoKey if no key has the secret or has had it.
func selectKeyByHash(ctx context.Context, q database.Reader, secret secretHash) (Key, error) {
	const text = selectKey + `
		WHERE k.secret_hash = $1 OR k.id IN (SELECT key_id FROM replaced_secrets WHERE secret_hash = $1)`
	k, err := scanKey(q.QueryRowContext(ctx, text, secret[:]))
	return orMissing(k, err, ErrNoKey)
}

func updateKeyState(ctx context.Context, tx database.Tx, k Key) error {
	return database.Exec(ctx, tx, `UPDATE keys SET state = $2, paused_by_operator = $3, stops = $4 WHERE id = $1`, k.ID, k.State, k.PausedByOperator, k.Stops)
}

func updateKey(ctx context.Context, tx database.Tx, k Key) error {
	const text = `
		UPDATE keys SET name = $2, concurrency = $3,
		                caps = $4, operator_concurrency = $5, operator_caps = $6,
		                expires_at = $7, operator_expires_at = $8, models = nullif($9, ''), operator_models = nullif($10, ''),
		                children = $11, adapters = $12
		WHERE id = $1`
	o := k.Operator
	return database.Exec(ctx, tx, text, k.ID, k.Name, nullable(k.Concurrency), k.Caps, nullable(o.Concurrency), o.Caps,
		timeColumn(k.ExpiresAt), timeColumn(o.ExpiresAt), k.Models, o.Models, k.Children, k.Adapters)
}

// The snapshot.

// selectLatestChange returns the current revision, which triggers increment with every change to accounts and keys. Its tag is
// empty if nothing has changed since the schema has tags.
func selectLatestChange(ctx context.Context, q database.Reader) (c change, err error) {
	const text = `SELECT r.revision, coalesce(c.tag, '') FROM keys_revision r LEFT JOIN key_changes c ON c.revision = r.revision`
	if err := q.QueryRowContext(ctx, text).Scan(&c.revision, &c.tag); err != nil {
		return c, fmt.Errorf("read the revision of keys: %w", err)
	}
	return c, nil
}

// selectChanges returns the change of a revision, if the database still has it, and all later ones.
func selectChanges(ctx context.Context, q database.Reader, since int64) ([]change, error) {
	const text = `
		SELECT revision, tag, coalesce(key_id, ''), coalesce(account_id, '') FROM key_changes
		WHERE revision >= $1 ORDER BY revision`
	return database.List(ctx, q, func(row database.Scanner) (c change, err error) {
		err = row.Scan(&c.revision, &c.tag, &c.key, &c.account)
		return c, err
	}, text, since)
}

// maxIDs is the number of ids in one query.
const maxIDs = 500

// listByID is list for the rows in which a column has one of the ids; nil is all. The text ends where a WHERE can follow.
func listByID[T any](ctx context.Context, q database.Reader, scan func(database.Scanner) (T, error), text, column string, ids map[string]bool) ([]T, error) {
	if ids == nil {
		return database.List(ctx, q, scan, text)
	}
	var all []T
	for some := range slices.Chunk(slices.Sorted(maps.Keys(ids)), maxIDs) {
		places, args := make([]string, len(some)), make([]any, len(some))
		for i, id := range some {
			places[i], args[i] = "$"+strconv.Itoa(i+1), id
		}
		found, err := database.List(ctx, q, scan, text+" WHERE "+column+" IN ("+strings.Join(places, ",")+")", args...)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

// selectSnapshotKeys returns an entry for the current secret of each key, without its account.
func selectSnapshotKeys(ctx context.Context, q database.Reader, ids map[string]bool) ([]snapshotEntry, error) {
	const text = `
		SELECT secret_hash, state, id, prefix, name, account_id, coalesce(concurrency, 0), operator_concurrency IS NOT NULL,
		       caps, expires_at, coalesce(models, ''), coalesce(parent, ''), coalesce(run, ''), children, adapters, stops
		FROM keys`
	return listByID(ctx, q, func(row database.Scanner) (e snapshotEntry, err error) {
		var hash []byte
		p := &e.key
		err = row.Scan(&hash, &e.state, &p.KeyID, &p.KeyPrefix, &p.KeyName, &p.AccountID, &p.Concurrency, &p.ConcurrencyByOperator,
			&p.KeyCaps, nullableTime{&p.ExpiresAt}, &p.Models, &e.parent, &p.Run, &p.Children, &p.Adapters, &p.Stops)
		if err != nil {
			return e, err
		}
		secret, err := scanSecret(hash, p.KeyID)
		e.secrets = []secretHash{secret}
		return e, err
	}, text, "id", ids)
}

// scanSecret returns the hash in a row of a key.
func scanSecret(hash []byte, key string) (secretHash, error) {
	if len(hash) != len(secretHash{}) {
		return secretHash{}, fmt.Errorf("the hash of %s has %d bytes", key, len(hash))
	}
	return secretHash(hash), nil
}

// selectSnapshotAccounts returns accounts as the keys of the snapshot have them.
func selectSnapshotAccounts(ctx context.Context, q database.Reader, ids map[string]bool) ([]snapshotAccount, error) {
	const text = `
		SELECT (SELECT coalesce(max(k.concurrency), 0) FROM keys k
		        WHERE k.account_id = a.id AND k.operator_concurrency IS NOT NULL AND k.state = 'active'),` + accountColumns + `
		FROM accounts a`
	return listByID(ctx, q, func(row database.Scanner) (a snapshotAccount, err error) {
		a.Account, err = scanAccount(row, &a.granted)
		a.granted = max(a.granted, a.Concurrency)
		return a, err
	}, text, "a.id", ids)
}

type replacedSecret struct {
	hash        secretHash
	key, prefix string
	until       time.Time
}

// selectReplacedSecrets returns the replaced secrets of keys.
func selectReplacedSecrets(ctx context.Context, q database.Reader, keys map[string]bool) (map[string][]replacedSecret, error) {
	const text = `SELECT secret_hash, key_id, prefix, valid_until FROM replaced_secrets`
	all, err := listByID(ctx, q, func(row database.Scanner) (r replacedSecret, err error) {
		var hash []byte
		if err = row.Scan(&hash, &r.key, &r.prefix, nullableTime{&r.until}); err != nil {
			return r, err
		}
		r.hash, err = scanSecret(hash, r.key)
		return r, err
	}, text, "key_id", keys)
	if err != nil {
		return nil, err
	}
	byKey := map[string][]replacedSecret{}
	for _, r := range all {
		byKey[r.key] = append(byKey[r.key], r)
	}
	return byKey, nil
}

// The audit log.

// insertAuditEntry records a change by the actor of ctx, in the transaction that makes it.
func insertAuditEntry(ctx context.Context, tx database.Tx, action, subject, detail string) error {
	const text = `INSERT INTO audit (id, time, actor, action, subject, detail) VALUES ($1, $2, $3, $4, $5, $6)`
	return database.Exec(ctx, tx, text, newID("chg"), now().UnixMicro(), actorOf(ctx), action, subject, detail)
}

const (
	signInRepeat = time.Hour           // within which equal entries of sign-ins are recorded once
	keepSignIns  = 90 * 24 * time.Hour // how long entries of sign-ins are kept
)

// insertSignInEntry records a sign-in or a failed one, unless an equal entry is recent: one with the detail same, or with any if
// that is empty. So neither guesses at a password nor scripts that sign in fill the log.
func insertSignInEntry(ctx context.Context, tx database.Tx, action, subject, detail, same string) error {
	const (
		clean  = `DELETE FROM audit WHERE action = $1 AND time < $2`
		recent = `SELECT count(*) FROM audit WHERE subject = $1 AND action = $2 AND time > $3 AND ($4 = '' OR detail = $4)`
	)
	at, before := now(), 0
	if err := tx.QueryRowContext(ctx, recent, subject, action, at.Add(-signInRepeat).UnixMicro(), same).Scan(&before); err != nil || before > 0 {
		return err
	}
	if err := database.Exec(ctx, tx, clean, action, at.Add(-keepSignIns).UnixMicro()); err != nil {
		return err
	}
	return insertAuditEntry(ctx, tx, action, subject, detail)
}

// likeEscaper escapes the wildcards of LIKE.
var likeEscaper = strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`)

func scanAuditEntry(row database.Scanner) (e AuditEntry, err error) {
	var at int64
	err = row.Scan(&e.id, &at, &e.Actor, &e.Action, &e.Subject, &e.Detail)
	e.Time = time.UnixMicro(at).UTC()
	return e, err
}
