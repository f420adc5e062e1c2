package proxy

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"basegate/budget/quota"
	"basegate/database"
	apierr "basegate/errors"
	"basegate/identity"
)

// keysPath is the path of the keys that a key makes, its children.
const keysPath = "/v1/keys"

// maxExpiresIn is the longest life of a child, in seconds: 10 years.
const maxExpiresIn = 10 * 365 * 24 * 60 * 60

// childFields are what a client chooses of a child.
type childFields struct {
	name, run   string
	expiresIn   int64 // seconds; 0: not given
	models      []string
	concurrency int // 0: not given
	caps        map[quota.ID]quota.Cap
	paused      *bool
}

// Members of a body that describe a child.
var (
	changeableMembers = append([]string{"budget", "expires_in"}, windowMembers()...)
	newKeyMembers     = append([]string{"name", "run", "models", "concurrency"}, changeableMembers...)
	changedKeyMembers = append([]string{"paused"}, changeableMembers...)
)

// windowMembers are the members for caps of a month or a day, as lists of keys have them.
func windowMembers() (names []string) {
	for i := range quota.Table {
		if k := &quota.Table[i]; k.Window != quota.Life {
			names = append(names, k.Member())
		}
	}
	return names
}

// parseChild reads the body of a request for a child as strictly as that of a completion.
func parseChild(body []byte, known []string) (f childFields, err error) {
	members, err := Members(body)
	if err != nil {
		return f, err
	}
	f.caps = map[quota.ID]quota.Cap{}
	for _, m := range members {
		switch {
		case !slices.Contains(known, m.Name):
			err = UnknownMember(m.Name, known)
		case m.Type == gjson.Null: // as if it were absent
		default:
			err = f.set(m)
		}
		if err != nil {
			return f, err
		}
	}
	return f, nil
}

func (f *childFields) set(m Member) (err error) {
	switch m.Name {
	case "name":
		f.name, err = m.Text()
	case "run":
		if f.run, err = m.Text(); err == nil && identity.CheckRun(f.run) != nil {
			err = m.Invalid("got %q; expected 1 to 64 of the characters A-Z a-z 0-9 . _ -", apierr.Clip(f.run))
		}
	case "expires_in":
		f.expiresIn, err = m.integer(1, maxExpiresIn)
	case "concurrency":
		var n int64
		n, err = m.integer(1, math.MaxInt32)
		f.concurrency = int(n)
	case "models":
		f.models, err = m.texts()
	case "paused":
		if !m.IsBool() {
			return m.Invalid("expected true or false")
		}
		paused := m.Bool()
		f.paused = &paused
	case "budget":
		return f.setLife(m)
	default:
		for i := range quota.Table {
			if quota.Table[i].Member() == m.Name {
				return f.setCap(quota.ID(i), m)
			}
		}
	}
	return err
}

