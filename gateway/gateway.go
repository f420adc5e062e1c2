// Package gateway is the composition root: it builds all components from a configuration, starts them, reloads their
// configuration, and stops them in reverse order. It is the only package that imports them all. It leaves every
// decision about a request to them.
package gateway

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"

	"basegate/batch"
	"basegate/budget"
	"basegate/budget/admission"
	"basegate/budget/cluster"
	"basegate/budget/receipt"
	"basegate/budget/refusals"
	"basegate/budget/usage"
	"basegate/console"
	"basegate/console/history"
	"basegate/console/prompts"
	"basegate/database"
	"basegate/database/postgres"
	"basegate/fleet"
	"basegate/gateway/config"
	"basegate/gateway/mail"
	"basegate/gateway/notify"
	"basegate/gateway/tracing"
	"basegate/identity"
	"basegate/internal/wait"
	"basegate/proxy"
	"basegate/proxy/http1/client"
	"basegate/proxy/replay"
)

// Gateway is one running gateway.
type Gateway struct {
	version   string         // of the program
	config    *config.Config // replaced by Reload, whose caller alone may read it
	booted    *config.Config // with which it has started, for settings that need a restart
	log       *zap.Logger
	logWriter LogWriter
	registry  *prometheus.Registry
	lock      *database.Lock // of the SQLite file; nil on PostgreSQL
	db        *database.DB
	keys      *identity.Keys
	memory    *admission.Memory
	ledger    ledger
	cluster   *cluster.Ledger // the ledger on PostgreSQL; nil on SQLite
	usage     *usage.Store
	refusals  *refusals.Recorder
	fleet     *fleet.Fleet
	history   *history.History
	mailer    *mail.Mailer
	notifier  *notify.Notifier
	proxy     *proxy.Server
	prompts   *prompts.Store
	console   *console.Console
	batches   *batch.Service
	receipts  *receipt.Log // nil unless it is enabled
	replays   *replay.Store
	public    *listener
	admin     *listener
	failed    chan error // receives the error that makes the gateway useless

	configState reloadState
	certificate *certificate // nil without TLS

	startedAt time.Time // when Start began

	abort context.CancelCauseFunc // cancels every request in flight

	cleanups []cleanup // run in reverse order
}

// cleanup stops one component.
type cleanup struct {
	name string
	run  func(context.Context) error
}

// LogWriter is the state of what writes the log. Package logwriter implements it.
type LogWriter interface {
	Failing() bool   // lines are being lost
	Dropped() uint64 // lines lost so far
}

// errStopping is the cancellation cause of requests that did not end within the drain.
var errStopping = errors.New("the gateway is stopping")

// New opens the database, locks the file of a SQLite one, binds the addresses, and builds all components. It starts
// nothing. If it fails, it closes what it has opened. If another gateway has the file, it fails before it changes
// anything. The gateway reports the program's version and the state of the log's writer.
func New(ctx context.Context, cfg *config.Config, version string, log *zap.Logger, writer LogWriter) (_ *Gateway, err error) {
	g := &Gateway{version: version, config: cfg, booted: cfg, log: log, logWriter: writer, registry: prometheus.NewRegistry(), failed: make(chan error, 1)}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.runCleanups(context.WithoutCancel(ctx)))
		}
	}()
	g.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		counter("basegate_log_lines_dropped_total", "Lines of the log that could not be written.", func() float64 { return float64(writer.Dropped()) }))
	g.configState.succeed()
	g.registry.MustRegister(configMetrics(&g.configState)...)
	if err := g.openCertificate(); err != nil {
		return nil, err
	}
	if err := g.openDatabase(ctx); err != nil {
		return nil, err
	}
	if err := g.bind(ctx); err != nil {
		return nil, err
	}

	transport := newTransport(cfg)
	webhooks := &http.Transport{DisableKeepAlives: true} // rarely used, and not for backends
	g.onClose("upstream connections", transport.CloseIdleConnections)
	store := identity.New(g.db, log.Named("keys"), g.identitySettings(cfg))
	g.keys = store.Keys
	g.memory = admission.NewMemory(maxBufferedBytes(cfg))
	g.usage = usage.New(g.db, log.Named("usage"))
	g.history = history.New(g.db, g.usage, g.sampleGauges)
	if err := g.newLedger(); err != nil {
		return nil, err
	}
	g.refusals = refusals.New(g.db, log.Named("refusals"), refusals.Default)
	g.registry.MustRegister(g.refusals.Collectors()...)
	g.newFleet(transport)
	g.mailer = mail.New(mail.Settings{Mail: cfg.Mail})
	g.notifier = g.newNotifier(webhooks, store.Accounts)
	g.registry.MustRegister(g.memory.Collectors()...)
	if err := g.openReceipts(ctx, webhooks); err != nil {
		return nil, err
	}
	g.replays = replay.New(g.db, replaySettings(cfg), log.Named("replay"))
	g.registry.MustRegister(g.replays.Failures())
	tracer, err := g.newTracer(ctx)
	if err != nil {
		return nil, err
	}
	g.proxy = proxy.New(proxySettings(cfg, g.receipts != nil), proxy.Deps{
		Keys: g.keys, Fleet: g.fleet, Memory: g.memory, Ledger: g.ledger,
		Transport: transport, Registry: g.registry, Usage: g.usage, Refusals: g.refusals, Log: log.Named("proxy"),
		Ended: g.history.Record, Receipts: g.receipts, Replays: g.replays, Replayed: budget.NewReplays(g.db), Tracer: tracer,
	})
	if err := g.newBatches(); err != nil {
		return nil, err
	}
	g.prompts = prompts.New(g.db, g.objects(), cfg.Console.SavedPrompts.MaxBytesPerAccount)
	for work, turns := range g.turns() {
		g.registry.MustRegister(turns.Collectors(work)...)
	}
	g.console = g.newConsole(store)
	g.newServers(ctx)
	return g, nil
}

