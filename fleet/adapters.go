package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"basegate/database"
	"basegate/gateway/config"
)

// Adapter is a LoRA adapter of a model, which clients use as a model of its own. Its files do not change.
type Adapter struct {
	ID         string
	Model      string // id of the base model
	Path       string // a folder or a repository, as the backends see it
	Version    int64  // another one each time that it is added: microseconds since 1970
	Configured bool   // it is in the configuration
	Account    string // of the key that has added it; empty: the operator
	Modified   int64  // latest change of its files when it was added, in microseconds since 1970; 0: the gateway cannot see them
	CreatedAt  time.Time
}

// Name returns the name of the adapter at vLLM. It has the version, since blocks of vLLM's prefix cache are known by the name,
// and outlive the weights that they were computed with.
func (a *Adapter) Name() string { return a.ID + "@" + strconv.FormatInt(a.Version, 10) }

// parseName returns the adapter and the version of a Name; false for another name. An id may have an @, too.
func parseName(name string) (id string, version int64, ok bool) {
	at := strings.LastIndexByte(name, '@')
	if at < 0 {
		return "", 0, false
	}
	version, err := strconv.ParseInt(name[at+1:], 10, 64)
	return name[:at], version, err == nil
}

// CheckAdapterID returns an error for what is no id of an adapter. Clients such as inspect_ai name an adapter after its folder or its
// repository, with a revision behind an @.
func CheckAdapterID(id string) error { return config.CheckAlias(id) }

// Changed reports whether the files have changed since the adapter was added, as far as the gateway can see them.
func (a *Adapter) Changed() bool {
	latest := lastChange(a.Path)
	return a.Modified != 0 && latest != 0 && latest != a.Modified
}

// lastChange returns the latest change of a folder and of what is directly in it; 0 if it cannot be seen.
func lastChange(path string) (latest int64) {
	folder, err := os.Stat(path)
	if err != nil {
		return 0
	}
	latest = folder.ModTime().UnixMicro()
	entries, _ := os.ReadDir(path) // none of a file
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			latest = max(latest, info.ModTime().UnixMicro())
		}
	}
	return latest
}

// Errors of AddAdapter and RemoveAdapter.
var (
	ErrAdapterExists     = errors.New("a model or another adapter has this name")
	ErrTooManyAdapters   = errors.New("the model has as many adapters as it may have (max_adapters)")
	ErrNoAdapter         = errors.New("no such adapter")
	ErrAdapterConfigured = errors.New("the adapter is in the configuration, and is changed and removed there")
	ErrAdapterOfAnother  = errors.New("another account has added the adapter")
)

// AddAdapter adds an adapter with the ID, the Model, the Path and the Account of a, and returns it. One of the same name and
// path, or that the same account has added, gets a new version.
func AddAdapter(ctx context.Context, db *database.DB, models []config.Model, a Adapter) (Adapter, error) {
	base := slices.IndexFunc(models, func(m config.Model) bool { return m.ID == a.Model })
	if base < 0 {
		return Adapter{}, fmt.Errorf("%w: %s", errUnknownModel, a.Model)
	}
	err := db.WriteExclusive(ctx, func(tx database.Tx) error {
		all, err := adaptersInForce(ctx, tx, models)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(all, func(other Adapter) bool { return other.ID == a.ID })
		if isTaken(models, a.ID) || i >= 0 && all[i].Model != a.Model {
			return fmt.Errorf("%w: %s", ErrAdapterExists, a.ID)
		}
		now := time.Now().UTC().Truncate(time.Microsecond)
		a.Version, a.Modified, a.CreatedAt = now.UnixMicro(), lastChange(a.Path), now
		if i < 0 {
			siblings := 0
			for _, other := range all {
				if other.Model == a.Model {
					siblings++
				}
			}
			if siblings >= models[base].MaxAdapters {
				return fmt.Errorf("%w: %s has %d", ErrTooManyAdapters, a.Model, siblings)
			}
			return upsertAdapter(ctx, tx, &a)
		}
		before := all[i]
		if before.Path != a.Path && (before.Configured || a.Account != "" && before.Account != a.Account) {
			return fmt.Errorf("%w: %s", ErrAdapterExists, a.ID)
		}
		a.Version, a.CreatedAt = max(a.Version, before.Version+1), before.CreatedAt
		a.Configured, a.Account = before.Configured, before.Account
		return upsertAdapter(ctx, tx, &a)
	})
	if err != nil {
		return Adapter{}, fmt.Errorf("add adapter: %w", err)
	}
	return a, nil
}

