package main

import (
	"errors"
	"fmt"
	"os"
	"time"
)

const (
	flushes   = 200
	flushSize = 4 << 10 // bytes, about what a row and its place in the index take
)

// flushTime is the median time that this machine takes to write a little and have it on disk, which is what the ledger
// promises before an answer's last byte. It writes over what is there, as SQLite does in its log: to make a file longer
// takes longer, and would make the promise look dearer than it is.
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
