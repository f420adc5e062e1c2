package cli

import (
	"cmp"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"basegate/budget"
	"basegate/database"
	"basegate/keys"
)

// usageReport is what a usage command was asked for.
type usageReport struct {
	since, until moment
	by           string
	account, key string
	asJSON       bool
	asCSV        bool
}

func newUsage() *cobra.Command {
	r := usageReport{until: moment{end: true}}
	cmd := &cobra.Command{
		Use:   "usage",
		Short: "Show what has been used",
		Long: "Show what has been used, from the ledger: requests and days from the newest, the others from the one with the most tokens.\n" +
			"A DATE is a day, UTC, such as 2026-11-21, or a time such as 2026-11-21T09:30:00Z. --since begins with it; --until ends with\n" +
			"a whole day, and before a time.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, ok := columnsBy[budget.By(r.by)]; !ok {
				return fmt.Errorf("--by %s: expected one of %s", r.by, strings.Join(groupings, ", "))
			}
			return run(func(cmd *cobra.Command, _ []string) error {
				return withDatabase(cmd, func(ctx context.Context, db *database.DB) error { return r.print(ctx, db, cmd.OutOrStdout()) })
			})(cmd, args)
		},
	}
	flags := cmd.Flags()
	flags.Var(&r.since, "since", "from this day or time on")
	flags.Var(&r.until, "until", "up to this day, or before this time")
	flags.StringVar(&r.by, "by", string(budget.ByRequest), "what to add up by: "+strings.Join(groupings, ", "))
	flags.StringVar(&r.account, "account", "", "only of the account with this e-mail address")
	flags.StringVar(&r.key, "key", "", "only of this key: its id, or its prefix")
	flags.BoolVar(&r.asJSON, "json", false, "as JSON")
	flags.BoolVar(&r.asCSV, "csv", false, "as CSV")
	cmd.MarkFlagsMutuallyExclusive("json", "csv")
	return cmd
}

// moment is a flag's value: a day or a time.
type moment struct {
	at  time.Time
	end bool // a day stands for its end
}

var errMoment = errors.New("expected a day such as 2026-11-21, or a time such as 2026-11-21T09:30:00Z")

// Set implements pflag.Value.
func (m *moment) Set(text string) error {
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		m.at = at
		return nil
	}
	day, err := time.Parse(time.DateOnly, text)
	if err != nil {
		return errMoment
	}
	if m.at = day; m.end {
		m.at = day.AddDate(0, 0, 1)
	}
	return nil
}

// String implements pflag.Value.
func (m *moment) String() string {
	if m.at.IsZero() {
		return ""
	}
	return m.at.Format(time.RFC3339)
}

// Type implements pflag.Value.
func (*moment) Type() string { return "DATE" }

// names tells people's words for the ids on the budget.
type names struct {
	keys     map[string]keys.Key
	accounts map[string]string
}

func readNames(ctx context.Context, d *keys.Directory) (names, error) {
	n := names{keys: map[string]keys.Key{}, accounts: map[string]string{}}
	all, err := d.Keys(ctx)
	if err != nil {
		return n, fmt.Errorf("list keys: %w", err)
	}
	for _, k := range all {
		n.keys[k.ID] = k
	}
	accounts, err := d.Accounts(ctx)
	if err != nil {
		return n, fmt.Errorf("list accounts: %w", err)
	}
	for _, a := range accounts {
		n.accounts[a.ID] = a.Email
	}
	return n, nil
}

func (n names) key(id string) string     { return cmp.Or(n.keys[id].Prefix, id) }
func (n names) account(id string) string { return cmp.Or(n.accounts[id], id) }

// column is one of a report's.
type column struct {
	name  string
	aside bool // too much for a table
	value func(names, *budget.Row) any
}

