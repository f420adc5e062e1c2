package main

import (
	"errors"
	"fmt"
	"os"
	"time"
)

const (
	flushes   = 200
	flushSize = 4 << 10 // bytes; about a row and its index entries
)

// flushTime returns the median time of a small write with fsync on this machine, which the ledger makes before a
// response's last byte. It overwrites existing bytes, as SQLite does in its WAL: extending a file takes longer, and
// would overstate the cost of the ledger.
func flushTime() (took time.Duration, err error) {
	file, err := os.CreateTemp("", "basegate-flush-")
	if err != nil {
		return 0, fmt.Errorf("time a flush: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close(), os.Remove(file.Name())) }()
	if err := writeAndSync(file, make([]byte, flushes*flushSize), 0); err != nil {
		return 0, err
	}
	var each []time.Duration
	for i := range flushes {
		began := time.Now()
		if err := writeAndSync(file, make([]byte, flushSize), int64(i*flushSize)); err != nil {
			return 0, err
		}
		each = append(each, time.Since(began))
	}
	return median(each), nil
}

func writeAndSync(file *os.File, text []byte, at int64) error {
	if _, err := file.WriteAt(text, at); err != nil {
		return fmt.Errorf("time a flush: %w", err)
	}
	if err := file.Sync(); err != nil {
		return fmt.Errorf("time a flush: %w", err)
	}
	return nil
}
