package main_test

import (
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var codeSpan = regexp.MustCompile("`([^`]+)`")

// tableRows returns the cells of the first table in the section with this heading of a Markdown file, without the two
// lines of its head.
func tableRows(t *testing.T, file, heading string) [][]string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n"+heading+"\n")
	if !found {
		t.Fatalf("%s has no heading %q", file, heading)
	}
	var rows [][]string
	for line := range strings.Lines(section) {
		cells := strings.Split(line, "|")
		switch {
		case len(cells) > 2:
			rows = append(rows, cells[1:len(cells)-1])
		case len(rows) > 2:
			return rows[2:]
		}
	}
	t.Fatalf("%s: no table follows %q", file, heading)
	return nil
}

// packagesIn returns the packages that a cell names, as `cli/` or `cli`; main.go is the package in the root.
func packagesIn(cell string) []string {
	var all []string
	for _, match := range codeSpan.FindAllStringSubmatch(cell, -1) {
		name := strings.TrimSuffix(match[1], "/")
		if name == "main.go" {
			name = "."
		}
		all = append(all, name)
	}
	return all
}

// layers returns the packages of each floor, sorted, by the label that the table in CONTRIBUTING.md has for it.
func layers() map[string][]string {
	all := map[string][]string{"leaf": slices.Sorted(slices.Values(leaves)), "outside": slices.Sorted(slices.Values(outside))}
	for i, floor := range floors {
		all[strconv.Itoa(i)] = slices.Sorted(slices.Values(floor))
	}
	return all
}

func TestFloorsInContributingMatchTheLayers(t *testing.T) {
	got := map[string][]string{}
	for _, cells := range tableRows(t, "CONTRIBUTING.md", "## Floors") {
		got[strings.TrimSpace(cells[0])] = slices.Sorted(slices.Values(packagesIn(cells[1])))
	}
	if diff := cmp.Diff(layers(), got); diff != "" {
		t.Errorf("CONTRIBUTING.md (-layers_test.go +table):\n%s", diff)
	}
}

func TestPackagesInTheArchitectureMatchTheLayers(t *testing.T) {
	got := map[string][]string{}
	for _, cells := range tableRows(t, "docs/architecture.md", "## Packages") {
		floor := strings.TrimSpace(cells[0])
		got[floor] = slices.Sorted(slices.Values(append(got[floor], packagesIn(cells[1])...)))
	}
	if diff := cmp.Diff(layers(), got); diff != "" {
		t.Errorf("docs/architecture.md (-layers_test.go +table):\n%s", diff)
	}
}

// The README leaves out main.go and the internal packages.
func TestPackagesInTheReadmeMatchTheLayers(t *testing.T) {
	var got, want []string
	for _, cells := range tableRows(t, "README.md", "## Inside") {
		got = append(got, packagesIn(cells[0])...)
	}
	for _, packages := range layers() {
		want = append(want, packages...)
	}
	want = slices.DeleteFunc(want, func(p string) bool { return p == "." || strings.HasPrefix(p, "internal/") })
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("README.md (-layers_test.go +table):\n%s", diff)
	}
}
