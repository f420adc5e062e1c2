package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// InvalidError holds every error in a configuration, in the order of the file.
type InvalidError struct {
	Diagnostics []Diagnostic // at least one
}

// Error implements error, with one line per diagnostic.
func (e *InvalidError) Error() string {
	lines := make([]string, len(e.Diagnostics))
	for i, d := range e.Diagnostics {
		lines[i] = d.Error()
	}
	return strings.Join(lines, "\n")
}

// Diagnostic is one error in a configuration, or one warning in Config.Warnings.
type Diagnostic struct { //nolint:errname // it may be a warning, so its name does not end in Error
	File string // the name given to Load or Parse
	Line int    // counted from 1
	Key  string // such as models[0].backends[1].url; empty if the problem is not in a key
	Text string // what is wrong, what the value is, what is allowed
}

// Error implements error, in one line: "config.yaml:12: models[0].id: …".
func (d Diagnostic) Error() string {
	if d.Key == "" {
		return fmt.Sprintf("%s:%d: %s", d.File, d.Line, d.Text)
	}
	return fmt.Sprintf("%s:%d: %s: %s", d.File, d.Line, d.Key, d.Text)
}

// concerns reports whether the problem is in a key, or in one below it.
func (d Diagnostic) concerns(key string) bool {
	return d.Key == key || strings.HasPrefix(d.Key, key+".")
}

// sortByLine sorts by line and keeps the order in which diagnostics of one line were found.
func sortByLine(diagnostics []Diagnostic) []Diagnostic {
	slices.SortStableFunc(diagnostics, func(a, b Diagnostic) int { return cmp.Compare(a.Line, b.Line) })
	return diagnostics
}
