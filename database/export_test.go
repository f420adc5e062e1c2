package database

// NotDurable returns s with synchronous = NORMAL, to measure the cost of durability.
func NotDurable(s Settings) Settings {
	s.synchronous = syncNormal
	return s
}

// Done returns a channel that is closed when the write is on disk or has failed. Unlike Wait, it does not commit.
func (p *Pending) Done() <-chan struct{} { return p.done }
