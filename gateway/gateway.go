// Package gateway is the composition: it builds every part from a configuration, starts them, takes over a new
// configuration, and takes them down again in the right order. It is the only place that knows them all, and it
// decides nothing about requests.
package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.uber.org/zap"

	"basegate/admission"
	"basegate/budget"
	"basegate/config"
	"basegate/console"
	"basegate/database"
	apierr "basegate/errors"
	"basegate/fleet"
	"basegate/http1/client"
	"basegate/identity"
	"basegate/proxy"
)

// Gateway is one running gateway.
type Gateway struct {
	config   *config.Config
	log      *zap.Logger
	registry *prometheus.Registry
	db       *database.DB
	keys     *identity.Keys
	queue    *admission.Queue
	ledger   *budget.Ledger
	fleet    *fleet.Fleet
	proxy    *proxy.Server
	console  *console.Console
	public   *listener
	admin    *listener
	abort    context.CancelCauseFunc // ends every request under way

	undo []step // what has been done, to be undone last first
}

// step is one thing to take down.
type step struct {
	name string
	run  func(context.Context) error
}

// errStopping is the cause of requests that did not end within the drain.
var errStopping = errors.New("the gateway is stopping")

// New opens the database and builds every part. Nothing listens yet. When it fails half way, what was opened is
// closed again.
func New(ctx context.Context, cfg *config.Config, log *zap.Logger) (_ *Gateway, err error) {
	g := &Gateway{config: cfg, log: log, registry: prometheus.NewRegistry()}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.takeDown(context.WithoutCancel(ctx)))
		}
	}()
	g.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	g.db, err = database.Open(ctx, database.Settings{Path: cfg.Database.Path}, log.Named("database"))
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	g.onStop("database", func(context.Context) error { return g.db.Close() })

	transport := newTransport(cfg)
	outside := &http.Transport{DisableKeepAlives: true} // to others than backends, now and then
	g.onStop("upstream connections", func(context.Context) error { transport.CloseIdleConnections(); return nil })
	store := identity.New(g.db, log.Named("keys"), identity.Settings{Changed: g.obey})
	g.keys = store.Keys
	g.queue = admission.New(queueSettings(cfg))
	g.ledger = budget.New(g.db, log.Named("budget"), budget.Settings{Payer: g.payer})
	g.fleet = fleet.New(cfg.Models, fleetSettings(cfg), transport, g.db, log.Named("fleet"))
	g.registry.MustRegister(admission.NewCollector(g.queue), budget.NewCollector(g.ledger), fleet.NewCollector(g.fleet))
	g.proxy = proxy.New(proxySettings(cfg), proxy.Deps{
		Keys: g.keys, Fleet: g.fleet, Queue: g.queue, Ledger: g.ledger,
		Transport: transport, Registry: g.registry, Log: log.Named("proxy"),
	})
	g.console = console.New(consoleSettings(cfg), console.Deps{
		Keys: store.Keys, Accounts: store.Accounts, Sessions: store.Sessions, AuditLog: store.AuditLog,
		Ledger: g.ledger, Fleet: g.fleet, DB: g.db, Transport: outside, Log: log.Named("console"), Warm: g.warm,
		Completer: g.proxy,
	})

	requests, abort := context.WithCancelCause(context.WithoutCancel(ctx))
	g.abort = abort
	public := newServer(requests, cfg.Server.ReadHeaderTimeout, g.publicHandler(), log)
	g.public = newListener("public", cfg.Server.Listen, newPublicServer(requests, cfg.Server.TLS, public))
	g.admin = newListener("admin", cfg.Server.AdminListen, newServer(requests, cfg.Server.ReadHeaderTimeout, g.adminHandler(), log))
	return g, nil
}

// Start begins the background work and listens.
func (g *Gateway) Start(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, g.takeDown(context.WithoutCancel(ctx)))
		}
	}()
	if err := g.keys.Start(ctx); err != nil {
		return fmt.Errorf("read keys: %w", err)
	}
	g.onStop("keys", func(context.Context) error { g.keys.Close(); return nil })
	if err := g.ledger.Start(ctx); err != nil {
		return err
	}
	g.onStop("ledger", func(context.Context) error { g.ledger.Close(); return nil })
	if err := g.fleet.Start(ctx); err != nil {
		return fmt.Errorf("start fleet: %w", err)
	}
	g.onStop("fleet", func(context.Context) error { g.fleet.Close(); return nil })
	for _, l := range []*listener{g.admin, g.public} {
		if err := l.start(ctx); err != nil {
			return err
		}
		g.onStop(l.name+" listener", l.stop)
	}
	g.log.Info("listening", zap.String("public", g.Addr().String()), zap.String("admin", g.AdminAddr().String()))
	return nil
}

