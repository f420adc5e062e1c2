package proxy

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"

	apierr "basegate/errors"
	"basegate/fleet"
)

// modelObject is one element of GET /v1/models.
type modelObject struct {
	ID          string `json:"id"`
	Object      string `json:"object"`
	Created     int64  `json:"created"`
	OwnedBy     string `json:"owned_by"`
	Checkpoint  string `json:"checkpoint"`
	Precision   string `json:"precision"`
	MaxModelLen *int64 `json:"max_model_len"` // tokens; null while no backend has said
	MaxLogprobs int    `json:"max_logprobs"`
	Status      string `json:"status"`
	// BootEstimate is how long a start takes, in whole seconds, of a model that is not warm; 0 where nobody can say.
	BootEstimate *int64 `json:"boot_estimate_seconds,omitempty"`
}

type modelList struct {
	Object string        `json:"object"`
	Data   []modelObject `json:"data"`
}

func (s *Server) modelObject(m *fleet.Model) modelObject {
	o := modelObject{
		ID: m.ID(), Object: "model", Created: s.started.Unix(), OwnedBy: "basegate",
		Checkpoint: m.Checkpoint(), Precision: m.Precision(), MaxLogprobs: m.MaxLogprobs(), Status: m.Status(),
	}
	if n := m.MaxModelLen(); n > 0 {
		o.MaxModelLen = &n
	}
	if o.Status != fleet.StatusWarm {
		estimate := apierr.Seconds(m.BootEstimate())
		o.BootEstimate = &estimate
	}
	return o
}

func (s *Server) listModels(x *exchange) error {
	if err := s.authenticate(x); err != nil {
		return err
	}
	list := modelList{Object: "list", Data: []modelObject{}}
	for _, m := range s.fleet.Models() {
		list.Data = append(list.Data, s.modelObject(m))
	}
	return s.json(x, list)
}

func (s *Server) showModel(x *exchange) error {
	if err := s.authenticate(x); err != nil {
		return err
	}
	id, err := url.PathUnescape(strings.TrimPrefix(x.r.URL.EscapedPath(), "/v1/models/"))
	if err == nil {
		if m, ok := s.fleet.Model(id); ok {
			return s.json(x, s.modelObject(m))
		}
	}
	return apierr.NoSuchPath(x.r.Method, x.r.URL.Path, "the models are listed by GET /v1/models")
}

// json sends v with status 200.
func (s *Server) json(x *exchange, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return apierr.Unexpected(err)
	}
	h := x.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	s.setHeaders(x, "")
	x.discardBody()
	x.status = http.StatusOK
	x.boundWrites()
	x.w.WriteHeader(x.status)
	if _, err := x.w.Write(body); err != nil {
		return errClientGone
	}
	x.finished = true
	return nil
}
