package batch

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"

	"basegate/database"
	apierr "basegate/errors"
	"basegate/proxy"
)

// Routes returns the paths of files and batches.
func (s *Service) Routes() []proxy.Extension {
	return []proxy.Extension{
		{Method: http.MethodPost, Path: "/v1/files", ReadsBody: true, Serve: s.uploadFile},
		{Method: http.MethodPost, Path: "/v1/files/", ReadsBody: true, Serve: s.uploadFile}, // as kluster.ai's documentation writes it
		{Method: http.MethodGet, Path: "/v1/files", Serve: s.listFiles},
		{Method: http.MethodGet, Path: "/v1/files/:id", Serve: s.showFile},
		{Method: http.MethodDelete, Path: "/v1/files/:id", Serve: s.deleteFile},
		{Method: http.MethodGet, Path: "/v1/files/:id/content", Serve: s.sendContent},
		{Method: http.MethodPost, Path: "/v1/batches", ReadsBody: true, Serve: s.createBatch},
		{Method: http.MethodGet, Path: "/v1/batches", Serve: s.listBatches},
		{Method: http.MethodGet, Path: "/v1/batches/:id", Serve: s.showBatch},
		{Method: http.MethodPost, Path: "/v1/batches/:id/cancel", Serve: s.cancelBatch},
	}
}

// sendJSON sends a response.
func sendJSON(c *proxy.ExtensionCall, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode a response: %w", err)
	}
	h := c.Response.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)+1))
	c.Response.WriteHeader(http.StatusOK)
	c.Response.Write(append(body, '\n')) //nolint:errcheck // the client has disconnected
	return nil
}

// queryOf returns the parameters of a request's URL. Each may stand once, and must be one of known.
func queryOf(r *http.Request, known ...string) (map[string]string, error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, apierr.InvalidField("query", "the query of the URL is malformed: names and values must be percent-encoded")
	}
	single := map[string]string{}
	for _, name := range known {
		if all := values[name]; len(all) > 1 {
			return nil, apierr.InvalidField(name, fmt.Sprintf("%s: got it %d times; expected it once", name, len(all)))
		} else if len(all) == 1 {
			single[name] = all[0]
		}
		delete(values, name)
	}
	for name := range values {
		return nil, apierr.UnknownField(name, "")
	}
	return single, nil
}

// pageOf returns the page that the parameters limit and order select; after is looked up by the caller.
func pageOf(account string, q map[string]string, limit, most int) (page, error) {
	p := page{account: account, limit: limit}
	if text, ok := q["limit"]; ok {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > most {
			return page{}, apierr.InvalidField("limit", fmt.Sprintf("limit: got %s; expected an integer from 1 to %d", strconv.Quote(apierr.Clip(text)), most))
		}
		p.limit = n
	}
	order, given := q["order"]
	switch {
	case !given, order == "desc":
	case order == "asc":
		p.ascending = true
	default:
		return page{}, apierr.InvalidField("order", fmt.Sprintf(`order: got %s; expected "asc" or "desc"`, strconv.Quote(apierr.Clip(order))))
	}
	return p, nil
}

func (s *Service) listFiles(c *proxy.ExtensionCall) error {
	const most = 10_000
	q, err := queryOf(c.Request, "purpose", "after", "limit", "order")
	if err != nil {
		return err
	}
	p, err := pageOf(c.Account, q, most, most)
	if err != nil {
		return err
	}
	ctx := c.Request.Context()
	if after, ok := q["after"]; ok {
		f, err := s.file(ctx, c.Account, after)
		if err != nil {
			return ofCursor(err)
		}
		p.after = f.seq
	}
	files, more, err := listFiles(ctx, s.db.Read(), p, Purpose(onlyText(q["purpose"])), s.now())
	if err != nil {
		return unreadable(err)
	}
	objects := make([]fileObject, 0, len(files))
	for i := range files {
		objects = append(objects, files[i].toObject())
	}
	return sendJSON(c, newList(objects, func(o fileObject) string { return o.ID }, more))
}

// ofCursor makes the error that there is no such object name the parameter after.
func ofCursor(err error) error {
	if e, ok := errors.AsType[*apierr.Error](err); ok && e.Code == apierr.NotFound {
		named := *e
		named.Param, named.Message = "after", "after: "+e.Message+"; expected the last_id of a page"
		return &named
	}
	return err
}

// file returns a file of an account, or the error that there is none.
func (s *Service) file(ctx context.Context, account, id string) (File, error) {
	f, err := findFile(ctx, s.db.Read(), account, onlyText(id), s.now())
	if errors.Is(err, sql.ErrNoRows) {
		return File{}, apierr.NoSuchObject("file", id)
	}
	return f, unreadable(err)
}

func (s *Service) showFile(c *proxy.ExtensionCall) error {
	f, err := s.file(c.Request.Context(), c.Account, c.Param("id"))
	if err != nil {
		return err
	}
	return sendJSON(c, f.toObject())
}

type deletedObject struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Deleted bool   `json:"deleted"`
}

