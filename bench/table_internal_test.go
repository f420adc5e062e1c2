package main

import (
	"strings"
	"testing"
)

func TestEveryRowHasTheHeadersColumns(t *testing.T) {
	for _, row := range measured(1).rows() {
		if len(row) != len(header()) {
			t.Errorf("%d cells for %d columns: %q", len(row), len(header()), row)
		}
	}
}

func TestProxyThatIsNotInstalledHasEmptyColumnsAndIsNamed(t *testing.T) {
	row := measured(1).rows()[0]
	if row[4] != "-" || row[5] != "-" || row[7] != "-" || row[8] != "-" {
		t.Errorf("got %q", row)
	}
	said := strings.Join((programs{rivals: map[string]rival{haproxy: {version: "3.0"}}}).versions(), ", ")
	if want := "nginx is not installed here (Debian's package nginx), so its columns are empty, HAProxy 3.0"; said != want {
		t.Errorf("got %q, want %q", said, want)
	}
}
