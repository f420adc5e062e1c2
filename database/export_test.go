package database

// Done returns a channel that is closed when the write is on disk or has failed. Unlike Wait, it does not commit.
func (p *Pending) Done() <-chan struct{} { return p.done }

// MakeTemporary makes the folder of a copy that a backup makes.
func MakeTemporary(folder string) (dir string, remove func() error, err error) {
	return makeTemporary(folder)
}
