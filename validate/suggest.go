package validate

// nearest is the known field that name is within a typo or two of, or empty.
func nearest(name string) string {
	best, fewest := "", 3
	if len(name) > 32 {
		return ""
	}
	for _, f := range fields {
		allowed := min(2, len(f.name)/3) // a short name is near to everything
		if d := edits(name, f.name); d <= allowed && d < fewest {
			best, fewest = f.name, d
		}
	}
	return best
}

// edits counts the insertions, deletions, replacements and swaps of neighbours that lead from a to b (optimal string
// alignment).
func edits(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
