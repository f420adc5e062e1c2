//go:build real

package real_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"
)

// newestVersion is the version of vLLM that has every field of the matrix.
const newestVersion = "0.33.0"

// TestParity runs `basegate verify`. With BASEGATE_PARITY_FILE it writes what differs into that file, if vLLM is the newest.
func TestParity(t *testing.T) {
	servers := backends(t)
	report, all := verify(t, startGateway(t, "", servers...))
	counts := map[string]int{}
	for _, c := range all {
		counts[c.verdict]++
	}
	if counts["identical"] == 0 || counts["skipped"] > 0 {
		t.Errorf("the report has no identical response, or skipped some: %v", counts)
	}
	newest := installedVersion(t) == newestVersion
	if newest && strings.Contains(report, "lacks the field") {
		t.Errorf("the gateway refused fields that vLLM %s has:\n%s", newestVersion, report)
	}
	if file := os.Getenv("BASEGATE_PARITY_FILE"); file != "" && newest && !t.Failed() {
		must(t, writeReport(file, summary(report, counts)+differences(all)))
	}
}

// verify runs `basegate verify`, fails for every response that differs, and returns the report in JSON and its comparisons.
func verify(t *testing.T, g *gateway) (string, []comparison) {
	t.Helper()
	report, stderr, err := g.try("verify", modelID, "--json")
	if err != nil {
		t.Errorf("basegate verify: %v: %s", err, stderr)
	}
	all := comparisons(report)
	for _, c := range all {
		if c.verdict == "different" {
			t.Errorf("%s, %s: %s", c.name, c.mode, c.remark)
		}
	}
	return report, all
}

// comparison is the verdict of `basegate verify` on one response.
type comparison struct {
	name, mode, verdict, remark string
}

// comparisons returns the comparisons of a report in JSON.
func comparisons(report string) []comparison {
	var all []comparison
	for _, row := range gjson.Get(report, "cases").Array() {
		for _, mode := range []string{"plain", "stream"} {
			if result := row.Get(mode); result.IsObject() {
				all = append(all, comparison{row.Get("name").Str, mode, result.Get("verdict").Str, result.Get("remark").Str})
			}
		}
	}
	return all
}

// summary returns a line with the versions and the numbers of the verdicts.
func summary(report string, counts map[string]int) string {
	return fmt.Sprintf("vLLM %s, gateway %s, %s: %d identical, %d as documented, %d nondeterministic, %d different.\n\n",
		newestVersion, gjson.Get(report, "gateway_version").Str, gjson.Get(report, "time").Time().Format(time.DateOnly),
		counts["identical"], counts["as documented"], counts["nondeterministic"], counts["different"])
}

// namedCases is the number of cases up to which the table names them.
const namedCases = 10

// differences returns a table of what differs: each reason with the number of its responses, and its cases.
func differences(all []comparison) string {
	var reasons []string
	responses, cases := map[string]int{}, map[string][]string{}
	for _, c := range all {
		if c.verdict == "identical" {
			continue
		}
		for reason := range strings.SplitSeq(c.remark, "; ") {
			if c.verdict != "as documented" {
				reason = c.verdict + ": " + reason
			}
			if responses[reason]++; responses[reason] == 1 {
				reasons = append(reasons, reason)
			}
			if !slices.Contains(cases[reason], c.name) {
				cases[reason] = append(cases[reason], c.name)
			}
		}
	}
	var out strings.Builder
	out.WriteString("| what differs | responses | cases |\n|---|---|---|\n")
	for _, reason := range reasons {
		names := strings.Join(cases[reason], "; ")
		if len(cases[reason]) > namedCases {
			names = fmt.Sprintf("%d cases", len(cases[reason]))
		}
		fmt.Fprintf(&out, "| %s | %d | %s |\n", reason, responses[reason], names)
	}
	return out.String()
}

// installedVersion returns the version of vLLM under test: the name of its folder.
func installedVersion(t *testing.T) string {
	t.Helper()
	return filepath.Base(venv)
}

// writeReport replaces the report in a Markdown file: what stands between its marks.
func writeReport(file, report string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, found := strings.Cut(string(text), "<!-- begin report -->\n")
	_, after, closed := strings.Cut(rest, "<!-- end report -->\n")
	if !found || !closed {
		return fmt.Errorf("%s has no marks of the report", file)
	}
	return os.WriteFile(file, []byte(before+"<!-- begin report -->\n"+report+"<!-- end report -->\n"+after), 0o644)
}
