package batch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
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

// repeated returns the id of what an earlier request of the same origin has created; empty if there was none. It is an
// error if that request had another body. It is called in the transaction that creates, so that of several requests, at
// whichever gateways, one creates.
func (s *Service) repeated(ctx context.Context, tx database.Tx, o *origin) (id string, err error) {
	if !o.retry {
		return "", nil
	}
	before, err := recall(ctx, tx, o.key, o.token, s.now())
	switch {
	case err != nil:
		return "", err
	case before == nil:
		return "", nil
	case string(before.digest) != string(o.digest):
		return "", apierr.OtherBody()
	}
	return before.object, nil
}

// rememberOrigin records what a request has created.
func (s *Service) rememberOrigin(ctx context.Context, tx database.Tx, o *origin, id string) error {
	return remember(ctx, tx, o.key, o.token, remembered{o.digest, id}, s.now()+o.until)
}
