package console

import (
	"fmt"

	"go.uber.org/zap"

	"basegate/budget"
	"basegate/report"
)

// usageCSV sends usage as a CSV file: of a month in any grouping, or of the last requests that match the query's filter.
func (c *Console) usageCSV(r *request) error {
	by := budget.Grouping(r.query("by"))
	columns, ok := report.ConsoleColumns(by)
	if !ok {
		return errNotFound
	}
	s, err := c.scope(r)
	if err != nil {
		return err
	}
	filter, name := s.filter(), "usage-"+s.Month.ID()+"-by-"+string(by)
	if by == budget.ByRequest && r.query("month") == "" {
		filter, name = requestsFilter(r), "requests"
		filter.Limit = maxRequestsShown
	}
	known, err := c.readNames(r.ctx(), r.account)
	if err != nil {
		return err
	}
	r.Response().Header().Set("Content-Type", "text/csv; charset=utf-8")
	r.Response().Header().Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", "basegate-"+name+".csv"))
	usage := report.Usage{
		Columns: columns,
		Names:   report.Names{Keys: known.keys, Emails: known.emails},
		Rows:    c.ledger.Rows(r.ctx(), filter, by),
	}
	if err := usage.WriteCSV(r.Response()); err != nil { // too late for an error page: the header is sent
		c.log.Warn("send usage", zap.Error(err))
	}
	return nil
}
