package errors

// NameOfAnother returns the error for a new adapter with the name of a model, or of another's adapter. field is the client's name of
// its name.
func NameOfAnother(field string) error {
	return refuse(AdapterExists, field, "%s: a model, or an adapter with another path, has this name; choose another name", field)
}

// NoSuchAdapter returns the error for the removal of an adapter that does not exist.
func NoSuchAdapter() error {
	return refuse(NotFound, "lora_name", "there is no adapter of this name; GET /v1/models lists them with their parent")
}

// AdapterNotLoaded returns the error for an adapter that no backend can load. said is what the last one said, without the operator's
// paths; the cause may name them, so only the log receives it.
func AdapterNotLoaded(model, said string, cause error) error {
	message := "no backend can load the adapter " + model
	if said != "" {
		message += "; the last one said: " + said
	}
	return refuse(AdapterUnavailable, "", "%s", message).because(cause)
}
