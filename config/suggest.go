package config

import "strings"

// suggestKey returns the known name that was probably meant: within a typo or two, or with a part left out or added. It is empty
// where there is none.
func suggestKey(name string, known []string) string {
	best, fewest := "", 3
	for _, k := range known {
		if len(name) > 2*len(k) {
			continue
		}
		allowed := 1 + len(k)/5 // a short name is near to everything
		if d := edits(name, k); d <= allowed && d < fewest {
			best, fewest = k, d
		}
	}
	if best != "" || len(name) < 4 {
		return best
	}
	for _, k := range known {
		if strings.HasPrefix(k, name) || strings.HasPrefix(name, k) || strings.HasSuffix(k, name) {
			return k
		}
	}
	return ""
}

// edits counts the insertions, deletions, replacements and swaps of neighbours that lead from a to b (optimal string
// alignment).
func edits(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row[0] = i + 1
		for j := range len(b) {
			replaced := last[j]
			if a[i] != b[j] {
				replaced++
			}
			row[j+1] = min(row[j]+1, last[j+1]+1, replaced)
			if i > 0 && j > 0 && a[i-1] == b[j] && a[i] == b[j-1] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