// newTracer returns what makes the spans of requests; nil without a collector.
func (g *Gateway) newTracer(ctx context.Context) (trace.Tracer, error) {
	t := g.config.Telemetry
	if t.OTLP == nil {
		return nil, nil
	}
	settings := tracing.Settings{Collector: t.OTLP, Sample: t.Sample, Version: g.version}
	provider, err := tracing.New(ctx, settings, g.registry, g.log.Named("telemetry"))
	if err != nil {
		return nil, err
	}
	g.onClose("telemetry", provider.Close)
	return provider.Tracer(), nil
}

// turns returns the places for which accounts wait, by the work that needs them.
func (g *Gateway) turns() map[string]*admission.Turns {
	all := map[string]*admission.Turns{"reports": g.db.Reports(), "prompt_saves": g.prompts.Writes(), "large_bodies": g.proxy.LargeBodies()}
	maps.Copy(all, g.batches.Turns())
	return all
}

// newConsole creates the console.
func (g *Gateway) newConsole(store *identity.Store) *console.Console {
	return console.New(consoleSettings(g.config, g.booted), console.Deps{
		Keys: store.Keys, Accounts: store.Accounts, Sessions: store.Sessions, AuditLog: store.AuditLog,
		Ledger: g.ledger, Usage: g.usage, Fleet: g.fleet, History: g.history, DB: g.db, Prompts: g.prompts,
		Feedback: g.notifier.Feedback, TestWebhook: g.notifier.Test, Mail: g.mailer, Log: g.log.Named("console"), Notices: g.notices,
		Completer: g.proxy, Batches: g.batches, Gateways: g.gatewayLister(), Turns: g.turns(),
	})
}

// newBatches creates the batches and opens the storage of their files.
func (g *Gateway) newBatches() error {
	files, err := openFiles(g.config)
	if err != nil {
		return err
	}
	g.onStop("files", func(context.Context) error { return files.Close() })
	g.batches = batch.New(g.db, files, g.proxy, batchSettings(g.config), g.log.Named("batch"))
	g.batches.OnEnd(g.onBatchEnd)
	if g.cluster != nil {
		g.batches.Join(g.cluster.Epoch)
	}
	g.registry.MustRegister(g.batches)
	return nil
}

// newServers creates the servers of both addresses, whose requests g.abort ends.
func (g *Gateway) newServers(ctx context.Context) {
	baseContext, abort := context.WithCancelCause(context.WithoutCancel(ctx))
	g.abort = abort
	c := g.config.Server
	public := newServer(baseContext, c, g.publicHandler(), g.log)
	g.public.server = newPublicServer(baseContext, c.FastPath, g.certificate, public)
	g.admin.server = strictServer{newServer(baseContext, c, g.adminHandler(), g.log)}
}

// bind binds the addresses. It is done before the gateway begins an epoch in a PostgreSQL database, so that a second
// process of one configuration fails and does not end the epoch of the first.
func (g *Gateway) bind(ctx context.Context) (err error) {
	descriptors := maxDescriptors()
	g.public, err = g.listen(ctx, "public", g.config.Server.Listen, descriptors-min(publicReserve, descriptors/2))
	if err == nil {
		g.admin, err = g.listen(ctx, "admin", g.config.Server.AdminListen, descriptors-adminReserve)
	}
	return err
}

