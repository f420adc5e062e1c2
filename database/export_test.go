package database

// Done returns a channel that is closed when the write is on disk or has failed. Unlike Wait, it does not commit.
func (p *Pending) Done() <-chan struct{} { return p.done }
