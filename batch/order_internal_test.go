package batch

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// Lines that share a prefix are neighbours, however they were shuffled in the file.
func TestSharedPrefixesBecomeNeighbours(t *testing.T) {
	const groups, perGroup = 20, 30
	var texts []string
	for g := range groups {
		prefix := strings.Repeat(fmt.Sprintf("The instruction number %d. ", g), 50)
		for i := range perGroup {
			texts = append(texts, fmt.Sprintf(`{"model":"m%d","prompt":"%sQuestion %d"}`, g%2, prefix, i))
		}
	}
	rand.Shuffle(len(texts), func(i, j int) { texts[i], texts[j] = texts[j], texts[i] })
	lines := make([]checkedLine, 0, len(texts))
	for i, text := range texts {
		l := checkedLine{prefix: prefixOf([]byte(text))}
		l.model, l.offset = int(text[len(`{"model":"m`)]-'0'), int64(i)
		lines = append(lines, l)
	}
	sorted := sortByPrefix(lines)
	group := func(l lineRef) string {
		_, after, _ := strings.Cut(texts[l.offset], "number ")
		n, _, _ := strings.Cut(after, ".")
		return n
	}
	changes := 0
	for i := range sorted {
		if sorted[i].position != int64(i+1) {
			t.Errorf("line %d has the position %d", i, sorted[i].position)
		}
		if i > 0 && group(sorted[i]) != group(sorted[i-1]) {
			changes++
		}
		if i > 0 && sorted[i].model < sorted[i-1].model {
			t.Errorf("models alternate at line %d", i)
		}
	}
	if changes != groups-1 {
		t.Errorf("the prefix changes %d times among %d lines of %d prefixes, want %d times", changes, len(lines), groups, groups-1)
	}
}

func TestEqualPromptsKeepTheOrderOfTheFile(t *testing.T) {
	var lines []checkedLine
	for i := range 100 {
		l := checkedLine{prefix: prefixOf(fmt.Appendf(nil, `{"prompt":"prompt %d","seed":%d}`, i%2, i))}
		l.offset = int64(i)
		lines = append(lines, l)
	}
	sorted := sortByPrefix(lines)
	for half := range slices.Chunk(sorted, 50) {
		for i := range half {
			if half[i].offset%2 != half[0].offset%2 || i > 0 && half[i].offset < half[i-1].offset {
				t.Fatalf("the order of equal prompts is %v", half)
			}
		}
	}
}
