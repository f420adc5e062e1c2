package gateway

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"basegate/database"
	"basegate/database/postgres"
)

// gauge returns a metric whose value is read at each scrape.
func gauge(name, help string, read func() float64) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, read)
}

// counter is gauge for a value that only rises.
func counter(name, help string, read func() float64) prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, read)
}

// snapshotTimeout limits the query of a scrape.
const snapshotTimeout = time.Second

// oldestSnapshot returns the metric of the age of the oldest snapshot.
func oldestSnapshot(horizon *postgres.Horizon) prometheus.Collector {
	desc := prometheus.NewDesc("basegate_database_oldest_snapshot_age_seconds",
		"Age of the oldest snapshot that is held in PostgreSQL, by anybody. While one is held, the ledger gets slower.", nil, nil)
	return optionalGauge{desc, func() (float64, bool) {
		ctx, cancel := context.WithTimeout(context.Background(), snapshotTimeout)
		defer cancel()
		age, err := horizon.Age(ctx)
		return age.Seconds(), err == nil
	}}
}

// lastBackup returns the metric of the last backup. A database that is copied by other means has none.
func lastBackup(db *database.DB) prometheus.Collector {
	desc := prometheus.NewDesc("basegate_backup_last_success_timestamp_seconds",
		"When basegate backup last succeeded, in seconds since 1970. Absent if it never has.", nil, nil)
	return optionalGauge{desc, func() (float64, bool) {
		at, err := db.LastBackup()
		return float64(at.UnixMilli()) / 1e3, err == nil && !at.IsZero()
	}}
}

// optionalGauge is a metric without a series while its value is not known; an error would fail the whole page.
type optionalGauge struct {
	desc *prometheus.Desc
	read func() (value float64, known bool)
}

func (g optionalGauge) Describe(to chan<- *prometheus.Desc) { to <- g.desc }

func (g optionalGauge) Collect(to chan<- prometheus.Metric) {
	if value, known := g.read(); known {
		to <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, value)
	}
}