// setLife reads the caps over the whole life of the key.
func (f *childFields) setLife(m Member) error {
	if !m.IsObject() {
		return m.Invalid("expected an object of total, input and output, in tokens")
	}
	for _, meter := range membersOf(m.Result) {
		id := slices.IndexFunc(quota.Table[:], func(k quota.Kind) bool { return k.Window == quota.Life && k.Meter.String() == meter.Name })
		switch {
		case id < 0:
			return m.Invalid("unknown member %q; expected total, input and output", apierr.Clip(meter.Name))
		case meter.Type == gjson.Null:
		default:
			if err := f.setCap(quota.ID(id), Member{meter.Result, m.Name}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f *childFields) setCap(id quota.ID, m Member) error {
	tokens, err := m.integer(0, math.MaxInt64)
	f.caps[id] = quota.Limit(tokens)
	return err
}

func (m Member) integer(least, most int64) (int64, error) {
	n, err := strconv.ParseInt(m.Raw, 10, 64)
	if err != nil || n < least || n > most {
		expected := fmt.Sprintf("from %d to %d", least, most)
		if most == math.MaxInt64 {
			expected = fmt.Sprintf("of at least %d", least)
		}
		return 0, m.Invalid("got %s; expected an integer %s", apierr.Clip(m.Raw), expected)
	}
	return n, nil
}

// texts returns the values of an array of strings, which is not empty.
func (m Member) texts() (all []string, err error) {
	for _, v := range m.Array() {
		if v.Type != gjson.String || v.Str == "" {
			return nil, m.Invalid("expected an array of strings, none empty")
		}
		all = append(all, v.Str)
	}
	if !m.IsArray() || len(all) == 0 {
		return nil, m.Invalid("expected an array of at least one string")
	}
	return all, nil
}

func (f *childFields) applyCaps(to *quota.Caps) {
	for id, limit := range f.caps {
		to[id] = limit
	}
}

// expiresAt returns when the key expires; zero: never, or not given.
func (f *childFields) expiresAt() time.Time {
	if f.expiresIn == 0 {
		return time.Time{}
	}
	return time.Now().Add(time.Duration(f.expiresIn) * time.Second)
}

// createChild serves POST /v1/keys: it makes a child of the key of the request.
func (s *Server) createChild(x *exchange) error {
	if err := s.authenticate(x); err != nil {
		return err
	}
	parent := &x.caller.identity
	if !s.deps.Keys.MayMakeKeys(parent) {
		return childErr(identity.ErrNoChildren, "")
	}
	body, err := s.readBody(x)
	if err != nil {
		return err
	}
	f, err := parseChild(body, newKeyMembers)
	if err != nil {
		return err
	}
	if f.name == "" {
		return apierr.InvalidField("name", "name is missing")
	}
	child := identity.Key{
		Email: parent.Email, Parent: parent.KeyID, Name: f.name, Run: f.run, Concurrency: f.concurrency, ExpiresAt: f.expiresAt(),
	}
	f.applyCaps(&child.Caps)
	if child.Models, err = s.childModels(x, f.models); err != nil {
		return err
	}
	child, secret, err := s.deps.Keys.Create(identity.WithActor(x.r.Context(), actorOf(parent)), child)
	if err != nil {
		return x.changeErr(err, "")
	}
	o := map[string]any{
		"object": "key", "id": child.ID, "secret": secret, "name": child.Name, "run": OrNull(child.Run), "parent": child.Parent,
		"expires_at": OrNull(child.ExpiresAt), "models": nil, // null: every model
		"concurrency": (&identity.Principal{Concurrency: child.Concurrency, Parent: parent}).MaxRunning(x.settings.ConcurrencyPerKey),
	}
	if ids := child.Models.Within(parent.Models); ids != nil {
		o["models"] = ids
	}
	life := map[string]quota.Cap{}
	for id, limit := range child.Caps {
		if k := &quota.Table[id]; k.Window == quota.Life {
			life[k.Meter.String()] = limit
		} else if limit.Bounded() {
			o[k.Member()] = limit
		}
	}
	o["budget"] = life
	return s.sendJSONAs(x, http.StatusCreated, o)
}

// actorOf returns the account of a key as the holder of its keys, also that of an administrator: a key has no right that its
// account has.
func actorOf(i *identity.Principal) identity.Account {
	return identity.Account{ID: i.AccountID, Email: i.Email}
}

// childModels returns the list of models of a new child. Each is one that its parent may use.
func (s *Server) childModels(x *exchange, ids []string) (identity.ModelList, error) {
	if ids == nil {
		return "", nil
	}
	for i, id := range ids {
		m, err := s.findModel(x, "models", id)
		if err != nil {
			return "", err
		}
		if parent := x.caller.identity.Models; parent.Any() || !parent.Allows(id) {
			ids[i] = m.ID()
		}
	}
	list, err := identity.NewModelList(ids)
	if err != nil {
		return "", apierr.InvalidField("models", "models: "+err.Error())
	}
	return list, nil
}

// childObject is a child as its parent sees it.
type childObject struct {
	keyObject

	State     string    `json:"state"`
	CreatedAt time.Time `json:"created_at"`
}

// newChildObject returns a child with what is known of its budgets. One that has ended has counters too.
func (s *Server) newChildObject(x *exchange, k *identity.Key) childObject {
	i, err := s.deps.Keys.Lookup(k.ID)
	if errors.Is(err, identity.ErrKeyUnknown) { // it was created at this moment
		i = identity.Principal{
			KeyID: k.ID, KeyName: k.Name, KeyPrefix: k.Prefix, AccountID: k.AccountID, Email: k.Email, Concurrency: k.Concurrency,
			KeyCaps: k.Caps, AccountCaps: x.caller.identity.AccountCaps, Run: k.Run, Parent: &x.caller.identity,
		}
	}
	i.ExpiresAt, i.Models = k.ExpiresAt, k.Models // the snapshot may be older
	payer := s.Payer(&i)
	payer.KeyCaps = k.Caps
	o := childObject{s.newKeyObject(&i, payer, s.deps.Ledger.Recent(x.r.Context(), payer)), string(k.State), k.CreatedAt}
	if k.State != identity.KeyRevoked && k.Expired() {
		o.State = "expired"
	}
	return o
}

// maxListedKeys limits a page of children: as many as a key may have by default, so that most lists are one page.
const maxListedKeys = 100

func (s *Server) listChildren(x *exchange) error {
	if err := s.authenticate(x); err != nil {
		return err
	}
	q, err := Query(x.r, "run", "after", "limit")
	if err != nil {
		return err
	}
	run, given := q["run"]
	if given && identity.CheckRun(run) != nil {
		return badRun("run", run)
	}
	limit, err := PageLimit(q, maxListedKeys, maxListedKeys)
	if err != nil {
		return err
	}
	keys, err := s.deps.Keys.Children(x.r.Context(), x.caller.identity.KeyID, run, OnlyText(q["after"]), limit+1)
	switch {
	case errors.Is(err, identity.ErrNoKey):
		return apierr.InvalidField("after", fmt.Sprintf("after: got %q; expected the last_id of a page", apierr.Clip(q["after"])))
	case err != nil:
		return x.readErr(err, "")
	}
	objects := make([]childObject, min(len(keys), limit))
	for i := range objects {
		objects[i] = s.newChildObject(x, &keys[i])
	}
	return s.sendJSON(x, NewList(objects, func(o childObject) string { return o.ID }, len(keys) > limit))
}

// child authenticates the request and returns the child that its path names.
func (s *Server) child(x *exchange) (identity.Key, error) {
	if err := s.authenticate(x); err != nil {
		return identity.Key{}, err
	}
	id := strings.TrimPrefix(x.r.URL.Path, keysPath+"/")
	key, err := s.deps.Keys.Get(x.r.Context(), OnlyText(id))
	if err == nil && key.Parent != x.caller.identity.KeyID {
		err = identity.ErrNoKey
	}
	if err != nil {
		return identity.Key{}, x.readErr(err, id)
	}
	return key, nil
}

func (s *Server) showChild(x *exchange) error {
	key, err := s.child(x)
	if err != nil {
		return err
	}
	return s.sendJSON(x, s.newChildObject(x, &key))
}

func (s *Server) changeChild(x *exchange) error {
	key, err := s.child(x)
	if err != nil {
		return err
	}
	id := key.ID
	body, err := s.readBody(x)
	if err != nil {
		return err
	}
	f, err := parseChild(body, changedKeyMembers)
	if err != nil {
		return err
	}
	ctx := identity.WithActor(x.r.Context(), actorOf(&x.caller.identity))
	if len(f.caps) > 0 || f.expiresIn > 0 {
		key, err = s.deps.Keys.Set(ctx, id, func(k *identity.Key) {
			f.applyCaps(&k.Caps)
			if f.expiresIn > 0 {
				k.ExpiresAt = f.expiresAt()
			}
		})
	}
	if err == nil && f.paused != nil {
		set := s.deps.Keys.Resume
		if *f.paused {
			set = s.deps.Keys.Pause
		}
		key, err = set(ctx, id)
	}
	if err != nil {
		return x.changeErr(err, id)
	}
	return s.sendJSON(x, s.newChildObject(x, &key))
}

// deleteChild serves DELETE /v1/keys/{id}: it revokes a child. With running=cancel, the requests that run are ended.
func (s *Server) deleteChild(x *exchange) error {
	key, err := s.child(x)
	if err != nil {
		return err
	}
	q, err := Query(x.r, "running")
	if err != nil {
		return err
	}
	revoke := s.deps.Keys.Revoke
	if running, given := q["running"]; given {
		if running != "cancel" {
			return apierr.InvalidField("running", fmt.Sprintf("running: got %q; expected cancel", apierr.Clip(running)))
		}
		revoke = s.deps.Keys.RevokeNow
	}
	if _, err := revoke(identity.WithActor(x.r.Context(), actorOf(&x.caller.identity)), key.ID); err != nil {
		return x.changeErr(err, key.ID)
	}
	return s.sendJSON(x, map[string]any{"id": key.ID, "object": "key", "deleted": true})
}

// readErr returns the error for the client of a read of children that has failed.
func (x *exchange) readErr(err error, id string) error {
	if x.cancelled() || errors.Is(err, identity.ErrNoKey) {
		return x.changeErr(err, id)
	}
	return apierr.Overload(apierr.NoDatabase, "keys cannot be read at the moment", keysRetry, err)
}

// changeErr returns the error for the client of a change of a child that has failed.
func (x *exchange) changeErr(err error, id string) error {
	if x.cancelled() {
		return x.cancelErr()
	}
	return childErr(err, id)
}

// childErr is changeErr for a client that is there. id is that of the child, or empty.
func childErr(err error, id string) error {
	for _, refusal := range []error{
		identity.ErrKeyPaused, identity.ErrKeyExpired, identity.ErrAccountDisabled, identity.ErrAccountPending, identity.ErrNoAccount,
	} {
		if errors.Is(err, refusal) { // of the parent, since the request arrived
			return apierr.BadKey(err)
		}
	}
	if full, ok := errors.AsType[*identity.TooManyChildrenError](err); ok {
		return apierr.TooManyChildren(full.Most)
	}
	cause := cmp.Or(errors.Unwrap(err), err) // without what was being done, which the client knows
	if above, ok := errors.AsType[*identity.AboveAccountError](err); ok {
		param := "budget"
		if k := &quota.Table[above.Cap]; k.Window != quota.Life {
			param = k.Member()
		}
		return apierr.InvalidField(param, param+": "+above.Error())
	}
	switch {
	case errors.Is(err, identity.ErrNoChildren):
		return apierr.NotPermitted("this key may not make keys: the operator gives that right with key set --children, and a key that " +
			"another one has made never has it")
	case errors.Is(err, identity.ErrSetByOperator):
		return apierr.NotPermitted("the operator has set this, so only the operator can change it")
	case errors.Is(err, identity.ErrNoKey):
		return apierr.NoSuchKey(cmp.Or(id, "?"))
	case errors.Is(err, identity.ErrKeyRevoked) && id == "":
		return apierr.BadKey(err)
	case errors.Is(err, identity.ErrKeyRevoked):
		return apierr.InvalidField("id", fmt.Sprintf("%s has been revoked, which is final", id))
	case errors.Is(err, identity.ErrBadName):
		return apierr.InvalidField("name", "name: "+cause.Error())
	case errors.Is(err, identity.ErrAboveConcurrency):
		return apierr.InvalidField("concurrency", "concurrency: "+cause.Error())
	case errors.Is(err, identity.ErrAboveParent):
		return apierr.InvalidField("models", "models: "+cause.Error())
	case errors.Is(err, database.ErrUnavailable):
		return apierr.Overload(apierr.NoDatabase, "keys cannot be written at the moment", keysRetry, err)
	}
	return fmt.Errorf("change a key: %w", err)
}

// runHeader names the run that a request is part of.
const runHeader = "X-Acs-Run"

// checkRun refuses a request whose header names a run that cannot be one.
func (x *exchange) checkRun() error {
	for _, name := range x.r.Header[runHeader] {
		if identity.CheckRun(name) != nil || len(x.r.Header[runHeader]) > 1 {
			return badRun("", name)
		}
	}
	return nil
}

func badRun(param, name string) error {
	return apierr.InvalidField(param, fmt.Sprintf("%s: got %q; expected one name of 1 to 64 of the characters A-Z a-z 0-9 . _ -",
		cmp.Or(param, runHeader), apierr.Clip(strings.ToValidUTF8(name, "?"))))
}

// run returns the run that the request is part of: that of its key, which pays for it, or else the header's; empty if there is none.
func (x *exchange) run() string {
	if name := x.caller.identity.Run; name != "" {
		return name
	}
	if name := x.r.Header.Get(runHeader); x.checkRun() == nil {
		return name
	}
	return ""
}
