package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// InvalidError is all that is wrong with a configuration, in the order of the file.
type InvalidError struct {
	Mistakes []Diagnostic // at least one
}

// Unwrap gives each mistake as an error.
func (e *InvalidError) Unwrap() []error {
	all := make([]error, len(e.Mistakes))
	for i, m := range e.Mistakes {
		all[i] = m
	}
	return all
}

// Error implements error, with a line for each mistake.
func (e *InvalidError) Error() string {
	lines := make([]string, len(e.Mistakes))
	for i, m := range e.Mistakes {
		lines[i] = m.Error()
	}
	return strings.Join(lines, "\n")
}

// Diagnostic is one thing that is wrong with a configuration, or, among Config.Warnings, only odd.
type Diagnostic struct { //nolint:errname // it may be a warning, which a name ending in Error would belie
	File string // as it was given to Load or Parse
	Line int    // counted from 1
	Key  string // such as models[0].backends[1].url; empty where no key is at fault
	Text string // what is wrong, what was got, what is allowed
}

// Error implements error, in one line: "config.yaml:12: models[0].id: …".
func (m Diagnostic) Error() string {
	if m.Key == "" {
		return fmt.Sprintf("%s:%d: %s", m.File, m.Line, m.Text)
	}
	return fmt.Sprintf("%s:%d: %s: %s", m.File, m.Line, m.Key, m.Text)
}

// sorted puts mistakes into the order of the file; those of one line stay as they were found.
func sorted(mistakes []Diagnostic) []Diagnostic {
	slices.SortStableFunc(mistakes, func(a, b Diagnostic) int { return cmp.Compare(a.Line, b.Line) })
	return mistakes
}
