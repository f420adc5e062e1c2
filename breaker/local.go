package breaker

import (
	"errors"
	"net"
	"slices"
	"strings"
	"syscall"
)

// localErrors are the errors of system calls that fail for lack of something of this process or this machine.
var localErrors = []syscall.Errno{
	syscall.EMFILE,        // the process has too many open files
	syscall.ENFILE,        // the machine has too many open files
	syscall.ENOMEM,        // no memory
	syscall.ENOBUFS,       // no memory for a socket
	syscall.EADDRNOTAVAIL, // no local port is free
}

// IsLocalFault reports whether a connection failed for lack of something of this side, which says nothing about the backend.
func IsLocalFault(err error) bool {
	if slices.ContainsFunc(localErrors, func(local syscall.Errno) bool { return errors.Is(err, local) }) {
		return true
	}
	lookup, ok := errors.AsType[*net.DNSError](err)
	return ok && slices.ContainsFunc(localErrors, func(local syscall.Errno) bool { // it has the cause as text only
		return strings.Contains(lookup.Err, local.Error())
	})
}
