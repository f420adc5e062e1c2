package batch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	apierr "basegate/errors"
	"basegate/proxy"
)

// Routes returns the paths of files and batches.
func (s *Service) Routes() []proxy.Extension {
	return []proxy.Extension{
		{Method: http.MethodPost, Path: "/v1/files", ReadsBody: true, Serve: s.uploadFile},
		{Method: http.MethodPost, Path: "/v1/files/", ReadsBody: true, Serve: s.uploadFile}, // as kluster.ai's documentation writes it
		{Method: http.MethodGet, Path: "/v1/files", Serve: s.sendFiles},
		{Method: http.MethodGet, Path: "/v1/files/:id", Serve: s.showFile},
		{Method: http.MethodDelete, Path: "/v1/files/:id", Serve: s.deleteFile},
		{Method: http.MethodGet, Path: "/v1/files/:id/content", Serve: s.sendContent},
		{Method: http.MethodPost, Path: "/v1/batches", ReadsBody: true, Serve: s.createBatch},
		{Method: http.MethodGet, Path: "/v1/batches", Serve: s.sendBatches},
		{Method: http.MethodGet, Path: "/v1/batches/:id", Serve: sendBatch(s.BatchOf)},
		{Method: http.MethodPost, Path: "/v1/batches/:id/cancel", Serve: sendBatch(s.CancelOf)},
	}
}

// Unserved returns the routes of a gateway that keeps no files. The error for unknown paths would only name paths.
func Unserved(routes []proxy.Extension) []proxy.Extension {
	for i := range routes {
		routes[i].Serve = func(c *proxy.ExtensionCall) error {
			return apierr.NoSuchPath(c.Request.Method, c.Request.URL.Path,
				"files and batches are off at this gateway: its operator has configured no storage for files")
		}
	}
	return routes
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

// pageOf returns the page that the parameters after, limit and order select, and all parameters, which have known names.
func pageOf(c *proxy.ExtensionCall, limit, most int, known ...string) (p page, q map[string]string, err error) {
	if q, err = proxy.Query(c.Request, known...); err != nil {
		return p, nil, err
	}
	p.account = c.Account
	if after, ok := q["after"]; ok {
		p.cursor = &after
	}
	if p.limit, err = proxy.PageLimit(q, limit, most); err != nil {
		return p, nil, err
	}
	order, given := q["order"]
	switch {
	case !given, order == "desc":
	case order == "asc":
		p.ascending = true
	default:
		return p, nil, apierr.InvalidField("order", fmt.Sprintf(`order: got %s; expected "asc" or "desc"`, strconv.Quote(apierr.Clip(order))))
	}
	return p, q, nil
}

func (s *Service) sendFiles(c *proxy.ExtensionCall) error {
	const most = 10_000
	p, q, err := pageOf(c, most, most, "purpose", "after", "limit", "order")
	if err != nil {
		return err
	}
	files, more, err := s.listFiles(c.Request.Context(), p, Purpose(proxy.OnlyText(q["purpose"])))
	if err != nil {
		return err
	}
	objects := make([]fileObject, len(files))
	for i := range files {
		objects[i] = files[i].toObject()
	}
	return sendJSON(c, proxy.NewList(objects, func(o fileObject) string { return o.ID }, more))
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

func (s *Service) showFile(c *proxy.ExtensionCall) error {
	f, err := s.file(c.Request.Context(), s.db.Read(), c.Account, c.Param("id"))
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

func (s *Service) sendBatches(c *proxy.ExtensionCall) error {
	const usual, most = 20, 100
	p, _, err := pageOf(c, usual, most, "after", "limit")
	if err != nil {
		return err
	}
	batches, more, err := s.listBatches(c.Request.Context(), p)
	if err != nil {
		return err
	}
	objects := make([]batchObject, len(batches))
	for i := range batches {
		if err := s.readErrors(c.Request.Context(), &batches[i]); err != nil {
			return err
		}
		objects[i] = batches[i].toObject()
	}
	return sendJSON(c, proxy.NewList(objects, func(o batchObject) string { return o.ID }, more))
}

// sendBatch returns what serves a path with the id of a batch: it sends the batch that operation returns.
func sendBatch(operation func(ctx context.Context, account, id string) (Batch, error)) func(*proxy.ExtensionCall) error {
	return func(c *proxy.ExtensionCall) error {
		b, err := operation(c.Request.Context(), c.Account, c.Param("id"))
		if err != nil {
			return err
		}
		return sendJSON(c, b.toObject())
	}
}

// unavailable returns the error of a read or a write of the database, unless it is nil or one of the API.
func unavailable(err error) error {
	if _, refused := errors.AsType[*apierr.Error](err); refused || err == nil {
		return err
	}
	return apierr.Storage(fmt.Errorf("read or write files and batches: %w", err))
}
