package cli

import (
	"context"
	"time"

	"basegate/config"
	"basegate/database/postgres"
	"basegate/gateway"
)

// serverTimeout limits the check of a PostgreSQL server, of which a single query may take statement_timeout.
const serverTimeout = 30 * time.Second

// checkPostgres checks the server of database.url. It does not migrate.
func checkPostgres(ctx context.Context, c *config.Database) []finding {
	const part = "database"
	ctx, cancel := context.WithTimeout(ctx, serverTimeout)
	defer cancel()
	checked, err := postgres.Check(ctx, postgres.Settings{URL: c.URL.Reveal()}, gateway.DatabaseConnections(), c.Migrate)
	var findings []finding
	failed := err != nil
	for _, f := range checked.Findings {
		result := checkWarning
		if f.Failure {
			result, failed = checkFailed, true
		}
		findings = append(findings, finding{part, result, f.Text})
	}
	if err != nil {
		return append(findings, finding{part, checkFailed, c.Location() + ": " + err.Error()})
	}
	if !failed {
		findings = append([]finding{{part, checkOK, checked.Server}}, findings...)
	}
	return findings
}
