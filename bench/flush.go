package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

const (
	flushes   = 200
	flushSize = 4 << 10 // bytes; about a row and its index entries
)

// diskFlush is what one flush of the disk takes.
type diskFlush struct{ wall, cpu time.Duration }

// lower returns the lower wall time and the lower CPU time of two measurements.
func (f diskFlush) lower(other diskFlush) diskFlush {
	return diskFlush{wall: min(f.wall, other.wall), cpu: min(f.cpu, other.cpu)}
}

// measureFlush measures a small write with fsync on this machine, which the ledger makes before a response's last byte: the
// median of its wall times, and the mean of its CPU time, while this process does nothing else. It overwrites existing bytes,
// as SQLite does in its WAL: extending a file takes longer, and would overstate the cost of the ledger.
func measureFlush() (f diskFlush, err error) {
	file, err := os.CreateTemp("", "basegate-flush-")
	if err != nil {
		return f, fmt.Errorf("time a flush: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close(), os.Remove(file.Name())) }()
	if err := writeAndSync(file, make([]byte, flushes*flushSize), 0); err != nil {
		return f, err
	}
	before, err := ownCPU()
	if err != nil {
		return f, err
	}
	var each []time.Duration
	for i := range flushes {
		began := time.Now()
		if err := writeAndSync(file, make([]byte, flushSize), int64(i*flushSize)); err != nil {
			return f, err
		}
		each = append(each, time.Since(began))
	}
	after, err := ownCPU()
	return diskFlush{wall: median(each), cpu: (after - before) / flushes}, err
}

// ownCPU returns the CPU time that this process has taken.
func ownCPU() (time.Duration, error) {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return 0, fmt.Errorf("read the CPU time: %w", err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano()), nil
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
