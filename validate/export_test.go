package validate

// FieldNames returns the names of the fields of a completion, in the order of the contract.
func FieldNames() []string {
	var all []string
	for _, f := range fields[:fieldCount] {
		all = append(all, f.name)
	}
	return all
}

// ChatFieldNames returns the names of the fields of a chat completion.
func ChatFieldNames() []string {
	names := make([]string, len(chatFields))
	for i, id := range chatFields {
		names[i] = fields[id].name
	}
	return names
}
