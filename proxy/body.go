package proxy

import (
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"

	"basegate/budget/admission"
	apierr "basegate/errors"
	"basegate/internal/bodyrate"
	"basegate/proxy/http1/strict"
)

const (
	// initialBuffer is allocated for a body before any of it has arrived, in bytes: a Content-Length alone must not cost
	// much memory.
	initialBuffer = 16 << 10
	// maxTrustedLength is the largest Content-Length for which the whole buffer is allocated once initialBuffer is full, in
	// bytes.
	maxTrustedLength = 1 << 20
	// gunzipMemory is what a gzip reader allocates, in bytes.
	gunzipMemory = 48 << 10
)

// readBody reads the whole body into memory, decompressed, within the size limit.
func (x *exchange) readBody() ([]byte, error) {
	limit := x.settings.MaxBodyBytes
	if x.r.ContentLength > limit {
		return nil, apierr.BodyTooLarge(limit)
	}
	u := newUpload(x)
	defer u.End()
	b := buffer{source: u, size: x.r.ContentLength, trusted: maxTrustedLength, awaited: admission.WaitingCost, memory: &x.memory, pooled: true}
	source, err := x.decompressed(u)
	if err != nil {
		return nil, err
	}
	if source != io.Reader(u) {
		defer x.memory.Shrink(gunzipMemory)
		b.source, b.size = source, unknownSize
	}
	body, err := b.readAll(nil, limit)
	x.body = newSharedBody(body)
	switch {
	case errors.Is(err, admission.ErrFull):
		return nil, bufferFull(err)
	case err != nil:
		return nil, u.readErr()
	case int64(len(body)) > limit:
		return nil, apierr.BodyTooLarge(limit)
	}
	x.delivery.bodyRead = true
	x.r.Body.Close() // or net/http would look for more of it before the response, deep in its stack
	return body, nil
}

// decompressed returns a reader of the body by its Content-Encoding. If that is not u itself, it holds gunzipMemory.
func (x *exchange) decompressed(u *upload) (io.Reader, error) {
	switch encoding := strings.ToLower(strings.TrimSpace(x.r.Header.Get("Content-Encoding"))); encoding {
	case "", "identity":
		return u, nil
	case "gzip", "x-gzip":
		if err := x.memory.Grow(gunzipMemory); err != nil {
			return nil, bufferFull(err)
		}
		unzipped, err := gzip.NewReader(u)
		if err != nil {
			x.memory.Shrink(gunzipMemory)
			return nil, u.readErr()
		}
		return unzipped, nil
	default:
		return nil, apierr.UnknownEncoding(encoding)
	}
}

// upload is the body of a request that arrives.
type upload struct{ *bodyrate.Reader }

func newUpload(x *exchange) *upload { return &upload{bodyrate.New(x.w, x.r.Body)} }

// readErr returns the error for the client: its gzip, its chunks or its length are invalid, it was too slow, or it
// disconnected while sending.
func (u *upload) readErr() error {
	switch {
	case u.Failed == nil:
		return apierr.MalformedJSON(0, "the body is not valid gzip, which its Content-Encoding says it is")
	case strict.Disconnected(u.Failed):
		return errClientGone
	case errors.Is(u.Failed, strict.ErrChunks):
		return apierr.MalformedJSON(0, "the body's chunked encoding is malformed")
	case errors.Is(u.Failed, strict.ErrLength):
		return apierr.MalformedJSON(0, "the body is shorter than its Content-Length says")
	case u.Unlimited:
		return apierr.MalformedJSON(0, "the body came too slowly: fewer than 64 KiB of it in ten seconds")
	default:
		return apierr.MalformedJSON(0, "the body came too slowly: it did not arrive within two minutes, or fewer than 64 KiB of it in ten seconds")
	}
}

// expectsNothingElse reports whether the Expect header of the request, if it has one, asks for 100-continue alone.
func (x *exchange) expectsNothingElse() bool {
	return !slices.ContainsFunc(x.r.Header["Expect"], func(value string) bool { return !strings.EqualFold(value, "100-continue") })
}

// maxDiscard limits how much of an unwanted body is read if the client has a valid key, in bytes. For other clients the limit
// is that of a body.
const maxDiscard = 64 << 20

// discardBody reads an unwanted body before the response that refuses it.
func (x *exchange) discardBody() {
	if x.delivery.bodyRead || x.r.Body == http.NoBody {
		return
	}
	most := x.settings.MaxBodyBytes
	switch {
	case len(x.r.Header["Expect"]) > 0: // the client may wait for "100 Continue"; package strict has blanked any other expectation
		most = 0
	case x.caller.payer.Key != "":
		most = max(most, maxDiscard)
	}
	bodyrate.Discard(x.w, x.r.Body, most)
}
