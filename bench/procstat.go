package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// clockTick is the unit of CPU time in /proc/PID/stat, the same on every Linux that Go supports.
const clockTick = 10 * time.Millisecond

var errStat = errors.New("not in the format of proc(5)")

// stat holds the fields of /proc/PID/stat in use.
type stat struct {
	parent int
	cpu    time.Duration // user and system
}

// parseStat parses /proc/PID/stat. The second field is the program's name in parentheses, which may contain spaces and
// parentheses.
func parseStat(text string) (s stat, err error) {
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	const parent, user, system = 1, 11, 12
	if len(fields) <= system {
		return s, errStat
	}
	if s.parent, err = strconv.Atoi(fields[parent]); err != nil {
		return s, fmt.Errorf("%w: %w", errStat, err)
	}
	for _, i := range []int{user, system} {
		ticks, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return s, fmt.Errorf("%w: %w", errStat, err)
		}
		s.cpu += time.Duration(ticks) * clockTick
	}
	return s, nil
}

// processTree returns the process and its descendants by id. Processes that exit meanwhile are left out.
func (p *process) processTree() (map[int]stat, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes (needs Linux): %w", err)
	}
	all := map[int]stat{}
	for _, entry := range entries {
		id, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue // not a process
		}
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", id))
		if err != nil {
			continue // it has exited
		}
		if all[id], err = parseStat(string(text)); err != nil {
			return nil, fmt.Errorf("read CPU time of %d: %w", id, err)
		}
	}
	members := descendants(all, p.command.Process.Pid)
	if len(members) == 0 {
		return nil, fmt.Errorf("%s has exited: %w", p.name, os.ErrProcessDone)
	}
	return members, nil
}

// descendants returns root and all its direct and indirect children.
func descendants(all map[int]stat, root int) map[int]stat {
	members := map[int]stat{}
	for id, s := range all {
		for above, seen := id, []int(nil); above != 0 && !slices.Contains(seen, above); above = all[above].parent {
			if above == root {
				members[id] = s
				break
			}
			seen = append(seen, above)
		}
	}
	return members
}

// cpu returns the CPU time that the process and its descendants have used.
func (p *process) cpu() (time.Duration, error) {
	members, err := p.processTree()
	total := time.Duration(0)
	for _, s := range members {
		total += s.cpu
	}
	return total, err
}

// residentMemory returns the resident memory of the process and its descendants, in bytes. Shared pages count for
// each.
func (p *process) residentMemory() (int64, error) {
	members, err := p.processTree()
	if err != nil {
		return 0, err
	}
	total := int64(0)
	for id := range members {
		path := fmt.Sprintf("/proc/%d/statm", id)
		text, err := os.ReadFile(path) //nolint:gosec // of a child process
		if err != nil {
			return 0, fmt.Errorf("read memory: %w", err)
		}
		fields := strings.Fields(string(text))
		if len(fields) < 2 {
			return 0, fmt.Errorf("read %s: %w", path, errStat)
		}
		pages, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read %s: %w", path, err)
		}
		total += pages * int64(os.Getpagesize())
	}
	return total, nil
}
