package main

import (
	"strings"
	"testing"
)

func TestEveryRowHasAsManyCellsAsTheHeader(t *testing.T) {
	for _, old := range []string{"", "bin/old"} {
		r := uniformReport(1)
		r.options.programs.old = old
		for _, row := range r.rows() {
			if len(row) != len(r.header()) {
				t.Errorf("%d cells for %d columns: %q", len(row), len(r.header()), row)
			}
		}
	}
}

func TestMissingProxyHasEmptyColumnsAndANote(t *testing.T) {
	row := uniformReport(1).rows()[0]
	empty := 0
	for i, name := range uniformReport(1).header() {
		if !strings.HasPrefix(name, nginx) && !strings.HasPrefix(name, haproxy) {
			continue
		}
		if row[i] != "-" {
			t.Errorf("%s: got %q, want -", name, row[i])
		}
		empty++
	}
	if empty != 4 {
		t.Errorf("got %d empty columns, want 4: a value and a ratio of each missing proxy", empty)
	}
	got := strings.Join((programs{competitors: map[string]competitor{haproxy: {version: "3.0"}}}).versions(), ", ")
	if want := "nginx is not installed here (Debian's package nginx), so its columns are empty, HAProxy 3.0"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
