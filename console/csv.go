package console

import (
	"fmt"

	"go.uber.org/zap"

	"basegate/budget"
	"basegate/report"
)

// usageCSV sends usage as a CSV file: of a month in any grouping, or of the last requests that match the query's filter.
func (c *Console) usageCSV(v *visit) error {
	by := budget.Grouping(v.query("by"))
	columns, ok := report.ConsoleColumns(by)
	if !ok {
		return errNoPage
	}
	s, err := c.scope(v)
	if err != nil {
		return err
	}
	filter, name := s.filter(), "usage-"+s.Month.ID()+"-by-"+string(by)
	if by == budget.ByRequest && v.query("month") == "" {
		filter, name = requestsFilter(v), "requests"
		filter.Limit = maxRequestsShown
	}
	known, err := c.readNames(v.r.Context(), v.account)
	if err != nil {
		return err
	}
	v.w.Header().Set("Content-Type", "text/csv; charset=utf-8")
	v.w.Header().Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", "basegate-"+name+".csv"))
	usage := report.Usage{
		Columns: columns,
		Names:   report.Names{Keys: known.keys, Emails: known.emails},
		Rows:    c.ledger.Rows(v.r.Context(), filter, by),
	}
	if err := usage.WriteCSV(v.w); err != nil { // too late for an error page: the header is sent
		c.log.Warn("send usage", zap.Error(err))
	}
	return nil
}
