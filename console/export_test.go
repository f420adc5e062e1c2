package console

// Routes lists the patterns of all routes.
func Routes() []string {
	var all []string
	for _, r := range routes {
		all = append(all, r.pattern)
	}
	return all
}
