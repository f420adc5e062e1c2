package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/mattn/go-isatty"
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
	headings []string
	objects  []any // for --json
	rows     [][]string
}

// add adds an object, and its row of a table.
func (l *list) add(object any, cells ...string) {
	l.objects, l.rows = append(l.objects, object), append(l.rows, cells)
}

// print prints the list as JSON, or as a table.
func (l list) print(cmd *cobra.Command, asJSON bool) error {
	if asJSON {
		return printJSON(cmd, append([]any{}, l.objects...)) // [] if there are none
	}
	return printTable(cmd, l.headings, l.rows)
}

// newList returns the command that prints a list, as a table or as JSON.
func newList(short, long string, read func(cmd *cobra.Command) (list, error)) *cobra.Command {
	var asJSON bool
	cmd := newCommand("list", short, long, func(cmd *cobra.Command, _ []string) error {
		l, err := read(cmd)
		if err != nil {
			return err
		}
		return l.print(cmd, asJSON)
	})
	addJSONFlag(cmd, &asJSON)
	return cmd
}

func isTerminal(stream io.Writer) bool {
	f, is := stream.(*os.File)
	return is && isatty.IsTerminal(f.Fd())
}

// progressOf returns where a command shows its progress: stderr, if it is a terminal.
func progressOf(cmd *cobra.Command) io.Writer {
	if stderr := cmd.ErrOrStderr(); isTerminal(stderr) {
		return stderr
	}
	return io.Discard
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
