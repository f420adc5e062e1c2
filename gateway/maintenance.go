package gateway

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"basegate/budget/usage"
	"basegate/database/postgres"
)

// share makes the gateway one of several on a PostgreSQL database, beside its ledger.
func (g *Gateway) share() error {
	server := g.db.Postgres()
	if server == nil {
		return nil
	}
	name, err := g.gatewayName()
	if err != nil {
		return err
	}
	g.history.ShareAs(name)
	g.registry.MustRegister(snapshotCollector{postgres.NewHorizon(server)})
	return nil
}

// startRetention deletes old requests if it is configured.
func (g *Gateway) startRetention(ctx context.Context) {
	keep := g.config.Database.KeepRequests
	if keep == 0 {
		return
	}
	retention := usage.NewRetention(g.db, g.log.Named("usage"), keep)
	retention.Start(ctx)
	g.onClose("retention", retention.Close)
}

var oldestSnapshotDesc = prometheus.NewDesc("basegate_database_oldest_snapshot_age_seconds",
	"Age of the oldest snapshot that is held in PostgreSQL, by anybody. While one is held, the ledger gets slower.", nil, nil)

// snapshotTimeout limits the query of a scrape.
const snapshotTimeout = time.Second

// snapshotCollector exports the age of the oldest snapshot.
type snapshotCollector struct{ horizon *postgres.Horizon }

// Describe implements prometheus.Collector.
func (snapshotCollector) Describe(to chan<- *prometheus.Desc) { to <- oldestSnapshotDesc }

// Collect implements prometheus.Collector. An error would fail the whole page, so it leaves the series out.
func (c snapshotCollector) Collect(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), snapshotTimeout)
	defer cancel()
	if age, err := c.horizon.Age(ctx); err == nil {
		to <- prometheus.MustNewConstMetric(oldestSnapshotDesc, prometheus.GaugeValue, age.Seconds())
	}
}
