// Package suggest finds the known name that a misspelled one probably means, by edit distance. Its callers decide which
// distance is acceptable.
package suggest

import "iter"

// Nearest returns the known name with the smallest optimal string alignment distance to name, the first one of several, or "" if
// none is within its limit. Unlike Levenshtein's, that distance counts a transposition, the most common typo, once. limit should
// grow with the length of the known name, since every short text is near a short name.
func Nearest(name string, known iter.Seq[string], limit func(known string) int) string {
	nearest, smallest := "", -1
	for k := range known {
		most := limit(k)
		if max(len(name)-len(k), len(k)-len(name)) > most {
			continue // the distance is at least the difference in length
		}
		if d := distance(name, k); d <= most && (smallest < 0 || d < smallest) {
			nearest, smallest = k, d
		}
	}
	return nearest
}

// maxField limits the names for which Field looks, in bytes. No field's name is nearly as long.
const maxField = 40

// Field returns the known field that an unknown name probably means, or "" if none is within one or two typos.
func Field(name string, known iter.Seq[string]) string {
	if len(name) > maxField {
		return ""
	}
	return Nearest(name, known, func(field string) int { return min(2, len(field)/3) })
}

// distance computes three rows of the matrix of distances between prefixes of a and b at a time.
func distance(a, b string) int {
	beforeLast, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row[0] = i + 1
		for j := range len(b) {
			substituted := last[j]
			if a[i] != b[j] {
				substituted++
			}
			row[j+1] = min(row[j]+1, last[j+1]+1, substituted)
			if i > 0 && j > 0 && a[i-1] == b[j] && a[i] == b[j-1] {
				row[j+1] = min(row[j+1], beforeLast[j-1]+1)
			}
		}
		beforeLast, last, row = last, row, beforeLast
	}
	return last[len(b)]
}
