package gateway_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Validations of batches and parses of large bodies had no metrics, so nobody saw that an account kept others waiting.
func TestAllWorkThatIsDoneInTurnHasMetricsAndIsDocumented(t *testing.T) {
	g := start(t, newConfig(t, model("m", startBackend(t, nil))))
	want := []string{"large_bodies", "large_validations", "prompt_saves", "reports", "uploads", "validations"}
	work := func(text, pattern string) (all []string) {
		for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
			all = append(all, match[1])
		}
		slices.Sort(all)
		return all
	}
	if got := work(readBody(t, send(t, g.AdminAddr(), "", "/metrics", "")), `basegate_turns_places\{work="(\w+)"\}`); !slices.Equal(got, want) {
		t.Errorf("/metrics has places of %v, want %v", got, want)
	}
	read := func(name string) string {
		text, err := os.ReadFile("../docs/operations/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	_, table, _ := strings.Cut(read("queue.md"), "## Turns between accounts")
	if got := work(table, "(?m)^\\| `(\\w+)`: "); !slices.Equal(got, want) {
		t.Errorf("docs/operations/queue.md describes the work %v, want %v", got, want)
	}
	_, values, _ := strings.Cut(read("metrics.md"), "calls that wait for one; `work` is ")
	values, _, _ = strings.Cut(values, "\n")
	if got := work(values, "`(\\w+)`"); !slices.Equal(got, want) {
		t.Errorf("docs/operations/metrics.md has the values %v of the label work, want %v", got, want)
	}
}
