package cli_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"basegate/cli"
	"basegate/database"
)

// onTerminal runs a command whose stdout and stderr are a terminal, and returns what it shows.
func onTerminal(t *testing.T, args ...string) string {
	t.Helper()
	controller, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no pseudo-terminals:", err)
	}
	defer controller.Close()
	must(t, unix.IoctlSetPointerInt(int(controller.Fd()), unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(int(controller.Fd()), unix.TIOCGPTN)
	must(t, err)
	terminal, err := os.OpenFile(fmt.Sprint("/dev/pts/", number), os.O_RDWR|unix.O_NOCTTY, 0)
	must(t, err)
	shown := make(chan string)
	go func() {
		text, err := io.ReadAll(controller)
		if err != nil && !errors.Is(err, syscall.EIO) { // the end of a terminal
			t.Error(err)
		}
		shown <- strings.ReplaceAll(string(text), "\r\n", "\n")
	}()
	code := cli.Run(context.Background(), args, terminal, terminal)
	must(t, terminal.Close())
	text := <-shown
	if code != 0 {
		t.Fatalf("basegate %v: exit code %d: %s", args, code, text)
	}
	return text
}

func TestBatchesAreShownForPeopleOnATerminal(t *testing.T) {
	newHome(t)
	code, output := runLine("batch create lines.jsonl --key phone")
	if code != 0 {
		t.Fatal(output)
	}
	lines := strings.Split(strings.TrimSpace(output), "\n")
	id := lines[len(lines)-1]
	shown := onTerminal(t, "batch", "show", id)
	for _, want := range []string{"batch     " + id + "\n", "state     validating\n", "lines     0 of 0 have ended, 0 of them with an error\n", "endpoint  /v1/completions\n"} {
		if !strings.Contains(shown, want) {
			t.Errorf("show lacks %q:\n%s", want, shown)
		}
	}
	if shown := onTerminal(t, "batch", "show", id, "--json"); !strings.Contains(shown, `"status": "validating"`) || strings.Contains(shown, "have ended") {
		t.Errorf("show --json prints:\n%s", shown)
	}

	db, err := database.Open(t.Context(), database.Settings{Path: "basegate.db"}, zap.NewNop())
	must(t, err)
	must(t, db.WriteExclusive(t.Context(), func(tx database.Tx) error {
		_, err := tx.ExecContext(t.Context(), `UPDATE batches SET status = 'completed', total = 3, completed = 2, failed = 1`)
		return err
	}))
	must(t, db.Close())
	shown = onTerminal(t, "batch", "wait", id)
	for _, want := range []string{"[##############################] completed 3 of 3", "lines     3 of 3 have ended, 1 of them with an error\n"} {
		if !strings.Contains(shown, want) {
			t.Errorf("wait lacks %q:\n%s", want, shown)
		}
	}
	if shown := onTerminal(t, "batch", "wait", id, "--json"); !strings.Contains(shown, `"status": "completed"`) || strings.Contains(shown, "have ended") {
		t.Errorf("wait --json prints:\n%s", shown)
	}
}
