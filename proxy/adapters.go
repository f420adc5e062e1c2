package proxy

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tidwall/gjson"
	"go.uber.org/zap"

	"basegate/breaker"
	"basegate/database"
	apierr "basegate/errors"
	"basegate/fleet"
)

// maxAdapterBody limits the bodies of the endpoints of adapters, in bytes.
const maxAdapterBody = 64 << 10

// adapterObject is the response of the endpoints of adapters.
type adapterObject struct {
	Object  string `json:"object"`
	ID      string `json:"id"`
	Parent  string `json:"parent"`
	Path    string `json:"path"`
	Version int64  `json:"version"`
	Created int64  `json:"created"`
}

// The members of the endpoints' bodies.
const (
	loraName  = "lora_name"
	loraPath  = "lora_path"
	baseModel = "base_model"
)

// addAdapter serves POST /v1/load_lora_adapter: it adds an adapter, which backends load when it is needed.
func (s *Server) addAdapter(x *exchange) error {
	r, err := s.readAdapterRequest(x, []string{loraName, loraPath}, baseModel)
	if err != nil {
		return err
	}
	base, err := s.baseOf(x, r)
	if err != nil {
		return err
	}
	p := path.Clean(r[loraPath])
	if !isWithin(base.AdaptersDir(), p) {
		return apierr.NotPermitted(fmt.Sprintf("keys may not add adapters of %s from this path; ask the operator which folder they may come from", base.ID()))
	}
	added, err := s.deps.Fleet.AddAdapter(x.r.Context(), fleet.Adapter{ID: r[loraName], Model: base.ID(), Path: p, Account: x.caller.identity.AccountID})
	return s.sendAdapter(x, added, err, base)
}

func (s *Server) removeAdapter(x *exchange) error {
	r, err := s.readAdapterRequest(x, []string{loraName})
	if err != nil {
		return err
	}
	if known, ok := s.deps.Fleet.Model(r[loraName]); ok && known.Adapter() != nil && !mayChange(x, known) {
		return apierr.NoSuchAdapter()
	}
	removed, err := s.deps.Fleet.RemoveAdapter(x.r.Context(), r[loraName], x.caller.identity.AccountID)
	return s.sendAdapter(x, removed, err, nil)
}

// sendAdapter sends an adapter that was added or removed, or the error of that.
func (s *Server) sendAdapter(x *exchange, a fleet.Adapter, err error, base *fleet.Model) error {
	switch {
	case err == nil:
		s.deps.Log.Info("adapters changed", zap.String("request_id", x.id), zap.String("key", x.caller.identity.KeyPrefix),
			zap.String("endpoint", x.r.URL.Path), zap.String("adapter", a.Name()), zap.String("path", a.Path))
		return s.sendJSON(x, adapterObject{"adapter", a.ID, a.Model, a.Path, a.Version, a.CreatedAt.Unix()})
	case errors.Is(err, fleet.ErrAdapterExists):
		return apierr.NameOfAnother(loraName)
	case errors.Is(err, fleet.ErrTooManyAdapters):
		return apierr.InvalidField(loraName, fmt.Sprintf("%s: %s has %d adapters, as many as it may have; unload one", loraName, base.ID(), base.MaxAdapters()))
	case errors.Is(err, fleet.ErrNoAdapter):
		return apierr.NoSuchAdapter()
	case errors.Is(err, fleet.ErrAdapterConfigured), errors.Is(err, fleet.ErrAdapterOfAnother):
		return apierr.NotPermitted("only the operator may remove this adapter, or the account whose key has added it")
	case x.cancelled():
		return x.cancelErr()
	case errors.Is(err, database.ErrUnavailable), errors.Is(err, database.ErrClosed):
		return apierr.Overload(apierr.NoDatabase, "adapters cannot be recorded at the moment", ledgerRetry, err)
	default:
		return fmt.Errorf("change adapters: %w", err)
	}
}

// readAdapterRequest authenticates a key that may change adapters, and returns the members of the body, which are texts.
func (s *Server) readAdapterRequest(x *exchange, required []string, optional ...string) (map[string]string, error) {
	if err := s.authenticate(x); err != nil {
		return nil, err
	}
	body, err := s.readBody(x)
	if err != nil {
		return nil, err
	}
	if len(body) > maxAdapterBody {
		return nil, apierr.BodyTooLarge(maxAdapterBody)
	}
	members, err := Members(body)
	if err != nil {
		return nil, err
	}
	texts, known := map[string]string{}, slices.Concat(required, optional)
	for _, m := range members {
		switch {
		case !slices.Contains(known, m.Name):
			return nil, UnknownMember(m.Name, known)
		case m.Type == gjson.Null && !slices.Contains(required, m.Name):
		case m.Type != gjson.String || m.Str == "" || strings.ContainsFunc(m.Str, func(r rune) bool { return r < ' ' || r == 0x7f }):
			return nil, m.Invalid("expected a text without control characters that is not empty")
		default:
			texts[m.Name] = m.Str
		}
	}
	for _, name := range required {
		if texts[name] == "" {
			return nil, apierr.InvalidField(name, name+" is missing")
		}
	}
	if err := fleet.CheckAdapterID(texts[loraName]); err != nil {
		return nil, apierr.InvalidField(loraName, fmt.Sprintf("%s: %v", loraName, err))
	}
	if !x.caller.identity.Adapters {
		return nil, apierr.NotPermitted("this key may not change adapters; ask the operator for the right")
	}
	return texts, nil
}

