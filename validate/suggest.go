package validate

import "basegate/internal/suggest"

// maxMisspelt limits the names for which a suggestion is looked for, in bytes. No field's name is nearly as long.
const maxMisspelt = 32

// suggestField returns the field that an unknown name probably means, or "" if none is within one or two typos.
func suggestField(name []byte) string {
	if len(name) > maxMisspelt {
		return ""
	}
	return suggest.Nearest(string(name), fieldNames, func(field string) int { return min(2, len(field)/3) })
}

// fieldNames iterates over the names of all fields.
func fieldNames(yield func(string) bool) {
	for i := range fields {
		if !yield(fields[i].name) {
			return
		}
	}
}
