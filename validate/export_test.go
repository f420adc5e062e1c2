package validate

import "slices"

// FieldNames returns the names of the fields of a completion in their alphabetical order.
func FieldNames() []string {
	return namesOf(completion.fields)
}

func namesOf(ids []fieldID) []string {
	var names []string
	for _, id := range ids {
		names = append(names, fields[id].name)
	}
	slices.Sort(names)
	return names
}

// ChatFieldNames returns the names of the fields of a chat completion.
func ChatFieldNames() []string {
	return namesOf(chat.fields)
}
