package gateway

import (
	"context"
	"time"

	"basegate/budget"
	"basegate/proxy"
)

// keyUsage reads the ledger for GET /v1/usage.
type keyUsage struct{ ledger *budget.Ledger }

// KeyUsage implements proxy.UsageReader.
func (u keyUsage) KeyUsage(ctx context.Context, q proxy.UsageQuery) ([]proxy.UsageRow, error) {
	filter := budget.Filter{Since: q.Since, Until: q.Until, Account: q.Account, Key: q.Key, Limit: q.Limit}
	rows, err := u.ledger.Usage(ctx, filter, budget.Grouping(q.By))
	if err != nil {
		return nil, err //nolint:wrapcheck // by the proxy
	}
	usage := make([]proxy.UsageRow, len(rows))
	for i, r := range rows {
		usage[i] = proxy.UsageRow{
			Model: r.Model, User: r.User, Workload: r.Workload,
			Requests: r.Requests, PromptTokens: r.PromptTokens, CompletionTokens: r.CompletionTokens,
		}
		if q.By == string(budget.ByDay) {
			usage[i].Day = r.Time.UTC().Format(time.DateOnly)
		}
	}
	return usage, nil
}
