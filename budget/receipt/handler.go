package receipt

import (
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"golang.org/x/mod/sumdb/tlog"

	apierr "basegate/errors"
)

const (
	plainType  = "text/plain; charset=utf-8"
	jsonType   = "application/json"
	binaryType = "application/octet-stream"
)

// ServeCheckpoint responds with the latest signed tree head.
func (l *Log) ServeCheckpoint(w http.ResponseWriter, _ *http.Request) error {
	return send(w, plainType, "no-cache", []byte(l.published.Load().checkpoint))
}

// ServeTile responds with a hash tile by its path, such as 0/000 or 1/x001/234.p/17, as c2sp.org/tlog-tiles defines it.
// Bundles of entries are not served: they are for the keys that made them.
func (l *Log) ServeTile(w http.ResponseWriter, r *http.Request, path string) error {
	t, err := tlog.ParseTilePath(fmt.Sprintf("tile/%d/%s", tileHeight, path))
	if err != nil || t.L < 0 || t.L >= 64/tileHeight {
		return apierr.NoSuchPath(r.Method, r.URL.Path, "hash tiles are at /receipts/tile/LEVEL/NUMBER, and at LEVEL/NUMBER.p/WIDTH while they are not full; entries are not served")
	}
	head := l.published.Load()
	if t.N<<tileHeight+int64(t.W) > head.Size>>(tileHeight*t.L) {
		return apierr.NoSuchPath(r.Method, r.URL.Path, "the latest tree head has no such tile yet")
	}
	found, err := head.tree.tile(t.L, t.N)
	if err != nil {
		return apierr.Unexpected(err)
	}
	return send(w, binaryType, "public, max-age=31536000, immutable", found.data(t.W))
}

var errNonce = errors.New("the nonce is for the key that made the receipt")

// ServeReceipt responds with a receipt. key is the id of the client's key, or empty without one: the key that made the
// receipt gets the entry and, with ?nonce=1, the nonce, and every other client the proof alone.
func (l *Log) ServeReceipt(w http.ResponseWriter, r *http.Request, leafHash, key string) error {
	withNonce := false
	switch values := r.URL.Query()["nonce"]; {
	case len(values) == 0:
	case len(values) == 1 && (values[0] == "0" || values[0] == "1"):
		withNonce = values[0] == "1"
	default:
		return apierr.InvalidField("nonce", "nonce: want 1 to get the whole receipt, or remove it")
	}
	if withNonce && key == "" {
		return apierr.BadKey(errNonce)
	}
	leaf, err := ParseHash(leafHash)
	if err != nil {
		return apierr.NoSuchReceipt(leafHash)
	}
	found, stored, err := l.prove(r.Context(), leaf, otherProcess)
	switch {
	case errors.Is(err, sql.ErrNoRows), err == nil && withNonce && stored.key != key:
		return apierr.NoSuchReceipt(leafHash)
	case err != nil:
		return apierr.Overload(apierr.NoDatabase, "the receipt cannot be proven at the moment", retryAfter, err)
	}
	if stored.key == key {
		if found.Entry, err = stored.decode(); err != nil {
			return apierr.Unexpected(err)
		}
	}
	if withNonce {
		found.Nonce = &stored.nonce
	}
	body, err := found.Encode()
	if err != nil {
		return apierr.Unexpected(err)
	}
	return send(w, jsonType, "private, no-store", append(body, '\n'))
}

// send sends a whole response. A client that has disconnected is no error.
func send(w http.ResponseWriter, contentType, cache string, body []byte) error {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Cache-Control", cache)
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(body)
	return nil
}
