package main

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseStatSkipsANameWithSpacesAndParentheses(t *testing.T) {
	got, err := parseStat("42 (nginx: worker (1)) S 7 42 42 0 -1 4194560 1 0 0 0 12 30 0 0 20 0 1 0 99 1 2")
	if err != nil {
		t.Fatal(err)
	}
	if want := (stat{parent: 7, cpu: 420 * time.Millisecond}); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestParseStatRejectsATruncatedLine(t *testing.T) {
	for _, text := range []string{"", "42 (a) S 7", "42 (a) S x" + strings.Repeat(" 1", 20)} {
		if _, err := parseStat(text); !errors.Is(err, errStat) {
			t.Errorf("%q: got %v, want errStat", text, err)
		}
	}
}

func TestDescendantsAreTheProcessAndAllBelowIt(t *testing.T) {
	all := map[int]stat{1: {}, 5: {parent: 1}, 6: {parent: 5}, 7: {parent: 6}, 8: {parent: 1}, 9: {parent: 1000}}
	got := slices.Sorted(maps.Keys(descendants(all, 5)))
	if diff := cmp.Diff([]int{5, 6, 7}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := descendants(all, 4); len(got) != 0 {
		t.Errorf("of a process that has exited: got %v, want none", got)
	}
}

func TestEachStreamNeedsTwoDescriptors(t *testing.T) {
	for descriptors, want := range map[int]int{100: 0, 1024: 18, 20_000: 9_250, wantedDescriptors: 15_634} {
		if got := maxStreams(descriptors); got != want {
			t.Errorf("%d: got %d, want %d", descriptors, got, want)
		}
	}
}
