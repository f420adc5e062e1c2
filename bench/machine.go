package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
)

// machine describes the machine of the measurements.
func machine() string {
	return fmt.Sprintf("%s, %d cores, %s of memory, Linux %s, %s %s/%s", cpuModel(), runtime.NumCPU(), memory(), kernelVersion(),
		runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// cpuModel returns the CPU's model name.
func cpuModel() string { return procField("/proc/cpuinfo", "model name", "unknown CPU") }

func memory() string {
	kibibytes, err := strconv.ParseFloat(strings.TrimSuffix(procField("/proc/meminfo", "MemTotal", ""), " kB"), 64)
	if err != nil {
		return "an unknown amount"
	}
	return fmt.Sprintf("%.0f GB", kibibytes*1024/1e9)
}

// kernelVersion returns the kernel's version without the distribution's suffix.
func kernelVersion() string {
	text, err := os.ReadFile("/proc/sys/kernel/osrelease")
	version, _, _ := strings.Cut(strings.TrimSpace(string(text)), "-")
	if err != nil || version == "" {
		return "of an unknown version"
	}
	return version
}

// procField returns the value of the first line "name: value" with this name in a file of /proc.
func procField(path, wanted, otherwise string) string {
	text, err := os.ReadFile(path) //nolint:gosec // a constant
	if err != nil {
		return otherwise
	}
	for line := range strings.Lines(string(text)) {
		if name, value, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == wanted {
			return strings.TrimSpace(value)
		}
	}
	return otherwise
}
