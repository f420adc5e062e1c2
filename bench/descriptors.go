package main

import "syscall"

const (
	// wantedDescriptors are enough for the most streams that are held, each of which is two connections.
	wantedDescriptors = 32_768
	// spareDescriptors are what a process has open besides: files, listeners, the gateway's questions to the tokenizer.
	spareDescriptors = 1000
)

// raiseDescriptors asks for as many open files as the work needs, for this process and its children, and tells how many
// there may be. Only root gets past the hard limit.
func raiseDescriptorLimit() int {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return 1024 // what every system has
	}
	for _, most := range []uint64{max(limit.Max, wantedDescriptors), limit.Max} {
		wanted := syscall.Rlimit{Cur: min(most, wantedDescriptors), Max: most}
		if syscall.Setrlimit(syscall.RLIMIT_NOFILE, &wanted) == nil {
			return int(wanted.Cur) //nolint:gosec // at most wantedDescriptors
		}
	}
	return int(min(limit.Cur, wantedDescriptors))
}

// streamsWithin is how many streams one process can pass on with so many descriptors.
func maxStreams(descriptors int) int { return max(descriptors-spareDescriptors, 0) / 2 }
