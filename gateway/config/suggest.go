package config

import (
	"slices"
	"strings"

	"basegate/internal/suggest"
)

// suggestKey returns the known key that was probably meant: one with a typo or two, or one whose beginning or end was
// left out or extended. It returns "" if there is none.
func suggestKey(name string, known []string) string {
	limit := func(k string) int { return min(2, 1+len(k)/5) }
	if nearest := suggest.Nearest(name, slices.Values(known), limit); nearest != "" || len(name) < 4 {
		return nearest
	}
	for _, k := range known {
		if strings.HasPrefix(k, name) || strings.HasPrefix(name, k) || strings.HasSuffix(k, name) {
			return k
		}
	}
	return ""
}

// keyHint says which key was probably meant, or else which are known.
func keyHint(name string, known []string) string {
	if suggestion := suggestKey(name, known); suggestion != "" {
		return "did you mean " + suggestion + "?"
	}
	return "known here: " + strings.Join(known, ", ")
}
