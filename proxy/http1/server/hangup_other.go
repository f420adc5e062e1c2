//go:build !linux

package server

import (
	"errors"
	"syscall"
)

// hangupWatcher is implemented on Linux only; on other systems net/http serves everything.
type hangupWatcher struct{}

func newHangupWatcher(func(error)) (*hangupWatcher, error) { return nil, errors.ErrUnsupported }

func (*hangupWatcher) watch(syscall.RawConn, func()) (uint64, error) { return 0, errors.ErrUnsupported }
func (*hangupWatcher) unwatch(syscall.RawConn, uint64)               {}
func (*hangupWatcher) remove(uint64)                                 {}
func (*hangupWatcher) close()                                        {}
func (*hangupWatcher) wait()                                         {}