// warm starts a model for somebody at the console.
func (g *Gateway) warm(_ context.Context, id string) error {
	m, ok := g.fleet.Model(id)
	if !ok {
		return apierr.UnknownModel(id, nil, "")
	}
	if err := m.Warm("somebody at the console asks for it"); err != nil {
		return apierr.Unreachable(fmt.Sprintf("%s: %v", id, err), 0, err)
	}
	return nil
}

// obey holds those who wait to what has changed: keys, caps, how many may run at a time.
func (g *Gateway) obey() {
	g.queue.SetLimits(g.concurrency)
	g.ledger.RefreshCaps()
}

func (g *Gateway) payer(key string) (budget.Payer, error) {
	identity, err := g.keys.Lookup(key)
	return proxy.Payer(&identity), err //nolint:wrapcheck // by the ledger
}

func (g *Gateway) concurrency(key string) int {
	identity, _ := g.keys.Lookup(key) // a key that may not be used is refused at its turn
	return g.proxy.Concurrency(&identity)
}

// Addr is the address of the API.
func (g *Gateway) Addr() net.Addr { return g.public.addr() }

// AdminAddr is the address of health, metrics and profiles.
func (g *Gateway) AdminAddr() net.Addr { return g.admin.addr() }

// Failed tells of a listener that ended by itself.
func (g *Gateway) Failed() <-chan error { return g.public.failed }

// Reload takes over a new configuration: models, backends, limits. What only a restart can change is logged. The
// caller has checked the configuration, so a reload cannot fail half way.
func (g *Gateway) Reload(cfg *config.Config) {
	for _, name := range needsRestart(g.config, cfg) {
		g.log.Warn("this setting changes only with a restart", zap.String("setting", name))
	}
	g.queue.Reload(queueSettings(cfg))
	g.fleet.Reload(cfg.Models, fleetSettings(cfg))
	g.proxy.Reload(proxySettings(cfg))
	g.console.Reload(consoleSettings(cfg))
	g.obey()
	g.config = cfg
	g.log.Info("configuration reloaded", zap.Int("models", len(cfg.Models)))
}

// Stop drains: new requests are refused, those under way end, or are cut off when ctx ends. Then everything is taken
// down.
func (g *Gateway) Stop(ctx context.Context) error {
	g.log.Info("draining", zap.Int64("in_flight", g.proxy.InFlight()))
	if err := g.proxy.Drain(ctx); err != nil {
		g.log.Warn("drain ended early", zap.Int64("in_flight", g.proxy.InFlight()), zap.Error(err))
	}
	g.abort(errStopping)
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardownTimeout)
	defer cancel()
	return g.takeDown(end)
}

// teardownTimeout bounds what comes after the drain.
const teardownTimeout = 10 * time.Second

func (g *Gateway) onStop(name string, run func(context.Context) error) {
	g.undo = append(g.undo, step{name, run})
}

// takeDown undoes the steps, last first, each in any case.
func (g *Gateway) takeDown(ctx context.Context) error {
	var all error
	for len(g.undo) > 0 {
		last := g.undo[len(g.undo)-1]
		g.undo = g.undo[:len(g.undo)-1]
		if err := last.run(ctx); err != nil {
			all = errors.Join(all, fmt.Errorf("stop %s: %w", last.name, err))
		}
	}
	return all
}

// NewFleet makes a fleet of the configured models on connections of its own, for commands that only look.
func NewFleet(cfg *config.Config, log *zap.Logger) *fleet.Fleet {
	return fleet.New(cfg.Models, fleetSettings(cfg), newTransport(cfg), nil, log)
}

// idleUpstream is how long an unused connection to a backend is kept. It is closed before vLLM closes it from its side,
// which it does after 5 s: a request on a connection that is being closed is lost.
const idleUpstream = 4 * time.Second

func newTransport(cfg *config.Config) *client.Transport {
	return client.New(client.Settings{ConnectTimeout: cfg.Upstream.ConnectTimeout, IdleTimeout: idleUpstream})
}
