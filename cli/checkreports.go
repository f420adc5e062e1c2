package cli

import (
	"context"
	"slices"
	"strings"

	"go.uber.org/zap"

	"basegate/budget/usage"
	"basegate/database"
	"basegate/gateway/config"
)

// checkReports names the flags of vLLM that the configured backends lack by what they have reported of their latest requests.
func checkReports(ctx context.Context, cfg *config.Config, db *database.DB) (findings []finding) {
	all, err := usage.New(db, zap.NewNop()).Reporting(ctx)
	if err != nil {
		return []finding{{"database", checkFailed, err.Error()}}
	}
	for i := range cfg.Models {
		m := &cfg.Models[i]
		for j := range m.Backends {
			name := m.Backends[j].Name
			at := slices.IndexFunc(all, func(r usage.Reporting) bool { return r.Model == m.ID && r.Backend == name })
			if at >= 0 {
				findings = append(findings, missingReports(m.ID+"/"+name, all[at])...)
			}
		}
	}
	return findings
}

// missingReports says what a backend does not report, and with which flags vLLM does.
func missingReports(part string, r usage.Reporting) []finding {
	var lacks, flags []string
	if !r.CachedTokens {
		lacks, flags = append(lacks, "cached tokens"), append(flags, "--enable-prompt-tokens-details")
	}
	if !r.Metrics {
		lacks, flags = append(lacks, "times of the engine"), append(flags, "--enable-per-request-metrics (since 0.25)")
	}
	if len(lacks) == 0 {
		return nil
	}
	return []finding{{part, checkOK, "reports no " + strings.Join(lacks, " and no ") + ", which vLLM does with " + strings.Join(flags, " and ")}}
}
