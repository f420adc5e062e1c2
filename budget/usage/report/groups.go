package report

import (
	"time"

	"basegate/budget/usage"
)

var (
	monthColumn  = field("month", func(r *usage.Row) any { return r.Time.Format("2006-01") })
	errorsColumn = sum("errors", func(r *usage.Row) int64 { return r.Errors })
)

// intervalColumns are the columns of the intervals, and groupColumns those that identify a group.
var (
	intervalColumns = map[usage.Grouping]column{
		usage.ByHour: hourColumn, usage.ByDay: dayColumn, usage.ByMonth: monthColumn,
	}
	groupColumns = map[usage.Grouping][]column{
		usage.ByModel: {modelColumn}, usage.ByKey: {keyColumn, keyNameColumn, accountColumn}, usage.ByUser: {userColumn},
		usage.ByWorkload: {workloadColumn}, usage.ByRun: {runColumn}, usage.ByEndpoint: {endpointColumn}, usage.ByAccount: {accountColumn},
	}
)

// GroupColumns returns the columns of the console's files of usage by group, or by interval and group if interval is not empty.
// With latency, they include percentiles, which need usage.Filter.Latency.
func GroupColumns(interval, by usage.Grouping, latency bool) Columns {
	var all Columns
	if c, ok := intervalColumns[interval]; ok {
		all = append(all, c)
	}
	all = append(all, groupColumns[by]...)
	all = append(all, requestsColumn, errorsColumn, promptColumn, completionColumn, tokensColumn, cachedColumn, knownColumn)
	if !latency {
		return all
	}
	for _, h := range []struct {
		name string
		of   func(*usage.Latency) *usage.Histogram
	}{
		{"first_token", func(l *usage.Latency) *usage.Histogram { return &l.FirstToken }},
		{"total", func(l *usage.Latency) *usage.Histogram { return &l.Total }},
	} {
		for _, q := range []struct {
			name string
			part float64
		}{{"p50", .5}, {"p95", .95}, {"p99", .99}} {
			all = append(all, field(h.name+"_"+q.name+"_ms", func(r *usage.Row) any {
				if r.Latency == nil {
					return milliseconds(time.Duration(0))
				}
				return milliseconds(h.of(r.Latency).Quantile(q.part))
			}))
		}
	}
	return all
}