// baseOf returns the model that an adapter is added to: the one that the request names, or that has an adapter of this name, or else
// the only one that keys may add adapters to.
func (s *Server) baseOf(x *exchange, r map[string]string) (*fleet.Model, error) {
	bases := slices.DeleteFunc(s.models(x), func(m *fleet.Model) bool { return m.Adapter() != nil })
	if id := r[baseModel]; id != "" {
		if m, ok := s.lookup(x, id); ok && m.Adapter() == nil {
			return m, nil
		}
		return nil, apierr.UnknownModel(baseModel, id, idsOf(bases), "")
	}
	known, _ := s.deps.Fleet.Model(r[loraName])
	takers := slices.DeleteFunc(bases, func(m *fleet.Model) bool { return m.AdaptersDir() == "" })
	switch {
	case known != nil && known.Adapter() != nil && mayChange(x, known):
		return known.Base(), nil
	case known != nil:
		return nil, apierr.NameOfAnother(loraName)
	case len(takers) == 1:
		return takers[0], nil
	case len(takers) == 0:
		return nil, apierr.NotPermitted("keys may add adapters to no model here; ask the operator")
	default:
		return nil, apierr.InvalidField(baseModel, baseModel+" is missing, and several models take adapters; name one")
	}
}

// mayChange reports whether the key may use an adapter or its base model, without which it may not change the adapter either.
func mayChange(x *exchange, adapter *fleet.Model) bool {
	return mayUse(&x.caller.identity, adapter) || mayUse(&x.caller.identity, adapter.Base())
}

// isWithin reports whether a clean path is below a folder, and does not lead out of it by a link as far as this machine can see it:
// the backends may see other files.
func isWithin(dir, p string) bool {
	if dir == "" || !strings.HasPrefix(p, dir+"/") {
		return false
	}
	root, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return true
	}
	for at := p; at != dir; at = path.Dir(at) {
		target, err := filepath.EvalSymlinks(at)
		if err == nil {
			return strings.HasPrefix(target, root+"/")
		}
		if _, notLink := os.Readlink(at); notLink == nil || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
			return false
		}
	}
	return true
}

// serving returns the model that the request is sent to: that of the latest version of an adapter.
func (x *exchange) serving() *fleet.Model { return cmp.Or(x.attempts.model, x.model) }

// adapterName returns the name at vLLM of the adapter that a model is; empty if it is none.
func adapterName(m *fleet.Model) string {
	if m.Adapter() == nil {
		return ""
	}
	return m.Served()
}

// usesAdapter reports whether the request needs an adapter. The tokenizer is that of the base model.
func (x *exchange) usesAdapter() bool { return x.model.Adapter() != nil && x.reservation != nil }

func (x *exchange) loadAdapter(lease *fleet.Lease) error {
	if !x.usesAdapter() {
		return nil
	}
	return lease.LoadAdapter(x.r.Context(), x.serving(), func() (end func()) {
		began, endLoad := time.Now(), x.trace.child("adapter")
		x.delivery.keepalive.waitingFor(loadingAdapter)
		return func() {
			x.delivery.keepalive.waitingFor(waitingForFirstEvent)
			endLoad()
			x.timings.loading += time.Since(began)
		}
	})
}

func loadingAdapter() string { return "loading adapter" }

// passOver notes that a backend has not loaded the adapter of the request, so that another one is tried.
func (x *exchange) passOver(lease *fleet.Lease, err error) {
	if errors.Is(err, fleet.ErrSuperseded) {
		x.attempts.model = x.model.Current()
		return
	}
	x.attempts.notLoaded, x.attempts.backend = err, lease.Backend
	x.attempts.tried = append(x.attempts.tried, fleet.FailedAttempt{Backend: lease.Backend})
}

// adapterGone returns the outcome of an attempt whose backend does not know the adapter that it had loaded, as after a restart.
func (x *exchange) adapterGone(lease *fleet.Lease, o breaker.Outcome) breaker.Outcome {
	if x.usesAdapter() && o.Class == breaker.Misconfigured && o.Status == http.StatusNotFound {
		lease.ForgetAdapter()
		o.Class = breaker.AdapterGone
	}
	return o
}

// adapterUnavailable returns the error of an adapter that no backend can load, with what the last one said. If that could not be
// reached, it is the error of any request.
func (x *exchange) adapterUnavailable() error {
	said := ""
	if failed, ok := errors.AsType[*fleet.AdapterError](x.attempts.notLoaded); ok {
		if failed.Unreachable {
			return breaker.Outcome{Class: breaker.Refused, Cause: failed}.Err(x.model.ID(), len(x.attempts.tried))
		}
		said = failed.Said
	}
	return apierr.AdapterNotLoaded(x.model.ID(), said, x.attempts.notLoaded)
}
