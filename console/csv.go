package console

import (
	"encoding/csv"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"basegate/budget"
)

// column is one of a CSV file.
type column struct {
	name  string
	value func(names, *budget.Row) string
}

var (
	dayColumn      = column{"day", func(_ names, r *budget.Row) string { return r.Time.Format(time.DateOnly) }}
	modelColumn    = column{"model", func(_ names, r *budget.Row) string { return r.Model }}
	keyColumn      = column{"key", func(n names, r *budget.Row) string { return n.keys[r.KeyID].Prefix }}
	keyNameColumn  = column{"key_name", func(n names, r *budget.Row) string { return n.key(r.KeyID) }}
	accountColumn  = column{"account", func(n names, r *budget.Row) string { return n.account(r.AccountID) }}
	workloadColumn = column{"workload", func(_ names, r *budget.Row) string { return r.Workload }}
	userColumn     = column{"user", func(_ names, r *budget.Row) string { return r.User }}
	requestsColumn = column{"requests", func(_ names, r *budget.Row) string { return strconv.FormatInt(r.Requests, 10) }}
	promptColumn   = column{"prompt_tokens", func(_ names, r *budget.Row) string { return strconv.FormatInt(r.PromptTokens, 10) }}
	outputColumn   = column{"completion_tokens", func(_ names, r *budget.Row) string { return strconv.FormatInt(r.CompletionTokens, 10) }}
	totalColumn    = column{"total_tokens", func(_ names, r *budget.Row) string {
		return strconv.FormatInt(r.PromptTokens+r.CompletionTokens, 10)
	}}
)

// csvColumns are the files that there are.
var csvColumns = map[budget.By][]column{
	budget.ByDay:      {dayColumn, requestsColumn, promptColumn, outputColumn, totalColumn},
	budget.ByDayModel: {dayColumn, modelColumn, requestsColumn, promptColumn, outputColumn, totalColumn},
	budget.ByModel:    {modelColumn, requestsColumn, promptColumn, outputColumn, totalColumn},
	budget.ByKey:      {keyColumn, keyNameColumn, accountColumn, requestsColumn, promptColumn, outputColumn, totalColumn},
	budget.ByAccount:  {accountColumn, requestsColumn, promptColumn, outputColumn, totalColumn},
	budget.ByWorkload: {workloadColumn, requestsColumn, promptColumn, outputColumn, totalColumn},
	budget.ByUser:     {userColumn, requestsColumn, promptColumn, outputColumn, totalColumn},
	budget.ByRequest: {
		{"request_id", func(_ names, r *budget.Row) string { return r.RequestID }},
		{"time", func(_ names, r *budget.Row) string { return r.Time.Format(time.RFC3339Nano) }},
		accountColumn, keyColumn, keyNameColumn, modelColumn,
		{"backend", func(_ names, r *budget.Row) string { return r.Backend }},
		workloadColumn, userColumn,
		{"stream", func(_ names, r *budget.Row) string { return strconv.FormatBool(r.Stream) }},
		{"status", func(_ names, r *budget.Row) string { return strconv.Itoa(r.Status) }},
		{"code", func(_ names, r *budget.Row) string { return r.Code }},
		{"state", func(_ names, r *budget.Row) string { return string(r.State) }},
		promptColumn, outputColumn,
		{"queue_ms", func(_ names, r *budget.Row) string { return milliseconds(r.Queue) }},
		{"first_token_ms", func(_ names, r *budget.Row) string { return milliseconds(r.FirstToken) }},
		{"total_ms", func(_ names, r *budget.Row) string { return milliseconds(r.Total) }},
	},
}

// usageCSV is any table of usage as a file: of a month, or of the last requests as they are filtered.
func (c *Console) usageCSV(r *request) error {
	by := budget.By(r.query("by"))
	columns, ok := csvColumns[by]
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
	if err := c.writeCSV(r, columns, known, filter, by); err != nil { // part of it is out
		c.log.Warn("send usage", zap.Error(err))
	}
	return nil
}

func (c *Console) writeCSV(r *request, columns []column, known names, f budget.Filter, by budget.By) error {
	out := csv.NewWriter(r.Response())
	cells := make([]string, len(columns))
	for i, column := range columns {
		cells[i] = column.name
	}
	if err := out.Write(cells); err != nil {
		return fmt.Errorf("write CSV: %w", err)
	}
	for row, err := range c.ledger.Rows(r.ctx(), f, by) {
		if err != nil {
			return err
		}
		for i, column := range columns {
			cells[i] = harmless(column.value(known, &row))
		}
		if err := out.Write(cells); err != nil {
			return fmt.Errorf("write CSV: %w", err)
		}
	}
	out.Flush()
	if err := out.Error(); err != nil {
		return fmt.Errorf("write CSV: %w", err)
	}
	return nil
}

// harmless keeps a spreadsheet from taking a tag that somebody has sent for a formula.
func harmless(cell string) string {
	if cell != "" && strings.ContainsRune("=+-@\t\r", rune(cell[0])) {
		return "'" + cell
	}
	return cell
}
