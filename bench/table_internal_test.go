package main

import (
	"strings"
	"testing"
)

func TestEveryRowHasTheHeadersColumns(t *testing.T) {
	for _, row := range uniformReport(1).rows() {
		if len(row) != len(header()) {
			t.Errorf("%d cells for %d columns: %q", len(row), len(header()), row)
		}
	}
}

func TestProxyThatIsNotInstalledHasEmptyColumnsAndIsNamed(t *testing.T) {
	row := uniformReport(1).rows()[0]
	empty := 0
	for i, name := range header() {
		if !strings.HasPrefix(name, nginx) && !strings.HasPrefix(name, haproxy) {
			continue
		}
		if row[i] != "-" {
			t.Errorf("%s has %q", name, row[i])
		}
		empty++
	}
	if empty != 4 {
		t.Errorf("%d columns for what is not installed, want a figure and a ratio of each", empty)
	}
	said := strings.Join((programs{competitors: map[string]competitor{haproxy: {version: "3.0"}}}).versions(), ", ")
	if want := "nginx is not installed here (Debian's package nginx), so its columns are empty, HAProxy 3.0"; said != want {
		t.Errorf("got %q, want %q", said, want)
	}
}
