package database_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"basegate/database"
)

// Environment variables that make the test binary run as a second process, which writes notes and prints the id of each
// when it is on disk.
const (
	childPath  = "DATABASE_TEST_PATH"
	childFirst = "DATABASE_TEST_FIRST" // the first id
	childCount = "DATABASE_TEST_COUNT"
	childFlush = "DATABASE_TEST_FLUSH" // Settings.Flush
)

func child() int {
	if err := writeNotes(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func writeNotes(ctx context.Context) error {
	first, _ := strconv.Atoi(os.Getenv(childFirst))
	n, _ := strconv.Atoi(os.Getenv(childCount))
	s := database.Settings{Path: os.Getenv(childPath), LockWait: 10 * time.Second}
	s.Flush, _ = time.ParseDuration(os.Getenv(childFlush))
	db, err := database.Open(ctx, s, zap.NewNop())
	if err != nil {
		return err
	}
	if err := db.WriteExclusive(ctx, execute("CREATE TABLE IF NOT EXISTS notes (id BIGINT PRIMARY KEY, text TEXT NOT NULL)")); err != nil {
		return err
	}
	for id := first; id < first+n; id++ {
		if err := db.WriteGrouped(ctx, note(id)); err != nil {
			return err
		}
		fmt.Println(id)
	}
	return db.Close()
}

func childCommand(t *testing.T, path string, first, n int) *exec.Cmd {
	t.Helper()
	program, err := os.Executable()
	must(t, err)
	c := exec.CommandContext(t.Context(), program)
	c.Env = append(os.Environ(), childPath+"="+path, childFirst+"="+strconv.Itoa(first), childCount+"="+strconv.Itoa(n))
	c.Stderr = os.Stderr
	return c
}

func TestConcurrentProcessesCreateAndShareADatabase(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "base.db")
	var all sync.WaitGroup
	for i := range 3 {
		c := childCommand(t, path, i*1000, 50)
		all.Go(func() {
			if err := c.Run(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := count(t, open(t, path), "true"); n != 150 {
		t.Errorf("%d notes, want 150", n)
	}
}

func TestConfirmedWritesSurviveAKill(t *testing.T) {
	for _, flush := range []time.Duration{0, time.Hour} {
		t.Run(fmt.Sprintf("flush %v", flush), func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "base.db")
			c := childCommand(t, path, 0, 1_000_000)
			c.Env = append(c.Env, childFlush+"="+flush.String())
			out, err := c.StdoutPipe()
			must(t, err)
			must(t, c.Start())
			confirmed := 0
			for lines := bufio.NewScanner(out); lines.Scan(); confirmed++ {
				if confirmed == 50 {
					must(t, c.Process.Kill())
				}
			}
			_ = c.Wait() // the error is "signal: killed"
			db := open(t, path)
			if n := count(t, db, fmt.Sprintf("id < %d", confirmed)); confirmed < 50 || n != confirmed {
				t.Errorf("%d notes on disk, %d were confirmed", n, confirmed)
			}
			must(t, db.WriteGrouped(t.Context(), note(-1)))
		})
	}
}
