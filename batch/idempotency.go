package batch

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"strconv"

	"basegate/database"
	apierr "basegate/errors"
	"basegate/proxy"
)

const (
	idempotencyTime = 24 * 3600 // of an Idempotency-Key, in seconds
	repeatTime      = 600       // of a request that the SDK says is a retry, in seconds
)

// origin identifies the request that creates a file or a batch among those of its key, so that a repeated one creates nothing.
type origin struct {
	key    string // the id of the API key
	digest []byte // of what is created
	token  string
	until  int64 // how long the token counts, in seconds from the creation
	retry  bool  // an earlier request with the token may exist
	named  bool  // the client has chosen the token
}

// originOf returns the origin of a call. An SDK repeats a request after a failure without an Idempotency-Key, and only
// counts the retry.
func originOf(c *proxy.ExtensionCall, digest []byte) origin {
	if key := c.Request.Header.Get("Idempotency-Key"); key != "" {
		return namedOrigin(c.Key, c.Request.URL.Path, key, digest)
	}
	retries, _ := strconv.Atoi(c.Request.Header.Get("X-Stainless-Retry-Count")) // 0 if it is no number
	return origin{c.Key, digest, c.Request.URL.Path + " body " + hex.EncodeToString(digest), repeatTime, retries > 0, false}
}

// namedOrigin returns the origin of requests at a place for which the client has chosen a name, which counts for 24 hours.
func namedOrigin(key, place, name string, digest []byte) origin {
	sum := sha256.Sum256([]byte(name))
	return origin{key, digest, place + " key " + hex.EncodeToString(sum[:]), idempotencyTime, true, true}
}

// createOnce creates a file or a batch in a transaction; create returns its id, which counts for requests that repeat this one. find
// looks for what an earlier request of the same origin has created, whichever gateway served it; its error is sql.ErrNoRows if this
// one is to create it again.
func (s *Service) createOnce(ctx context.Context, o origin, find func(ctx context.Context, tx database.Tx, id string) error,
	create func(context.Context, database.Tx) (id string, err error),
) error {
	err := s.write(ctx, func(ctx context.Context, tx database.Tx) error {
		if o.retry {
			id, digest, err := recall(ctx, tx, &o, s.now())
			if err == nil && !bytes.Equal(digest, o.digest) {
				err = apierr.OtherBody()
			}
			if err == nil {
				err = find(ctx, tx, id)
			}
			if !errors.Is(err, sql.ErrNoRows) {
				return err
			}
		}
		id, err := create(ctx, tx)
		if err != nil {
			return err
		}
		return remember(ctx, tx, &o, id, s.now())
	})
	return unavailable(err)
}
