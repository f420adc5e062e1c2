package batch

import (
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"
	"time"

	apierr "basegate/errors"
	"basegate/proxy"
)

// uploadRetry is when a client should retry an upload that was refused because of others.
const uploadRetry = 5 * time.Second

// sendContent serves GET /v1/files/{id}/content.
func (s *Service) sendContent(c *proxy.ExtensionCall) error {
	return s.ServeContent(c.Response, c.Request, c.Account, c.Param("id"))
}

// ServeContent sends the content of a file of an account: the bytes that counted when the request arrived. The output of a
// batch that runs is whole lines.
func (s *Service) ServeContent(to http.ResponseWriter, r *http.Request, account, id string) error {
	if _, err := proxy.Query(r); err != nil {
		return err
	}
	f, err := s.file(r.Context(), s.db.Read(), account, id)
	if err != nil {
		return err
	}
	content, err := s.openFile(r.Context(), &f)
	if err != nil {
		return err
	}
	defer content.Close()
	h := to.Header()
	h.Set("Content-Type", "application/jsonl")
	if f.sha256 != nil {
		h.Set("ETag", `"`+hex.EncodeToString(f.sha256)+`"`)
	}
	w := &contentResponse{ResponseWriter: to}
	setRange(r.Header, f.Bytes)
	http.ServeContent(w, r, "", time.Time{}, content)
	switch w.refused {
	case http.StatusRequestedRangeNotSatisfiable:
		h.Del("X-Content-Type-Options")
		return apierr.RangeOutside(f.Bytes)
	case http.StatusPreconditionFailed:
		return apierr.NoMatch()
	default:
		return nil
	}
}

// maxRanges is how many ranges of a file one request may ask for; for more it gets the whole file.
const maxRanges = 16

// setRange makes the Range header of a request what RFC 9110 says where http.ServeContent differs: the unit is of any case, and
// an unknown one is ignored; the last 0 bytes of a file are outside of it.
func setRange(h http.Header, size int64) {
	unit, ranges, _ := strings.Cut(h.Get("Range"), "=")
	list := strings.Split(ranges, ",")
	if !strings.EqualFold(unit, "bytes") || len(list) > maxRanges {
		h.Del("Range")
		return
	}
	for i, r := range list {
		last, suffix := strings.CutPrefix(strings.TrimSpace(r), "-")
		if last = strings.TrimSpace(last); suffix && last != "" && strings.Trim(last, "0") == "" {
			list[i] = strconv.FormatInt(size, 10) + "-"
		}
	}
	h.Set("Range", "bytes="+strings.Join(list, ","))
}

// contentResponse is the response of http.ServeContent, without its plain text about a range that cannot be served and its empty
// response to a condition that does not hold: errors of the API are JSON.
type contentResponse struct {
	http.ResponseWriter
	refused int // the status of an error, of which nothing has been sent; or 0
}

// WriteHeader implements http.ResponseWriter.
func (w *contentResponse) WriteHeader(status int) {
	switch status {
	case http.StatusRequestedRangeNotSatisfiable, http.StatusPreconditionFailed:
		w.refused = status
	default:
		w.ResponseWriter.WriteHeader(status)
	}
}

// Write implements http.ResponseWriter.
func (w *contentResponse) Write(p []byte) (int, error) {
	if w.refused != 0 {
		return len(p), nil
	}
	return w.ResponseWriter.Write(p)
}

// Unwrap serves http.ResponseController.
func (w *contentResponse) Unwrap() http.ResponseWriter { return w.ResponseWriter }