// listen returns a listener that accepts connections while fewer than maxFiles file descriptors are open.
func (g *Gateway) listen(ctx context.Context, name, address string, maxFiles int) (*listener, error) {
	socket, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s (%s): %w", address, name, err)
	}
	l := &listener{name: name, socket: newFDLimitListener(socket, maxFiles)}
	g.onStop(name+" socket", func(context.Context) error { return l.close() })
	return l, nil
}

// Start starts the components and listens. If it fails, it stops those that it has started.
func (g *Gateway) Start(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, g.runCleanups(context.WithoutCancel(ctx)))
		}
	}()
	g.startedAt = time.Now().UTC()
	if err := g.checkFiles(ctx, g.booted); err != nil {
		return err
	}
	if err := g.keys.Start(ctx); err != nil {
		return fmt.Errorf("read keys: %w", err)
	}
	g.onClose("keys", g.keys.Close)
	g.start(ctx, "history", g.history) // before those whose events it records
	g.start(ctx, "notifications", g.notifier)
	g.startDiskWatch(ctx)
	if err := g.setClusterConcurrency(ctx, g.booted); err != nil {
		return err
	}
	if err := g.ledger.Start(ctx); err != nil {
		return err
	}
	g.onClose("ledger", g.ledger.Close)
	if g.receipts != nil {
		g.start(ctx, "receipts", g.receipts)
	}
	g.start(ctx, "usage", g.usage)
	if keep := g.config.Database.KeepRequests; keep > 0 {
		g.start(ctx, "retention", usage.NewRetention(g.db, g.log.Named("usage"), keep))
	}
	g.start(ctx, "refusals", g.refusals)
	if err := g.fleet.Start(ctx); err != nil {
		return fmt.Errorf("start fleet: %w", err)
	}
	g.onClose("fleet", g.fleet.Close)
	if keepsFiles(g.booted) {
		if err := g.batches.Start(ctx); err != nil {
			return err
		}
		g.onClose("batches", g.batches.Close)
		g.replays.Start(ctx, g.batches)
		g.onClose("replays", g.replays.Close)
	}
	if g.certificate != nil {
		g.startEvery(ctx, "certificate", certificatePollInterval, func(context.Context) { g.certificate.poll() })
	}
	g.admin.start(func(err error) { g.log.Error("the admin listener has failed", zap.Error(err)) })
	g.onStop("admin listener", g.admin.stop)
	g.public.start(g.fail)
	g.onStop("public listener", g.public.stop)
	if g.lock != nil {
		if err := g.lock.SetAddress(g.Addr().String(), g.AdminAddr().String(), g.certificate != nil); err != nil {
			return err
		}
	}
	g.log.Info("listening", zap.String("public", g.Addr().String()), zap.String("admin", g.AdminAddr().String()))
	return nil
}

// setClusterConcurrency makes limits.concurrency_per_key and concurrency_per_account those of the cluster.
func (g *Gateway) setClusterConcurrency(ctx context.Context, c *config.Config) error {
	if g.cluster == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, concurrencyTimeout)
	defer cancel()
	return g.cluster.SetConcurrency(ctx, c.Limits.ConcurrencyPerKey, c.Limits.ConcurrencyPerAccount)
}

// concurrencyTimeout limits a change of the number of slots, which visits all keys.
const concurrencyTimeout = 30 * time.Second

func (g *Gateway) payer(key string) (budget.Payer, error) {
	var principal identity.Principal
	err := g.keys.LookupInto(key, &principal)
	return g.proxy.Payer(&principal), err
}

// Addr returns the address of the public listener.
func (g *Gateway) Addr() net.Addr { return g.public.addr() }

// AdminAddr returns the address of the admin listener.
func (g *Gateway) AdminAddr() net.Addr { return g.admin.addr() }

// fail reports an error that makes the gateway useless.
func (g *Gateway) fail(err error) {
	select {
	case g.failed <- err:
	default: // an earlier one is enough
	}
}

// Failed returns a channel that receives an error if the public listener fails, or another process has this gateway's
// name.
func (g *Gateway) Failed() <-chan error { return g.failed }

