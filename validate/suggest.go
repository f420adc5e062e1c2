package validate

import "basegate/internal/suggest"

// suggestField returns the field that an unknown name probably means, or "" if none is within one or two typos.
func suggestField(name string) string {
	return suggest.Nearest(name, fieldNames, func(field string) int { return min(2, len(field)/3) })
}

// fieldNames iterates over the names of all fields.
func fieldNames(yield func(string) bool) {
	for i := range fields {
		if !yield(fields[i].name) {
			return
		}
	}
}
