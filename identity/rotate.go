package identity

import (
	"context"
	"errors"
	"fmt"
	"time"

	"basegate/database"
)

// ErrBadGrace is returned for a grace time that is negative or longer than MaxGrace.
var ErrBadGrace = errors.New("a grace time is between 0 and 90 days")

const (
	// DefaultGrace is how long a replaced secret works unless chosen otherwise.
	DefaultGrace = 24 * time.Hour
	// MaxGrace is the longest grace time.
	MaxGrace = 90 * 24 * time.Hour
)

// Rotate gives the key that ref names (see Find) a new secret and returns it. The replaced secret works until the grace
// time ends; secrets that earlier rotations have replaced work no longer than that either, so a grace time of 0 makes
// the new secret the only one. All else about the key stays: its id, caps and usage. The error may be ErrNoKey,
// ErrAmbiguous, ErrKeyRevoked or ErrBadGrace.
func (k *Keys) Rotate(ctx context.Context, ref string, grace time.Duration) (_ Key, secret string, _ error) {
	if grace < 0 || grace > MaxGrace {
		return Key{}, "", fmt.Errorf("rotate key: %w, not %s", ErrBadGrace, grace)
	}
	secret = newSecret()
	key, err := commit(ctx, k, "rotate key", func(tx database.Tx) (Key, error) {
		before, err := findLiveKey(ctx, tx, ref)
		if err != nil {
			return Key{}, err
		}
		key := before
		key.Prefix, key.ReplacedUntil = prefixOf(secret), now().Add(grace)
		if err := replaceSecret(ctx, tx, key, hashSecret(secret)); err != nil {
			return Key{}, err
		}
		detail := fmt.Sprintf("%s: %s… → %s…, the replaced secret works until %s",
			before.title(), before.Prefix, key.Prefix, expiryText(key.ReplacedUntil))
		return key, insertAuditEntry(ctx, tx, "rotate key", key.ID, detail)
	})
	if err != nil {
		return Key{}, "", err
	}
	return key, secret, nil
}

// replaceSecret stores the new secret of a key. The one that it replaces works until key.ReplacedUntil, and earlier ones
// until then at the latest.
func replaceSecret(ctx context.Context, tx database.Tx, key Key, secret secretHash) error {
	until := key.ReplacedUntil.UnixMicro()
	for _, statement := range []struct {
		text string
		args []any
	}{
		{`UPDATE replaced_secrets SET valid_until = $2 WHERE key_id = $1 AND valid_until > $2`, []any{key.ID, until}},
		{`INSERT INTO replaced_secrets (secret_hash, key_id, prefix, valid_until)
		  SELECT secret_hash, id, prefix, $2 FROM keys WHERE id = $1`, []any{key.ID, until}},
		{`UPDATE keys SET secret_hash = $2, prefix = $3 WHERE id = $1`, []any{key.ID, secret[:], key.Prefix}},
	} {
		if err := database.Exec(ctx, tx, statement.text, statement.args...); err != nil {
			return err
		}
	}
	return nil
}