// Reload applies a new configuration: models, backends, limits. It logs changed settings that need a restart. The
// caller has validated the configuration, so a reload cannot fail; a bad certificate leaves the old one in force.
func (g *Gateway) Reload(cfg *config.Config) {
	for _, name := range needsRestart(g.config, cfg) {
		g.log.Warn("this setting changes only with a restart", zap.String("setting", name))
	}
	g.memory.Reload(maxBufferedBytes(cfg))
	g.fleet.Reload(cfg.Models, fleetSettings(cfg))
	g.proxy.Reload(proxySettings(cfg, g.receipts != nil))
	g.keys.Reload(g.identitySettings(cfg))
	g.prompts.Reload(cfg.Console.SavedPrompts.MaxBytesPerAccount)
	g.batches.Reload(batchSettings(cfg))
	g.replays.Reload(replaySettings(cfg))
	g.mailer.Reload(mail.Settings{Mail: cfg.Mail})
	g.notifier.Reload(notifySettings(cfg))
	g.console.Reload(consoleSettings(cfg, g.booted))
	if err := g.setClusterConcurrency(context.Background(), cfg); err != nil {
		g.log.Error("limits.concurrency_per_key and concurrency_per_account are not in force: reload again when the database is back", zap.Error(err))
	}
	g.ledger.RefreshCaps()
	if g.certificate != nil && cfg.Server.TLS.Cert != "" {
		g.certificate.reload(cfg.Server.TLS)
	}
	g.config = cfg
	g.configState.succeed()
	g.log.Info("configuration reloaded", zap.Int("models", len(cfg.Models)))
}

// Stop drains and then stops all components: it refuses new requests, waits for those in flight, and cancels them when
// ctx ends.
func (g *Gateway) Stop(ctx context.Context) error {
	g.batches.Drain()
	g.log.Info("draining", zap.Int64("in_flight", g.proxy.InFlight()))
	if err := g.proxy.Drain(ctx); err != nil {
		g.log.Warn("drain ended early", zap.Int64("in_flight", g.proxy.InFlight()), zap.Error(err))
	}
	g.abort(errStopping)
	cleanupCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if server := g.db.Postgres(); server != nil {
		defer g.disconnectAfter(cleanupCtx, server)()
	}
	return g.runCleanups(cleanupCtx)
}

// disconnectAfter closes the connections to PostgreSQL if it does not respond when ctx has ended, so that no clean-up
// waits for it. The function that it returns prevents that, or waits until it is done.
func (g *Gateway) disconnectAfter(ctx context.Context, server *postgres.DB) (stop func()) {
	done := make(chan struct{})
	prevent := context.AfterFunc(ctx, func() {
		defer close(done)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pingTimeout)
		defer cancel()
		if g.db.Ping(ctx) == nil {
			return // something else took so long, and what is still to be written will be
		}
		g.log.Warn("the database did not respond in time: its connections are closed", zap.Duration("timeout", cleanupTimeout))
		server.Disconnect()
	})
	return func() {
		if !prevent() {
			<-done
		}
	}
}

const (
	// cleanupTimeout limits the cleanups after the drain.
	cleanupTimeout = 10 * time.Second
	// pingTimeout limits the question whether the database responds when they took longer.
	pingTimeout = 2 * time.Second
)

func (g *Gateway) onStop(name string, run func(context.Context) error) {
	g.cleanups = append(g.cleanups, cleanup{name, run})
}

// onClose is onStop for a component whose Close cannot fail.
func (g *Gateway) onClose(name string, closeIt func()) {
	g.onStop(name, func(context.Context) error { closeIt(); return nil })
}

// component is a part of the gateway that works until it is closed.
type component interface {
	Start(ctx context.Context)
	Close()
}

func (g *Gateway) start(ctx context.Context, name string, c component) {
	c.Start(ctx)
	g.onClose(name, c.Close)
}

// startEvery calls do at once and then in every interval, until the gateway stops.
func (g *Gateway) startEvery(ctx context.Context, name string, interval time.Duration, do func(context.Context)) {
	loop := new(wait.Loop)
	loop.Start(ctx, func(ctx context.Context) { wait.Every(ctx, interval, do) })
	g.onClose(name, loop.Close)
}

// runCleanups runs the cleanups in reverse order, all of them even if some fail.
func (g *Gateway) runCleanups(ctx context.Context) error {
	var all error
	for len(g.cleanups) > 0 {
		last := g.cleanups[len(g.cleanups)-1]
		g.cleanups = g.cleanups[:len(g.cleanups)-1]
		if err := last.run(ctx); err != nil {
			all = errors.Join(all, fmt.Errorf("stop %s: %w", last.name, err))
		}
	}
	return all
}

// NewFleet returns a fleet of the configured models without a database, for commands that only query backends.
func NewFleet(cfg *config.Config, log *zap.Logger) *fleet.Fleet {
	return fleet.New(cfg.Models, fleetSettings(cfg), newTransport(cfg), nil, log)
}

// upstreamIdleTimeout limits how long an unused connection to a backend is kept. It is shorter than vLLM's 5 s,
// because a request on a connection that the backend is closing is lost.
const upstreamIdleTimeout = 4 * time.Second

func newTransport(cfg *config.Config) *client.Transport {
	return client.New(client.Settings{ConnectTimeout: cfg.Upstream.ConnectTimeout, IdleTimeout: upstreamIdleTimeout})
}
