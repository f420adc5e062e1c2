package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
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

// dash returns "-" if s is empty.
func dash(s string) string { return cmp.Or(s, "-") }