// RemoveAdapter removes an adapter that was added, and returns it. An account removes only its own, the operator, whose account
// is empty, any.
func RemoveAdapter(ctx context.Context, db *database.DB, models []config.Model, id, account string) (a Adapter, err error) {
	err = db.WriteExclusive(ctx, func(tx database.Tx) error {
		all, err := adaptersInForce(ctx, tx, models)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(all, func(a Adapter) bool { return a.ID == id })
		if i < 0 {
			return fmt.Errorf("%w: %s", ErrNoAdapter, id)
		}
		switch a = all[i]; {
		case a.Configured:
			return fmt.Errorf("%w: %s", ErrAdapterConfigured, id)
		case account != "" && a.Account != account:
			return fmt.Errorf("%w: %s", ErrAdapterOfAnother, id)
		}
		return database.Exec(ctx, tx, `DELETE FROM adapters WHERE id = $1`, id)
	})
	if err != nil {
		return Adapter{}, fmt.Errorf("remove adapter: %w", err)
	}
	return a, nil
}

// Adapters returns the adapters of the models, ordered by their ids.
func Adapters(ctx context.Context, db *database.DB, models []config.Model) ([]Adapter, error) {
	return adaptersInForce(ctx, db.Read(), models)
}

func adaptersInForce(ctx context.Context, q database.Reader, models []config.Model) ([]Adapter, error) {
	all, err := selectAdapters(ctx, q)
	return slices.DeleteFunc(withConfigured(all, models), func(a Adapter) bool { return !a.inForce(models) }), err
}

func isTaken(models []config.Model, name string) bool {
	return slices.ContainsFunc(models, func(m config.Model) bool {
		return m.ID == name || slices.Contains(m.Aliases, name) || m.IsServedAs(name)
	})
}

// inForce reports whether the adapter's model is configured, and the adapter too if it was recorded for that.
func (a *Adapter) inForce(models []config.Model) bool {
	return !isTaken(models, a.ID) && slices.ContainsFunc(models, func(m config.Model) bool {
		return m.ID == a.Model && (!a.Configured || slices.Contains(m.Adapters, config.Adapter{ID: a.ID, Path: a.Path}))
	})
}