var (
	requestsColumn = column{name: "requests", value: func(_ names, r *budget.Row) any { return r.Requests }}
	promptColumn   = column{name: "prompt_tokens", value: func(_ names, r *budget.Row) any { return r.PromptTokens }}
	outputColumn   = column{name: "completion_tokens", value: func(_ names, r *budget.Row) any { return r.CompletionTokens }}
	totalColumn    = column{name: "total_tokens", value: func(_ names, r *budget.Row) any { return r.PromptTokens + r.CompletionTokens }}
	keyColumn      = column{name: "key", value: func(n names, r *budget.Row) any { return n.key(r.KeyID) }}
	keyNameColumn  = column{name: "name", value: func(n names, r *budget.Row) any { return n.keys[r.KeyID].Name }}
	accountColumn  = column{name: "account", value: func(n names, r *budget.Row) any { return n.account(r.AccountID) }}
	modelColumn    = column{name: "model", value: func(_ names, r *budget.Row) any { return r.Model }}
	dayColumn      = column{name: "day", value: func(_ names, r *budget.Row) any { return r.Time.Format(time.DateOnly) }}
)

// added are the figures of requests that were added up.
var added = []column{requestsColumn, promptColumn, outputColumn, totalColumn}

// groupings are what usage can be added up by.
var groupings = []string{string(budget.ByRequest), string(budget.ByKey), string(budget.ByAccount), string(budget.ByModel), string(budget.ByDay)}

