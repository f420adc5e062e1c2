package database

// NotDurable makes commits that a power failure may take back, to measure what durability costs.
func NotDurable(s Settings) Settings {
	s.synchronous = normal
	return s
}
