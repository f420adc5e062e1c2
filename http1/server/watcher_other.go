//go:build !linux

package server

import (
	"errors"
	"syscall"
)

// watcher is there on Linux alone: elsewhere net/http answers everything.
type watcher struct{}

func newWatcher(func(error)) (*watcher, error) { return nil, errors.ErrUnsupported }

func (*watcher) watch(syscall.RawConn, func()) (uint64, error) { return 0, errors.ErrUnsupported }
func (*watcher) unwatch(syscall.RawConn, uint64)               {}
func (*watcher) forget(uint64)                                 {}
func (*watcher) close()                                        {}
func (*watcher) wait()                                         {}