var columnsBy = map[budget.By][]column{
	budget.ByKey:     append([]column{keyColumn, keyNameColumn, accountColumn}, added...),
	budget.ByAccount: append([]column{accountColumn}, added...),
	budget.ByModel:   append([]column{modelColumn}, added...),
	budget.ByDay:     append([]column{dayColumn}, added...),
	budget.ByRequest: {
		{name: "request_id", aside: true, value: func(_ names, r *budget.Row) any { return r.RequestID }},
		{name: "time", value: func(_ names, r *budget.Row) any { return r.Time }},
		keyColumn, accountColumn, modelColumn,
		{name: "backend", value: func(_ names, r *budget.Row) any { return r.Backend }},
		{name: "endpoint", aside: true, value: func(_ names, r *budget.Row) any { return r.Endpoint }},
		{name: "workload", aside: true, value: func(_ names, r *budget.Row) any { return r.Workload }},
		{name: "user", aside: true, value: func(_ names, r *budget.Row) any { return r.User }},
		{name: "stream", aside: true, value: func(_ names, r *budget.Row) any { return r.Stream }},
		{name: "status", value: func(_ names, r *budget.Row) any { return r.Status }},
		{name: "code", value: func(_ names, r *budget.Row) any { return r.Code }},
		{name: "state", value: func(_ names, r *budget.Row) any { return string(r.State) }},
		promptColumn, outputColumn,
		{name: "queue_ms", aside: true, value: func(_ names, r *budget.Row) any { return milliseconds(r.Queue) }},
		{name: "first_token_ms", aside: true, value: func(_ names, r *budget.Row) any { return milliseconds(r.FirstToken) }},
		{name: "total_ms", value: func(_ names, r *budget.Row) any { return milliseconds(r.Total) }},
	},
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func (r *usageReport) print(ctx context.Context, db *database.DB, out io.Writer) error {
	directory := keys.New(db, zap.NewNop(), keys.Settings{})
	filter := budget.Filter{Since: r.since.at, Until: r.until.at}
	if r.account != "" {
		a, err := directory.Account(ctx, r.account)
		if err != nil {
			return fmt.Errorf("find account: %w", err)
		}
		filter.Account = a.ID
	}
	if r.key != "" {
		k, err := directory.Key(ctx, r.key)
		if err != nil {
			return fmt.Errorf("find key: %w", err)
		}
		filter.Key = k.ID
	}
	known, err := readNames(ctx, directory)
	if err != nil {
		return err
	}
	by := budget.By(r.by)
	columns := columnsBy[by]
	to := r.form(columns, out)
	for row, err := range budget.New(db, zap.NewNop(), budget.Settings{}).Rows(ctx, filter, by) {
		if err != nil {
			return err //nolint:wrapcheck // it says that usage was read
		}
		values := make([]any, len(columns))
		for i, c := range columns {
			values[i] = c.value(known, &row)
		}
		if err := to.row(values); err != nil {
			return fmt.Errorf("print usage: %w", err)
		}
	}
	if err := to.end(); err != nil {
		return fmt.Errorf("print usage: %w", err)
	}
	return nil
}

// form is how a report is printed, row by row.
type form interface {
	row(values []any) error
	end() error
}

func (r *usageReport) form(columns []column, out io.Writer) form {
	switch {
	case r.asJSON:
		return &jsonForm{out: out, columns: columns}
	case r.asCSV:
		return newCSVForm(columns, out)
	default:
		return newTableForm(columns, out)
	}
}

// jsonForm is an array with an object a line.
type jsonForm struct {
	out     io.Writer
	columns []column
	rows    int
}

func (f *jsonForm) row(values []any) error {
	line := []byte("[\n  {")
	if f.rows > 0 {
		line = []byte(",\n  {")
	}
	f.rows++
	for i, c := range f.columns {
		value, err := json.Marshal(values[i])
		if err != nil {
			return err
		}
		if i > 0 {
			line = append(line, ", "...)
		}
		line = append(append(append(append(line, '"'), c.name...), `": `...), value...)
	}
	_, err := f.out.Write(append(line, '}'))
	return err
}

func (f *jsonForm) end() error {
	tail := "\n]\n"
	if f.rows == 0 {
		tail = "[]\n"
	}
	_, err := io.WriteString(f.out, tail)
	return err
}

// csvForm is RFC 4180 with a heading.
type csvForm struct{ w *csv.Writer }

func newCSVForm(columns []column, out io.Writer) *csvForm {
	f := &csvForm{csv.NewWriter(out)}
	heading := make([]string, len(columns))
	for i, c := range columns {
		heading[i] = c.name
	}
	f.w.Write(heading) //nolint:errcheck // end tells
	return f
}

// row writes the values as JSON has them. A text that a spreadsheet would take for a formula gets an apostrophe before
// it: clients choose the user tag.
func (f *csvForm) row(values []any) error {
	cells := make([]string, len(values))
	for i, v := range values {
		if cells[i] = cell(v); cells[i] != "" && strings.ContainsRune("=+-@\t\r", rune(cells[i][0])) {
			if _, text := v.(string); text {
				cells[i] = "'" + cells[i]
			}
		}
	}
	return f.w.Write(cells)
}

func (f *csvForm) end() error {
	f.w.Flush()
	return f.w.Error()
}

func cell(v any) string {
	if at, ok := v.(time.Time); ok {
		return at.Format(time.RFC3339Nano)
	}
	return fmt.Sprint(v)
}

// tableForm is for people. What was added up has its sum at the end.
type tableForm struct {
	columns []column
	out     io.Writer
	rows    [][]string
	sums    []int64 // of the columns that can be added up
}

func newTableForm(columns []column, out io.Writer) *tableForm {
	return &tableForm{columns: columns, out: out, sums: make([]int64, len(columns))}
}

func (f *tableForm) row(values []any) error {
	var cells []string
	for i, c := range f.columns {
		if n, ok := values[i].(int64); ok {
			f.sums[i] += n
		}
		if c.aside {
			continue
		}
		text := cell(values[i])
		if at, ok := values[i].(time.Time); ok {
			text = at.Format("2006-01-02 15:04:05")
		}
		cells = append(cells, dash(text))
	}
	f.rows = append(f.rows, cells)
	return nil
}

func (f *tableForm) end() error {
	var headings, total []string
	for i, c := range f.columns {
		if c.aside {
			continue
		}
		headings = append(headings, strings.ToUpper(strings.ReplaceAll(c.name, "_", " ")))
		cell := ""
		if strings.HasSuffix(c.name, "_tokens") || c.name == requestsColumn.name {
			cell = fmt.Sprint(f.sums[i])
		}
		total = append(total, cell)
	}
	total[0] = "total"
	return writeTable(f.out, headings, append(f.rows, total))
}
