package errors

// NotPermitted returns the error for what the key has no right to. message says which right, and who gives it.
func NotPermitted(message string) error { return refuse(PermissionDenied, "", "%s", message) }

// TooManyChildren returns the error for a new key of a key that has made as many as it may have.
func TooManyChildren(limit int) error {
	return refuse(TooManyKeys, "",
		"this key has made %d keys that are neither revoked nor expired, as many as it may have; revoke one with DELETE /v1/keys/{id}", limit).
		with("limit", limit)
}

// NoSuchKey returns the error for a key that does not exist, or that another key has made.
func NoSuchKey(id string) error {
	return refuse(NotFound, "id", "this key has made no key %q; GET /v1/keys lists those that it has made", Clip(id))
}
