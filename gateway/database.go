package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"basegate/budget"
	"basegate/budget/cluster"
	"basegate/console"
	"basegate/database"
	"basegate/database/consistency"
	"basegate/database/postgres"
	"basegate/fleet"
	"basegate/gateway/config"
	"basegate/internal/wait"
	"basegate/proxy"
)

// DatabaseSettings returns the settings of the configured database.
func DatabaseSettings(c *config.Database) database.Settings {
	if c.Postgres() {
		return database.Settings{URL: c.URL.Reveal(), SchemaCurrent: !c.Migrate}
	}
	return database.Settings{Path: c.Path, Flush: c.Flush}
}

// ledger is the token ledger: a budget.Ledger on SQLite, a cluster.Ledger on PostgreSQL.
type ledger interface {
	proxy.Ledger
	console.Ledger
	Start(ctx context.Context) error
	Close()
	RefreshCaps()
	Load() budget.Load
}

// openDatabase opens the configured database. One SQLite file serves one gateway, which holds its lock.
func (g *Gateway) openDatabase(ctx context.Context) (err error) {
	c := &g.config.Database
	if !c.Postgres() {
		if g.lock, err = database.Acquire(ctx, c.Path, "serves as a gateway"); err != nil {
			return fmt.Errorf("lock database: %w", err)
		}
		g.onStop("database lock", func(context.Context) error { return g.lock.Release() })
		if err := database.SweepCopies(filepath.Dir(c.Path)); err != nil {
			g.log.Warn("copies that interrupted backups have left take space", zap.Error(err))
		}
	}
	err = waitForDatabase(ctx, g.log, func() (err error) {
		g.db, err = database.Open(ctx, DatabaseSettings(c), g.log.Named("database"))
		return err
	})
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	g.onStop("database", func(context.Context) error { return g.db.Close() })
	if server := g.db.Postgres(); server != nil {
		warnings, err := server.Durability(ctx)
		if err != nil {
			return err
		}
		for _, w := range warnings {
			g.log.Warn("the database may lose commits: " + w)
		}
		foreign, err := consistency.HasForeignTransactions(ctx, server)
		if err != nil {
			return err
		}
		if foreign {
			g.log.Error("the database was restored from another server, and usage pages lack what follows: stop the gateways and run basegate database check --repair")
		}
	}
	return nil
}

const (
	// databaseWait is how long the start waits for a PostgreSQL server that does not answer or is in recovery, as after a
	// boot of the machine that both run on.
	databaseWait  = time.Minute
	databasePause = time.Second      // between two attempts
	waitLogged    = 10 * time.Second // between two lines of the log
)

// waitForDatabase calls open until it succeeds, fails for a reason that does not pass by itself, or databaseWait is over.
func waitForDatabase(ctx context.Context, log *zap.Logger, open func() error) error {
	began := time.Now()
	next := began
	for {
		err := open()
		waited := time.Since(began).Round(time.Second)
		switch {
		case err == nil:
			if waited > 0 {
				log.Info("the database answers", zap.Duration("waited", waited))
			}
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !postgres.MayPass(err):
			return err
		case waited >= databaseWait:
			return fmt.Errorf("waited for it for %v: %w", waited, err)
		}
		if now := time.Now(); !now.Before(next) {
			log.Warn("the database cannot be used yet; the start waits for it", zap.Duration("waited", waited), zap.Duration("limit", databaseWait), zap.Error(err))
			next = now.Add(waitLogged)
		}
		if !wait.For(ctx, databasePause) {
			return context.Cause(ctx)
		}
	}
}

// checkDatabase returns an error if the database does not respond, or the ledger on it cannot reserve.
func (g *Gateway) checkDatabase(ctx context.Context) error {
	if err := g.db.Ping(ctx); err != nil {
		return err
	}
	if g.cluster == nil {
		return nil
	}
	return g.cluster.Ready()
}

// newLedger creates the ledger of the database's engine, and makes the gateway one of those on a PostgreSQL database.
func (g *Gateway) newLedger() error {
	log := g.log.Named("budget")
	server := g.db.Postgres()
	if server == nil {
		l := budget.New(g.db, log, budget.Settings{Payer: g.payer, Alarm: g.onBudgetAlarm})
		g.ledger = l
		g.registry.MustRegister(append(l.Collectors(), lastBackup(g.db))...)
		return nil
	}
	name, err := g.gatewayName()
	if err != nil {
		return err
	}
	l := cluster.New(server, log, cluster.Settings{
		Name: name, Version: g.version, Payer: g.payer, Alarm: g.onBudgetAlarm,
		NameTaken: func() { g.fail(fmt.Errorf("%w %s: give each gateway its own gateway.name", errNameTaken, name)) },
	})
	g.ledger, g.cluster = l, l
	g.history.ShareAs(name)
	g.registry.MustRegister(append(l.Collectors(), oldestSnapshot(postgres.NewHorizon(server)))...)
	return nil
}

var errNameTaken = errors.New("another process has the name")

// gatewayName returns the name of this gateway among those on one database. The address is bound, so no other gateway of
// this host has it.
func (g *Gateway) gatewayName() (string, error) {
	if name := g.config.Gateway.Name; name != "" {
		return name, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("the gateway has no name: set gateway.name: %w", err)
	}
	return host + "/" + g.Addr().String(), nil
}

// DatabaseConnections returns how many connections a gateway opens to PostgreSQL at most.
func DatabaseConnections() int { return database.PostgresConnections() + cluster.Connections }

// newFleet creates the fleet. On PostgreSQL it shares the backends with those of other gateways.
func (g *Gateway) newFleet(transport http.RoundTripper) {
	g.fleet = fleet.New(g.config.Models, fleetSettings(g.config), transport, g.db, g.log.Named("fleet"))
	g.fleet.OnEvent(g.onFleetEvent)
	if g.cluster != nil {
		g.fleet.JoinCluster(g.cluster.Epoch)
	}
	g.registry.MustRegister(g.fleet)
}

// gatewayLister returns what lists the gateways on the database; nil on SQLite, where there is only one.
func (g *Gateway) gatewayLister() func(context.Context) ([]cluster.Gateway, error) {
	if g.cluster == nil {
		return nil
	}
	return func(ctx context.Context) ([]cluster.Gateway, error) { return cluster.Gateways(ctx, g.db.Read()) }
}
