package cli_test

import (
	"context"
	"errors"
	"flag"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"basegate/cli"
	"basegate/mockvllm"
)

var update = flag.Bool("update", false, "rewrite the expected outputs in testdata")

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"basegate": func() { os.Exit(cli.Run(context.Background(), os.Args[1:], os.Stdout, os.Stderr)) },
	})
}

// Each file of testdata is a script: commands, and what they must print and return. $MOCK is the address of a mock
// vLLM that serves org/Model-8B.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		UpdateScripts:       *update,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Cmds:                map[string]func(*testscript.TestScript, bool, []string){"exits": exits, "take": take},
		Setup: func(env *testscript.Env) error {
			mock, err := mockvllm.Start(t.Context(), "127.0.0.1:0", mockvllm.Options{Models: []string{"org/Model-8B"}})
			if err != nil {
				return err
			}
			env.Defer(func() { mock.Close() })
			env.Setenv("MOCK", mock.URL())
			env.Setenv("GORACE", "atexit_sleep_ms=0") // the race detector sleeps for a second at each exit otherwise
			return nil
		},
	})
}

// exits CODE PROGRAM ARGUMENT…: the program must end with the code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARGUMENT…")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	code := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		failed, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			ts.Fatalf("%v", err)
		}
		code = failed.ExitCode()
	}
	if code != want {
		ts.Fatalf("exit code %d, want %d", code, want)
	}
}

// take NAME PATTERN: the variable becomes the pattern's group in what the last program printed on stdout.
func take(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: take NAME PATTERN")
	}
	pattern, err := regexp.Compile(args[1])
	ts.Check(err)
	found := pattern.FindStringSubmatch(ts.ReadFile("stdout"))
	if len(found) != 2 {
		ts.Fatalf("stdout has no %s", args[1])
	}
	ts.Setenv(args[0], found[1])
}
