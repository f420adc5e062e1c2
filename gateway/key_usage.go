package gateway

import (
	"context"
	"time"

	"basegate/budget/usage"
	"basegate/proxy"
)

// keyUsage reads the ledger for GET /v1/usage.
type keyUsage struct{ store *usage.Store }

// KeyUsage implements proxy.UsageReader.
func (u keyUsage) KeyUsage(ctx context.Context, q proxy.UsageQuery) ([]proxy.UsageRow, error) {
	filter := usage.Filter{Reader: q.Key, Since: q.Since, Until: q.Until, Account: q.Account, Key: q.Key, Limit: q.Limit}
	rows, err := u.store.List(ctx, filter, usage.Grouping(q.By))
	if err != nil {
		return nil, err
	}
	sums := make([]proxy.UsageRow, len(rows))
	for i, r := range rows {
		sums[i] = proxy.UsageRow{
			Model: r.Model, User: r.User, Workload: r.Workload,
			Requests: r.Requests, PromptTokens: r.PromptTokens, CompletionTokens: r.CompletionTokens,
		}
		if q.By == string(usage.ByDay) {
			sums[i].Day = r.Time.UTC().Format(time.DateOnly)
		}
	}
	return sums, nil
}
