package suggest_test

import (
	"slices"
	"strings"
	"testing"

	"basegate/internal/suggest"
)

func nearest(name string, limit int, known ...string) string {
	return suggest.Nearest(name, slices.Values(known), func(string) int { return limit })
}

func TestNearestCountsEachEditOnce(t *testing.T) {
	for _, c := range []struct {
		edit, name, known string
		distance          int
	}{
		{"none", "seed", "seed", 0},
		{"insertion", "seeed", "seed", 1},
		{"insertion at the start", "sseed", "seed", 1},
		{"deletion", "sed", "seed", 1},
		{"substitution", "sead", "seed", 1},
		{"transposition", "sede", "seed", 1},
		{"transposition at the start", "esed", "seed", 1},
		{"two transpositions", "esde", "seed", 2},
		{"substitutions", "food", "fare", 3},
		{"everything", "", "seed", 4},
	} {
		if got := nearest(c.name, c.distance, c.known); got != c.known {
			t.Errorf("%s: %q is not within %d of %q", c.edit, c.name, c.distance, c.known)
		}
		if got := nearest(c.name, c.distance-1, c.known); got != "" {
			t.Errorf("%s: %q is within %d of %q, want %d", c.edit, c.name, c.distance-1, c.known, c.distance)
		}
	}
}

func TestNearestPrefersTheSmallestDistanceAndThenTheFirst(t *testing.T) {
	if got := nearest("top_q", 2, "topic", "top_k", "top_p"); got != "top_k" {
		t.Errorf("got %q, want %q", got, "top_k")
	}
}

func TestNearestAppliesTheLimitOfEachName(t *testing.T) {
	limit := func(known string) int { return len(known) / 3 }
	if got := suggest.Nearest("m", slices.Values([]string{"n", "stop"}), limit); got != "" {
		t.Errorf("got %q for a short name, want none", got)
	}
	if got := suggest.Nearest("stops", slices.Values([]string{"n", "stop"}), limit); got != "stop" {
		t.Errorf("got %q, want %q", got, "stop")
	}
}

func TestNearestIgnoresLongTexts(t *testing.T) {
	if got := nearest(strings.Repeat("x", 1<<20), 2, "seed", "stop"); got != "" {
		t.Errorf("got %q, want none", got)
	}
}