func (s *Service) deleteFile(c *proxy.ExtensionCall) error {
	id := c.Param("id")
	if err := s.DeleteOf(c.Request.Context(), c.Account, id); err != nil {
		return err
	}
	return sendJSON(c, deletedObject{id, "file", true})
}

// DeleteOf deletes a file of an account, unless a batch needs it.
func (s *Service) DeleteOf(ctx context.Context, account, id string) error {
	var using string
	err := s.write(ctx, func(ctx context.Context, tx database.Tx) error {
		f, err := findFile(ctx, tx, account, onlyText(id), s.now())
		if err != nil {
			return err
		}
		if using, err = batchUsing(ctx, tx, id); err != nil || using != "" {
			return err
		}
		return deleteFile(ctx, tx, &f)
	})
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return apierr.NoSuchObject("file", id)
	case err != nil:
		return unwritable(err)
	case using != "":
		return apierr.FileOfBatch(id, using)
	}
	wake(s.deleted)
	return nil
}

func (s *Service) listBatches(c *proxy.ExtensionCall) error {
	const usual, most = 20, 100
	q, err := queryOf(c.Request, "after", "limit")
	if err != nil {
		return err
	}
	p, err := pageOf(c.Account, q, usual, most)
	if err != nil {
		return err
	}
	if after, ok := q["after"]; ok {
		b, err := s.batch(c.Request.Context(), c.Account, after)
		if err != nil {
			return ofCursor(err)
		}
		p.after = b.seq
	}
	batches, more, err := listBatches(c.Request.Context(), s.db.Read(), p)
	if err != nil {
		return unreadable(err)
	}
	objects := make([]batchObject, 0, len(batches))
	for i := range batches {
		o, err := s.object(c.Request.Context(), &batches[i])
		if err != nil {
			return err
		}
		objects = append(objects, o)
	}
	return sendJSON(c, newList(objects, func(o batchObject) string { return o.ID }, more))
}

// object returns a batch as the API shows it.
func (s *Service) object(ctx context.Context, b *Batch) (batchObject, error) {
	errs, err := s.readErrors(ctx, b)
	if err != nil {
		return batchObject{}, apierr.Storage(err)
	}
	return b.toObject(errs), nil
}

// sendBatch sends a batch as the response.
func (s *Service) sendBatch(c *proxy.ExtensionCall, b *Batch) error {
	o, err := s.object(c.Request.Context(), b)
	if err != nil {
		return err
	}
	return sendJSON(c, o)
}

// batch returns a batch of an account, or the error that there is none.
func (s *Service) batch(ctx context.Context, account, id string) (Batch, error) {
	b, err := findBatch(ctx, s.db.Read(), account, onlyText(id))
	if errors.Is(err, sql.ErrNoRows) {
		return Batch{}, apierr.NoSuchObject("batch", id)
	}
	return b, unreadable(err)
}

func (s *Service) showBatch(c *proxy.ExtensionCall) error {
	b, err := s.batch(c.Request.Context(), c.Account, c.Param("id"))
	if err != nil {
		return err
	}
	return s.sendBatch(c, &b)
}

func (s *Service) cancelBatch(c *proxy.ExtensionCall) error {
	b, err := s.batch(c.Request.Context(), c.Account, c.Param("id"))
	if err != nil {
		return err
	}
	if b, err = s.cancel(c.Request.Context(), &b); err != nil {
		return err
	}
	return s.sendBatch(c, &b)
}

// cancel cancels a batch, and returns it as it is then.
func (s *Service) cancel(ctx context.Context, b *Batch) (Batch, error) {
	if b.Status.ended() || b.Status == Finalizing {
		return Batch{}, apierr.BatchHasEnded(b.ID, string(b.Status))
	}
	changed := false
	err := s.write(ctx, func(ctx context.Context, tx database.Tx) (err error) {
		changed, err = setStatus(ctx, tx, b.seq, Cancelling, s.now(), Validating, InProgress)
		return err
	})
	if err != nil {
		return Batch{}, unwritable(err)
	}
	now, err := batchBySeq(ctx, s.db.Read(), b.seq)
	if err != nil {
		return Batch{}, unreadable(err)
	}
	if !changed && now.Status != Cancelling && now.Status != StatusCancelled {
		return Batch{}, apierr.BatchHasEnded(b.ID, string(now.Status))
	}
	wake(s.created)
	return now, nil
}

// onlyText returns an id or a purpose that a client names. What PostgreSQL would refuse as text is replaced by a text that
// names nothing.
func onlyText(s string) string {
	if !utf8.ValidString(s) || strings.ContainsRune(s, 0) {
		return "?"
	}
	return s
}

// unreadable returns the error of a read of the database; nil if it has succeeded.
func unreadable(err error) error {
	if err == nil {
		return nil
	}
	return apierr.Storage(fmt.Errorf("read files and batches: %w", err))
}

// unwritable returns the error of a write to the database, unless it is one of the API.
func unwritable(err error) error {
	if _, refused := errors.AsType[*apierr.Error](err); refused {
		return err
	}
	return apierr.Storage(fmt.Errorf("write files and batches: %w", err))
}
