package cli

import (
	"context"
	"time"

	"basegate/database"
	"basegate/gateway"
	"basegate/gateway/config"
)

// serverTimeout limits the check of a PostgreSQL server, of which a single query may take statement_timeout.
const serverTimeout = 30 * time.Second

// checkPostgres checks the server of database.url, and reports whether the schema in it is current.
func checkPostgres(ctx context.Context, c *config.Database, db *database.DB) (findings []finding, current bool) {
	const part = "database"
	ctx, cancel := context.WithTimeout(ctx, serverTimeout)
	defer cancel()
	checked, err := db.Postgres().Check(ctx, gateway.DatabaseConnections(), c.Migrate)
	if err != nil {
		return []finding{{part, checkFailed, c.Location() + ": " + err.Error()}}, false
	}
	failed := false
	for _, f := range checked.Findings {
		result := checkWarning
		if f.Failure {
			result, failed = checkFailed, true
		}
		findings = append(findings, finding{part, result, f.Text})
	}
	if !failed {
		findings = append([]finding{{part, checkOK, checked.Server}}, findings...)
	}
	return findings, checked.Current
}
