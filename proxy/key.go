package proxy

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"time"

	"basegate/budget"
	"basegate/budget/quota"
	apierr "basegate/errors"
	"basegate/fleet"
	"basegate/identity"
)

// keysRetry is when a client should retry whose key may exist, but cannot be looked up.
const keysRetry = 2 * time.Second

// KeyError returns the error of a request whose key may not be used or cannot be looked up.
func KeyError(cause error) error {
	if errors.Is(cause, identity.ErrKeysUnreadable) {
		return apierr.Overload(apierr.NoDatabase, "keys cannot be looked up at the moment", keysRetry, cause)
	}
	if errors.Is(cause, identity.ErrKeyShortened) {
		return apierr.ShortenedKey(cause)
	}
	return apierr.BadKey(cause)
}

// refuseKey is KeyError, unless the client has disconnected.
func (x *exchange) refuseKey(cause error) error {
	if !errors.Is(cause, identity.ErrKeysUnreadable) && x.cancelled() {
		return x.cancelErr()
	}
	return KeyError(cause)
}

// mayUse reports whether the key, and its parent if it has one, may use a model. An id of the list that has become an alias still counts.
func mayUse(i *identity.Principal, m *fleet.Model) bool {
	allows := i.Models.Allows(m.ID()) || slices.ContainsFunc(m.Aliases(), i.Models.Allows)
	return allows && (i.Parent == nil || mayUse(i.Parent, m))
}

// models returns the models that the key of the request may use, in the order of the configuration.
func (s *Server) models(x *exchange) []*fleet.Model {
	var allowed []*fleet.Model
	for _, m := range s.deps.Fleet.Models() {
		if mayUse(&x.caller.identity, m) {
			allowed = append(allowed, m)
		}
	}
	return allowed
}

// lookup returns the model with an id or alias, if the key may use it. Requests of a dialect may name the checkpoint.
func (s *Server) lookup(x *exchange, id string) (*fleet.Model, bool) {
	if m, ok := s.deps.Fleet.Model(id); ok && mayUse(&x.caller.identity, m) {
		return m, true
	}
	if x.caller.dialect == nil {
		return nil, false
	}
	models := s.models(x)
	i := slices.IndexFunc(models, func(m *fleet.Model) bool { return m.Checkpoint() == id })
	if i < 0 {
		return nil, false
	}
	return models[i], true
}

// modelOf finds the model of a request. vLLM's own clients name none at the root, where a key that may use one model alone needs
// none, and ?model= names it otherwise.
func (s *Server) modelOf(x *exchange) (*fleet.Model, error) {
	id, field := "", "model"
	if x.request != nil {
		id, field = x.request.Model, x.request.NameOf(field)
	}
	if !isRoot(x.r.URL.Path) {
		return s.findModel(x, field, id)
	}
	named := x.r.URL.Query().Get("model")
	switch models := s.models(x); {
	case id != "" && named != "" && id != named:
		return nil, apierr.InvalidField("model", "model: the body and ?model= name different models; send one of them")
	case id == "" && named == "" && len(models) == 1:
		return models[0], nil
	case id == "" && named == "" && len(models) > 1:
		return nil, apierr.InvalidField("model",
			"model: got none, and this key may use "+strings.Join(idsOf(models), ", ")+"; say which with ?model=")
	}
	return s.findModel(x, field, cmp.Or(id, named))
}

// findModel is lookup that returns an error for the client. field is the one that has the id.
func (s *Server) findModel(x *exchange, field, id string) (*fleet.Model, error) {
	if m, ok := s.lookup(x, id); ok {
		return m, nil
	}
	suggestion := ""
	if m, ok := s.deps.Fleet.ByCheckpoint(id); ok && mayUse(&x.caller.identity, m) {
		suggestion = m.ID()
	}
	return nil, apierr.UnknownModel(field, id, idsOf(s.models(x)), suggestion)
}

func idsOf(models []*fleet.Model) []string {
	ids := make([]string, len(models))
	for i, m := range models {
		ids[i] = m.ID()
	}
	return ids
}

// keyObject is the response to GET /v1/key.
type keyObject struct {
	Object      string         `json:"object"`
	ID          string         `json:"id"`
	Name        string         `json:"name"`
	Prefix      string         `json:"prefix"`
	Account     string         `json:"account"`
	Run         *string        `json:"run"`        // of a key that another one has made; null: none
	Parent      *string        `json:"parent"`     // the key that has made this one; null: none has
	Models      *[]string      `json:"models"`     // null: every model
	ExpiresAt   *time.Time     `json:"expires_at"` // null: never
	Concurrency keyConcurrency `json:"concurrency"`

	AccountConcurrency keyConcurrency `json:"account_concurrency"` // of all keys of the account

	Caps []keyCap `json:"caps"`
}

// keyConcurrency are the slots of a key or an account, and its requests.
type keyConcurrency struct {
	Limit   int `json:"limit"`
	Running int `json:"running"`
	Waiting int `json:"waiting"`
}

// keyCap is one cap of the key or its account, in tokens.
type keyCap struct {
	Scope     budget.Scope `json:"scope"`
	Window    quota.Window `json:"window"`
	Meter     quota.Meter  `json:"meter"`
	Limit     int64        `json:"limit"`
	Used      int64        `json:"used"`
	Reserved  int64        `json:"reserved"`
	Remaining int64        `json:"remaining"` // reservations do not reduce it
	ResetsAt  *time.Time   `json:"resets_at"` // null: never
}

func (s *Server) showKey(x *exchange) error {
	if err := s.authenticate(x); err != nil {
		return err
	}
	balance, _ := s.deps.Ledger.ReadBalance(x.r.Context(), x.caller.payer) // without the database, what is known
	return s.sendJSON(x, s.newKeyObject(&x.caller.identity, x.caller.payer, balance))
}

func (s *Server) newKeyObject(i *identity.Principal, p budget.Payer, balance budget.Balance) keyObject {
	o := keyObject{
		Object: "key", ID: i.KeyID, Name: i.KeyName, Prefix: i.KeyPrefix, Account: i.Email, Run: OrNull(i.Run),
		ExpiresAt: OrNull(i.ExpiresAt), Caps: []keyCap{},
	}
	ids := i.Models.IDs()
	if i.Parent != nil {
		o.Parent = &i.Parent.KeyID
		ids = i.Models.Within(i.Parent.Models)
	}
	if ids != nil {
		o.Models = &ids
	}
	for _, c := range balance.Caps() {
		o.Caps = append(o.Caps, keyCap{c.Scope, c.Window, c.Meter, c.Limit, c.Used, c.Reserved, c.Remaining(), OrNull(c.ResetsAt)})
	}
	key, account := s.deps.Ledger.Stats(p) // after the balance, which reads them with several gateways
	o.Concurrency = keyConcurrency{p.Slots, key.Running, key.Waiting}
	o.AccountConcurrency = keyConcurrency{p.AccountSlots, account.Running, account.Waiting}
	return o
}
