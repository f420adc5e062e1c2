package database

// MakeTemporary makes the folder of a copy that a backup makes.
func MakeTemporary(folder string) (dir string, remove func() error, err error) {
	return makeTemporary(folder)
}
