package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"basegate/budget/usage/report"
)

// printTable prints rows under their headings in aligned columns.
func printTable(cmd *cobra.Command, headings []string, rows [][]string) error {
	t := report.NewTable(cmd.OutOrStdout(), headings)
	for _, row := range rows {
		t.Row(row)
	}
	return t.Flush()
}

// list is what a command lists.
type list struct {
	objects  any // for --json
	headings []string
	rows     [][]string
}

// newList returns the command that prints a list, as a table or as JSON.
func newList(short, long string, read func(cmd *cobra.Command) (list, error)) *cobra.Command {
	var asJSON bool
	cmd := newCommand("list", short, long, func(cmd *cobra.Command, _ []string) error {
		l, err := read(cmd)
		switch {
		case err != nil:
			return err
		case asJSON:
			return printJSON(cmd, l.objects)
		}
		return printTable(cmd, l.headings, l.rows)
	})
	addJSONFlag(cmd, &asJSON)
	return cmd
}

func addJSONFlag(cmd *cobra.Command, asJSON *bool) {
	cmd.Flags().BoolVar(asJSON, "json", false, "as JSON")
}

// printJSON prints v, indented.
func printJSON(cmd *cobra.Command, v any) error {
	e := json.NewEncoder(cmd.OutOrStdout())
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("print JSON: %w", err)
	}
	return nil
}

// formatTime returns a time as tables show it: UTC, to the minute.
func formatTime(t time.Time) string { return t.UTC().Format("2006-01-02 15:04") }

// formatTimeOr returns a time as tables show it, and a word for the zero time.
func formatTimeOr(t time.Time, zero string) string {
	if t.IsZero() {
		return zero
	}
	return formatTime(t)
}

// dash returns "-" if s is empty.
func dash(s string) string { return cmp.Or(s, "-") }

// count returns a number with its noun, such as "1 entry" or "2 entries".
func count(n int64, noun string) string {
	if n != 1 {
		noun = strings.Replace(noun+"s", "rys", "ries", 1)
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// optional returns nil, which is JSON's null, for a zero value.
func optional[T comparable](v T) *T {
	if v == *new(T) {
		return nil
	}
	return &v
}
