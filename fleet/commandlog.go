package fleet

import (
	"slices"
	"sync"
	"time"
)

// maxKeptLines limits the lines of a backend's commands that are kept in memory, each of at most maxLineLength bytes.
const maxKeptLines = 100

// CommandLine is a line of what a backend's launch, sleep or stop has printed, or of what the gateway did.
type CommandLine struct {
	Time time.Time
	Text string
}

// commandLog keeps the last lines of a backend's commands, in memory only. It holds no line that was printed while the
// backend was ready, since some versions of vLLM print prompts.
type commandLog struct {
	mu    sync.Mutex
	lines []CommandLine
}

// begin removes what an earlier boot has left.
func (l *commandLog) begin(now time.Time, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines[:0:0], CommandLine{now, text})
}

func (l *commandLog) add(now time.Time, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.lines) == maxKeptLines {
		l.lines = slices.Delete(l.lines, 0, 1)
	}
	l.lines = append(l.lines, CommandLine{now, text})
}

// CommandLog returns the last lines of the commands that boot and stop the backend, oldest first.
func (b *Backend) CommandLog() []CommandLine {
	b.commands.mu.Lock()
	defer b.commands.mu.Unlock()
	return slices.Clone(b.commands.lines)
}
