package database

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Disk is the space of a file system, in bytes.
type Disk struct {
	Size      uint64
	Free      uint64
	Available uint64 // free without what is reserved for root
}

// ReadDisk returns the space of the file system that holds path.
func ReadDisk(path string) (Disk, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return Disk{}, fmt.Errorf("read free space: %w", err)
	}
	block := uint64(s.Bsize)
	return Disk{s.Blocks * block, s.Bfree * block, s.Bavail * block}, nil
}
