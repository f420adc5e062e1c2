package identity

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"database/sql"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"golang.org/x/crypto/argon2"

	"basegate/database"
)

// What can be wrong with a password, or with signing in by it.
var (
	ErrBadPassword = errors.New("this cannot be a password")
	ErrSignIn      = errors.New("the e-mail address or the password is wrong")
)

// The bounds of a password, in characters.
const (
	MinPassword = 10
	MaxPassword = 200
)

// cost is what a guess at a password costs. What a hash was made with stands in it, so a new cost holds for what is set
// from then on.
type cost struct {
	memory  uint32 // KiB
	passes  uint32
	threads uint8
}

// standard is OWASP's first recommendation for argon2id.
var standard = cost{memory: 19 << 10, passes: 2, threads: 1}

// hashesAtOnce bounds the memory that strangers can make the gateway take: 19 MiB each.
const hashesAtOnce = 2

const (
	saltBytes   = 16
	digestBytes = 32
)

// CheckPassword refuses what is too short or too long, or is the account's own address. The error is ErrBadPassword.
func CheckPassword(password, email string) error {
	switch n := utf8.RuneCountInString(password); {
	case !utf8.ValidString(password):
		return fmt.Errorf("%w: it is not text", ErrBadPassword)
	case n < MinPassword:
		return fmt.Errorf("%w: it needs at least %d characters", ErrBadPassword, MinPassword)
	case n > MaxPassword:
		return fmt.Errorf("%w: it may have at most %d characters", ErrBadPassword, MaxPassword)
	case strings.EqualFold(password, email):
		return fmt.Errorf("%w: it is the e-mail address", ErrBadPassword)
	}
	return nil
}

// SetPassword gives an account a password, and ends all its sessions. The error may be ErrNoAccount or ErrBadPassword.
func (d *Directory) SetPassword(ctx context.Context, email, password string) error {
	if err := CheckPassword(password, email); err != nil {
		return err
	}
	hashed, err := d.hashPassword(ctx, password)
	if err != nil {
		return err
	}
	err = d.db.WriteGrouped(ctx, func(tx database.Tx) error {
		a, err := selectAccount(ctx, tx, email)
		if err != nil {
			return err
		}
		return setPassword(ctx, tx, a, hashed)
	})
	if err != nil {
		return fmt.Errorf("set password: %w", err)
	}
	return nil
}

// setPassword takes over a hash. Whoever knew the old password is signed out.
func setPassword(ctx context.Context, tx database.Tx, a Account, hashed string) error {
	if err := upsertPassword(ctx, tx, a.ID, hashed); err != nil {
		return err
	}
	if err := deleteSessionsOf(ctx, tx, a.ID); err != nil {
		return err
	}
	return record(ctx, tx, "set password", a.Email, "")
}

// hashPassword makes a hash when it is its turn. The error is that of ctx.
func (d *Directory) hashPassword(ctx context.Context, password string) (string, error) {
	salt := make([]byte, saltBytes)
	_, _ = rand.Read(salt) // never fails: it ends the program before it would
	digest, err := d.digest(ctx, password, salt, standard)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s", argon2.Version,
		standard.memory, standard.passes, standard.threads, raw64(salt), raw64(digest)), nil
}

// verifyPassword tells whether a hash is the password's. The error is that of ctx, or of a hash that is none.
func (d *Directory) verifyPassword(ctx context.Context, password, hashed string) (bool, error) {
	c, salt, want, err := parseHash(hashed)
	if err != nil {
		return false, err
	}
	got, err := d.digest(ctx, password, salt, c)
	if err != nil {
		return false, err
	}
	return subtle.ConstantTimeCompare(got, want) == 1, nil
}

// digest waits for one of the few places at which passwords are hashed.
func (d *Directory) digest(ctx context.Context, password string, salt []byte, c cost) ([]byte, error) {
	select {
	case d.hashing <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait to check a password: %w", context.Cause(ctx))
	}
	defer func() { <-d.hashing }()
	return argon2.IDKey([]byte(password), salt, c.passes, c.memory, c.threads, digestBytes), nil
}

// parseHash takes a hash of the PHC string format apart.
func parseHash(text string) (c cost, salt, digest []byte, err error) {
	parts := strings.Split(text, "$")
	if len(parts) != 6 || parts[1] != "argon2id" || parts[2] != fmt.Sprintf("v=%d", argon2.Version) {
		return c, nil, nil, errors.New("read password: this is not a hash of argon2id")
	}
	if _, err := fmt.Sscanf(parts[3], "m=%d,t=%d,p=%d", &c.memory, &c.passes, &c.threads); err != nil {
		return c, nil, nil, fmt.Errorf("read password: %w", err)
	}
	salt, err = base64.RawStdEncoding.DecodeString(parts[4])
	if err == nil {
		digest, err = base64.RawStdEncoding.DecodeString(parts[5])
	}
	if err != nil {
		return c, nil, nil, fmt.Errorf("read password: %w", err)
	}
	return c, salt, digest, nil
}

func raw64(b []byte) string { return base64.RawStdEncoding.EncodeToString(b) }

// nobody is the hash that a password is checked against where there is no account, so that the time it takes does not
// tell which addresses have one. It is of the standard cost; no password is known that it is of.
const nobody = "$argon2id$v=19$m=19456,t=2,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"

func upsertPassword(ctx context.Context, tx database.Tx, account, hashed string) error {
	const text = `
		INSERT INTO passwords (account_id, hash, changed_at) VALUES ($1, $2, $3)
		ON CONFLICT (account_id) DO UPDATE SET hash = excluded.hash, changed_at = excluded.changed_at`
	_, err := tx.ExecContext(ctx, text, account, hashed, now().UnixMicro())
	return err
}

// selectPassword reads the hash of an account's password; nobody where it has none.
func selectPassword(ctx context.Context, q querier, account string) (hashed string, err error) {
	const text = `SELECT hash FROM passwords WHERE account_id = $1`
	switch err := q.QueryRowContext(ctx, text, account).Scan(&hashed); {
	case errors.Is(err, sql.ErrNoRows):
		return nobody, nil
	case err != nil:
		return "", fmt.Errorf("read password: %w", err)
	}
	return hashed, nil
}
