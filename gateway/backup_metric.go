package gateway

import (
	"github.com/prometheus/client_golang/prometheus"

	"basegate/database"
)

var lastBackupDesc = prometheus.NewDesc("basegate_backup_last_success_timestamp_seconds",
	"When basegate backup last succeeded, in seconds since 1970. Absent if it never has.", nil, nil)

// backupCollector exports the time of the last backup. There is no series before the first, because a database that is
// copied by other means has none.
type backupCollector struct{ db *database.DB }

// Describe implements prometheus.Collector.
func (backupCollector) Describe(to chan<- *prometheus.Desc) { to <- lastBackupDesc }

// Collect implements prometheus.Collector.
func (c backupCollector) Collect(to chan<- prometheus.Metric) {
	// An error would fail the whole page, so it leaves the series out like a backup that was never made.
	if at, err := c.db.LastBackup(); err == nil && !at.IsZero() {
		to <- prometheus.MustNewConstMetric(lastBackupDesc, prometheus.GaugeValue, float64(at.UnixMilli())/1e3)
	}
}