func withConfigured(all []Adapter, models []config.Model) []Adapter {
	for i := range models {
		for _, c := range models[i].Adapters {
			all = mergeConfigured(all, &models[i], c)
		}
	}
	slices.SortFunc(all, func(a, b Adapter) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// mergeConfigured returns all adapters with one of the configuration. It has a new version if it was not among them with this
// model and path.
func mergeConfigured(all []Adapter, m *config.Model, c config.Adapter) []Adapter {
	now := time.Now().UTC().Truncate(time.Microsecond) // as it is read
	next := Adapter{ID: c.ID, Model: m.ID, Path: c.Path, Version: now.UnixMicro(), Configured: true, CreatedAt: now}
	i := slices.IndexFunc(all, func(a Adapter) bool { return a.ID == c.ID })
	if i < 0 {
		next.Modified = lastChange(c.Path)
		return append(all, next)
	}
	switch before := &all[i]; {
	case before.Model != m.ID || before.Path != c.Path:
		next.Version, next.Modified = max(next.Version, before.Version+1), lastChange(c.Path)
		*before = next
	case !before.Configured:
		before.Configured, before.Account = true, ""
	}
	return all
}

// syncAdapters reads the adapters, those that other processes have added included, and records those of the configuration. f.mu
// is held.
func (f *Fleet) syncAdapters(ctx context.Context, models []config.Model) error {
	recorded, err := selectAdapters(ctx, f.db.Read())
	all := withConfigured(slices.Clone(recorded), models)
	if err == nil && !slices.Equal(all, recorded) {
		err = f.db.WriteExclusive(ctx, func(tx database.Tx) (err error) {
			if recorded, err = selectAdapters(ctx, tx); err != nil {
				return err
			}
			all = withConfigured(slices.Clone(recorded), models)
			for i := range all {
				if !slices.Contains(recorded, all[i]) {
					err = errors.Join(err, upsertAdapter(ctx, tx, &all[i]))
				}
			}
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("read adapters: %w", err)
	}
	f.adapters = all
	return nil
}

// pollAdapters puts the adapters into force that the database has now.
func (f *Fleet) pollAdapters(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	before, current := f.adapters, f.catalogue.Load()
	if err := f.syncAdapters(ctx, current.configs()); err != nil {
		return err
	}
	if slices.Equal(before, f.adapters) {
		return nil
	}
	f.catalogue.Store(newCatalogue(current.base, f.adapters))
	for _, b := range current.backends() {
		b.arrangeAdapters() // those that are outdated are unloaded
	}
	return nil
}

func (c *catalogue) configs() []config.Model {
	configs := make([]config.Model, len(c.base))
	for i, m := range c.base {
		configs[i] = m.config
	}
	return configs
}

// AddAdapter is the function AddAdapter, and puts the adapter into force at this gateway.
func (f *Fleet) AddAdapter(ctx context.Context, a Adapter) (Adapter, error) {
	added, err := AddAdapter(ctx, f.db, f.catalogue.Load().configs(), a)
	if err == nil {
		f.applyAdapters(ctx)
	}
	return added, err
}

// RemoveAdapter is the function RemoveAdapter, and takes the adapter out of force at this gateway. Requests that run go on.
func (f *Fleet) RemoveAdapter(ctx context.Context, id, account string) (Adapter, error) {
	removed, err := RemoveAdapter(ctx, f.db, f.catalogue.Load().configs(), id, account)
	if err == nil {
		f.applyAdapters(ctx)
	}
	return removed, err
}

// applyAdapters reads the adapters after a change. If that fails, the next poll repeats it.
func (f *Fleet) applyAdapters(ctx context.Context) {
	if err := f.pollAdapters(ctx); err != nil {
		f.log.Warn("adapters not read", zap.Error(err))
	}
}

func (c *catalogue) addAdapters(parent *Model, adapters []Adapter, configs []config.Model) {
	for i := range adapters {
		a := &adapters[i]
		if a.Model != parent.ID() || !a.inForce(configs) {
			continue
		}
		m := &Model{config: parent.config, backends: parent.backends, fleet: parent.fleet, parent: parent, adapter: a}
		m.config.ID, m.config.Aliases = a.ID, nil
		c.models = append(c.models, m)
		c.byID[a.ID] = m
	}
}

// Adapter returns the adapter that the model is; nil if it is a base model. It must not be modified.
func (m *Model) Adapter() *Adapter { return m.adapter }

// Base returns the model whose adapter it is, or the model itself.
func (m *Model) Base() *Model { return cmp.Or(m.parent, m) }

// Served returns the name under which the model's requests go to vLLM.
func (m *Model) Served() string {
	if m.adapter != nil {
		return m.adapter.Name()
	}
	return m.Checkpoint()
}

// Adapters returns the models that are adapters of the model, ordered by their ids.
func (m *Model) Adapters() []*Model {
	return slices.DeleteFunc(slices.Clone(m.fleet.Models()), func(other *Model) bool { return other.adapter == nil || other.Base().ID() != m.ID() })
}

// AdaptersDir returns the folder from which keys may add adapters; empty: none.
func (m *Model) AdaptersDir() string { return m.config.AdaptersDir }

// TakesAdapters reports whether the model has adapters in the configuration, or keys may add some.
func (m *Model) TakesAdapters() bool { return m.AdaptersDir() != "" || len(m.config.Adapters) > 0 }

// MaxAdapters returns how many adapters the model may have.
func (m *Model) MaxAdapters() int { return m.config.MaxAdapters }

// Current returns the model of an adapter's latest version. One that has been removed is current as it is.
func (m *Model) Current() *Model {
	if m.adapter == nil {
		return m
	}
	if latest, ok := m.fleet.Model(m.ID()); ok && latest.adapter != nil && latest.adapter.Model == m.adapter.Model {
		return latest
	}
	return m
}

// isOutdated reports whether an adapter that has this name at vLLM has been added again, or is known to have been removed.
func (f *Fleet) isOutdated(name string, used bool) bool {
	id, version, ok := parseName(name)
	if !ok {
		return false
	}
	m, found := f.Model(id)
	if !found || m.adapter == nil {
		return used // else another gateway may just have added it
	}
	return version < m.adapter.Version
}

func selectAdapters(ctx context.Context, q database.Reader) ([]Adapter, error) {
	const text = `SELECT id, model, path, version, configured, account_id, modified_at, created_at FROM adapters ORDER BY id`
	return database.List(ctx, q, func(row database.Scanner) (a Adapter, err error) {
		var created int64
		err = row.Scan(&a.ID, &a.Model, &a.Path, &a.Version, &a.Configured, &a.Account, &a.Modified, &created)
		a.CreatedAt = time.UnixMicro(created).UTC()
		return a, err
	}, text)
}

func upsertAdapter(ctx context.Context, tx database.Tx, a *Adapter) error {
	const text = `INSERT INTO adapters (id, model, path, version, configured, account_id, modified_at, created_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
		ON CONFLICT (id) DO UPDATE SET model = excluded.model, path = excluded.path, version = excluded.version,
		configured = excluded.configured, account_id = excluded.account_id, modified_at = excluded.modified_at,
		created_at = excluded.created_at`
	return database.Exec(ctx, tx, text, a.ID, a.Model, a.Path, a.Version, a.Configured, a.Account, a.Modified, a.CreatedAt.UnixMicro())
}
