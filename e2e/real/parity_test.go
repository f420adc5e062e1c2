//go:build real

package real_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// newestVersion is the version of vLLM that has every field of the matrix.
const newestVersion = "0.33.0"

// TestParity runs `basegate verify`. With BASEGATE_PARITY_FILE it writes the report into that file, as the section of
// this version of vLLM.
func TestParity(t *testing.T) {
	servers := backends(t)
	g := startGateway(t, "", servers...)
	report, stderr, err := g.try("verify", modelID, "--markdown")
	if err != nil {
		t.Errorf("basegate verify: %v: %s\n%s", err, stderr, differences(report))
	}
	if !strings.Contains(report, "| identical |") || strings.Contains(report, "skipped") {
		t.Errorf("the report has no identical response, or skipped some:\n%s", report)
	}
	if installedVersion(t) == newestVersion && strings.Contains(report, "lacks the field") {
		t.Errorf("the gateway refused fields that vLLM %s has:\n%s", newestVersion, report)
	}
	if file := os.Getenv("BASEGATE_PARITY_FILE"); file != "" && err == nil {
		must(t, writeSection(file, installedVersion(t), report))
	}
}

// differences returns the rows of a report with the verdict different.
func differences(report string) string {
	var rows []string
	for row := range strings.Lines(report) {
		if strings.Contains(row, "**different**") {
			rows = append(rows, row)
		}
	}
	return strings.Join(rows, "")
}

// installedVersion returns the version of vLLM under test: the name of its folder.
func installedVersion(t *testing.T) string {
	t.Helper()
	return filepath.Base(venv)
}

// writeSection replaces the section of a version in a Markdown file, or appends it.
func writeSection(file, version, report string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	begin, end := fmt.Sprintf("<!-- begin %s -->\n", version), fmt.Sprintf("<!-- end %s -->\n", version)
	section := fmt.Sprintf("%s\n## vLLM %s\n\n%s\n%s", begin, version, report, end)
	before, rest, found := strings.Cut(string(text), begin)
	_, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		before, after = string(text)+"\n", ""
	}
	return os.WriteFile(file, []byte(before+section+after), 0o644)
}
