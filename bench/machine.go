package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
)

// machine describes what the figures were taken on.
func machine() string {
	return fmt.Sprintf("%s, %d cores, %s of memory, Linux %s, %s %s/%s", cpuModel(), runtime.NumCPU(), memory(), kernelVersion(),
		runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// processor is the CPU's name as Linux tells it.
func cpuModel() string { return procField("/proc/cpuinfo", "model name", "unknown CPU") }

func memory() string {
	kibibytes, err := strconv.ParseFloat(strings.TrimSuffix(procField("/proc/meminfo", "MemTotal", ""), " kB"), 64)
	if err != nil {
		return "an unknown amount"
	}
	return fmt.Sprintf("%.0f GB", kibibytes*1024/1e9)
}

// kernel is its version without what whoever built it has added.
func kernelVersion() string {
	text, err := os.ReadFile("/proc/sys/kernel/osrelease")
	version, _, _ := strings.Cut(strings.TrimSpace(string(text)), "-")
	if err != nil || version == "" {
		return "of an unknown version"
	}
	return version
}

// fact is the value of the first line that carries the name in one of Linux's files of names and values.
func procField(path, wanted, otherwise string) string {
	text, err := os.ReadFile(path) //nolint:gosec // a constant
	if err != nil {
		return otherwise
	}
	for metric := range strings.Lines(string(text)) {
		if name, value, _ := strings.Cut(metric, ":"); strings.TrimSpace(name) == wanted {
			return strings.TrimSpace(value)
		}
	}
	return otherwise
}
