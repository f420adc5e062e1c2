package main

import "syscall"

const (
	// wantedDescriptors suffice for 10,000 held streams, each of which uses two connections of a proxy.
	wantedDescriptors = 32_768
	// acceptReserve is with how many free descriptors the gateway stops accepting connections, but at most half of all.
	acceptReserve = 1024
	// spareDescriptors are a process's other descriptors: files, listeners, the gateway's requests to /tokenize.
	spareDescriptors = 476
)

// raiseDescriptorLimit raises the limit of open files for this process and its children, if possible to
// wantedDescriptors, and returns the limit. Only root may exceed the hard limit.
func raiseDescriptorLimit() int {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return 1024 // a limit that every system allows
	}
	for _, most := range []uint64{max(limit.Max, wantedDescriptors), limit.Max} {
		wanted := syscall.Rlimit{Cur: min(most, wantedDescriptors), Max: most}
		if syscall.Setrlimit(syscall.RLIMIT_NOFILE, &wanted) == nil {
			return int(wanted.Cur) //nolint:gosec // at most wantedDescriptors
		}
	}
	return int(min(limit.Cur, wantedDescriptors))
}

// maxStreams returns how many streams one process can proxy with this many descriptors.
func maxStreams(descriptors int) int {
	return max(descriptors-min(acceptReserve, descriptors/2)-spareDescriptors, 0) / 2
}
