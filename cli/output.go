package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
)

// commandLockWait is how long a command waits for another process to release the database.
const commandLockWait = 5 * time.Second

// printTable prints rows under their headings, aligned.
func printTable(cmd *cobra.Command, headings []string, rows [][]string) error {
	return writeTable(cmd.OutOrStdout(), headings, rows)
}

func writeTable(out io.Writer, headings []string, rows [][]string) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, strings.Join(headings, "\t"))
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print table: %w", err)
	}
	return nil
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

// date is a time as lists show it.
func date(t time.Time) string { return t.UTC().Format("2006-01-02 15:04") }

// dash stands for what is empty.
func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
