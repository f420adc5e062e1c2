package proxy

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/go-json-experiment/json"

	apierr "basegate/errors"
	"basegate/fleet"
)

// modelObject is one element of GET /v1/models.
type modelObject struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"` // when the model was first configured
	OwnedBy string `json:"owned_by"`
	// Endpoints are the paths that serve the model.
	Endpoints   []string `json:"endpoints"`
	Parent      string   `json:"parent,omitempty"` // id of the model whose adapter it is
	Checkpoint  string   `json:"checkpoint"`
	Precision   string   `json:"precision"`
	MaxModelLen *int64   `json:"max_model_len"` // tokens; null while unknown
	MaxLogprobs int      `json:"max_logprobs"`
	Status      string   `json:"status"`
	// BootEstimate is how long a boot takes, in whole seconds, if the model is not warm; 0 if unknown.
	BootEstimate *int64 `json:"boot_estimate_seconds,omitempty"`
}

type modelList struct {
	Object string        `json:"object"`
	Data   []modelObject `json:"data"`
}

func newModelObject(m *fleet.Model) modelObject {
	o := modelObject{
		ID: m.ID(), Object: "model", Created: m.FirstSeen().Unix(), OwnedBy: "basegate",
		Checkpoint: m.Checkpoint(), Precision: m.Precision(), MaxLogprobs: m.MaxLogprobs(), Status: m.Status(),
	}
	if m.Adapter() != nil {
		o.Parent = m.Base().ID()
	}
	if m.Completions() {
		o.Endpoints = append(o.Endpoints, CompletionsPath)
	}
	if m.Chat() {
		o.Endpoints = append(o.Endpoints, ChatPath)
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
	for _, m := range s.models(x) {
		list.Data = append(list.Data, newModelObject(m))
	}
	return s.sendJSON(x, list)
}

func (s *Server) showModel(x *exchange) error {
	if err := s.authenticate(x); err != nil {
		return err
	}
	id, err := url.PathUnescape(strings.TrimPrefix(x.r.URL.EscapedPath(), "/v1/models/"))
	if err == nil {
		if m, ok := s.deps.Fleet.Model(id); ok && mayUse(&x.caller.identity, m) {
			return s.sendJSON(x, newModelObject(m))
		}
	}
	return apierr.NoSuchPath(x.r.Method, x.r.URL.Path, "the models are listed by GET /v1/models")
}

func (s *Server) sendJSON(x *exchange, v any) error { return s.sendJSONAs(x, http.StatusOK, v) }

func (s *Server) sendJSONAs(x *exchange, status int, v any) error {
	body, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		return apierr.Unexpected(err)
	}
	x.discardBody()
	return s.sendBody(x, status, "application/json", body)
}
