package docs_test

import (
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
)

// alertRules are the parts of deploy/prometheus/alerts.yaml that the test checks.
type alertRules struct {
	Groups []struct {
		Rules []struct {
			Alert       string
			Labels      struct{ Severity string }
			Annotations map[string]string
		}
	}
}

// An operator follows runbook_url from a notification, so every alert must have a page; a page without an alert describes
// an alert that does not exist any more.
func TestEveryAlertHasARunbook(t *testing.T) {
	text, err := os.ReadFile("../deploy/prometheus/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var rules alertRules
	if err := yaml.Unmarshal(text, &rules); err != nil {
		t.Fatal(err)
	}
	index, err := os.ReadFile("runbooks/README.md")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"README.md"}
	for _, group := range rules.Groups {
		for _, rule := range group.Rules {
			file := rule.Alert + ".md"
			want = append(want, file)
			if got, url := rule.Annotations["runbook_url"], "docs/runbooks/"+file; got != url {
				t.Errorf("%s: got runbook_url %q, want %q", rule.Alert, got, url)
			}
			if row := "| [" + rule.Alert + "](" + file + ") | " + rule.Labels.Severity + " |"; !strings.Contains(string(index), row) {
				t.Errorf("runbooks/README.md has no row that begins with %q", row)
			}
			checkRunbook(t, file, rule.Alert)
		}
	}
	pages, err := fs.Glob(os.DirFS("runbooks"), "*.md")
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(want)
	slices.Sort(pages)
	if diff := cmp.Diff(want, pages); diff != "" {
		t.Errorf("pages in docs/runbooks (-alerts +files):\n%s", diff)
	}
}

// checkRunbook checks that a page has the alert as its title, and the sections of every runbook.
func checkRunbook(t *testing.T, file, alert string) {
	t.Helper()
	text, err := os.ReadFile(path.Join("runbooks", file))
	if err != nil {
		t.Error(err)
		return
	}
	for _, heading := range []string{"# " + alert, "## Look at", "## Do", "## Ends"} {
		if !slices.Contains(strings.Split(string(text), "\n"), heading) {
			t.Errorf("runbooks/%s has no heading %q", file, heading)
		}
	}
}
