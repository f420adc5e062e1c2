package gateway

import (
	"context"
	"errors"
	"fmt"
	"os"

	"basegate/admission"
	"basegate/budget"
	"basegate/budget/cluster"
	"basegate/config"
	"basegate/console"
	"basegate/database"
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
	Waiting() int
}

// openDatabase opens the configured database. One SQLite file serves one gateway, which holds its lock.
func (g *Gateway) openDatabase(ctx context.Context) (err error) {
	c := &g.config.Database
	if !c.Postgres() {
		if g.lock, err = database.Acquire(ctx, c.Path, "serves as a gateway"); err != nil {
			return fmt.Errorf("lock database: %w", err)
		}
		g.onStop("database lock", func(context.Context) error { return g.lock.Release() })
	}
	if g.db, err = database.Open(ctx, DatabaseSettings(c), g.log.Named("database")); err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	g.onStop("database", func(context.Context) error { return g.db.Close() })
	return nil
}

// newLedger creates the ledger of the database's engine. Nothing is reserved before startLedger.
func (g *Gateway) newLedger() error {
	log := g.log.Named("budget")
	server := g.db.Postgres()
	if server == nil {
		l := budget.New(g.db, log, budget.Settings{Payer: g.payer, Alarm: g.onBudgetAlarm})
		g.ledger = l
		g.registry.MustRegister(budget.NewCollector(l), backupCollector{g.db})
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
	g.ledger, g.slots = l, clusterSlots{l}
	g.registry.MustRegister(cluster.NewCollector(l))
	return nil
}

var errNameTaken = errors.New("another process has the name")

// clusterSlots are the slots that the ledger of several gateways gives out.
type clusterSlots struct{ ledger *cluster.Ledger }

// KeyStats implements proxy.ClusterSlots.
func (s clusterSlots) KeyStats(key string) admission.KeyStats {
	c, _ := s.ledger.Counters(key)
	return admission.KeyStats{Running: int(c.Running), Waiting: int(c.Waiting)}
}

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
