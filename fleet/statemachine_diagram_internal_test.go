package fleet

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// diagramLabels are the names of the events in the diagram.
var diagramLabels = [eventCount]string{
	eventAnswered:       "answered",
	eventSleeping:       "sleeping",
	eventUnreachable:    "unreachable",
	eventStartRequested: "start requested",
	eventDrainRequested: "drain requested",
	eventStopped:        "stopped",
	eventSlept:          "slept",
	eventFailed:         "failed",
	eventAbandoned:      "abandoned",
}

func TestDiagramInTheDocumentationMatchesTheTransitionTable(t *testing.T) {
	page, err := os.ReadFile("../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(page), "```mermaid\nstateDiagram-v2\n    direction LR\n")
	diagram, _, closed := strings.Cut(rest, "```")
	if !found || !closed {
		t.Fatal("docs/architecture.md has no state diagram")
	}
	initial := map[string]bool{}
	got := map[State]map[string]State{}
	edge := regexp.MustCompile(`^([a-z]+|\[\*\]) --> ([a-z]+): ([a-z ]+)$`)
	for line := range strings.Lines(diagram) {
		match := edge.FindStringSubmatch(strings.TrimSpace(line))
		if match == nil {
			t.Errorf("not a transition: %q", line)
			continue
		}
		if match[1] == "[*]" {
			initial[match[2]] = true
			continue
		}
		from := State(match[1])
		if got[from] == nil {
			got[from] = map[string]State{}
		}
		if got[from][match[3]] != "" {
			t.Errorf("two transitions of %s for %q", from, match[3])
		}
		got[from][match[3]] = State(match[2])
	}
	want := map[State]map[string]State{}
	for from, row := range transitionTable {
		want[from] = map[string]State{}
		for e, to := range row {
			want[from][diagramLabels[e]] = to
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("transitions in the diagram (-table +diagram):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]bool{string(Stopped): true, string(Unreachable): true}, initial); diff != "" {
		t.Errorf("initial states (-want +got):\n%s", diff)
	}
}
