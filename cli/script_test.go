package cli_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/zap"

	"basegate/cli"
	"basegate/database"
	"basegate/identity"
	"basegate/mockvllm"
)

var update = flag.Bool("update", false, "rewrite the golden files in testdata")

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"basegate": func() { os.Exit(cli.Run(context.Background(), os.Args[1:], os.Stdout, os.Stderr)) },
	})
}

// TestScripts runs the scripts in testdata, which have commands with their expected output and exit code. $MOCK is the
// URL of a mock vLLM that serves org/Model-8B, $MOCK_WITHOUT_TOKENIZER that of another without /tokenize,
// $MOCK_WITHOUT_CONTEXT that of one that does not report the context of its model, and $SLEEPING that of one that sleeps.
// $MOCK_WITH_KEY requires the key vllm-secret, $MOCK_0_9 is vLLM 0.9.2, and $SPEECHLESS is that of a server of another protocol.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		UpdateScripts:       *update,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Cmds:                scriptCommands,
		Condition: func(name string) (bool, error) {
			if name != "packaged" { // this machine has the package, whose configuration commands find
				return false, fmt.Errorf("unknown condition %s", name)
			}
			_, err := os.Stat("/etc/basegate/config.yaml")
			return err == nil, nil
		},
		Setup: func(env *testscript.Env) error {
			for name, faults := range map[string][]mockvllm.Fault{
				"MOCK":                   nil,
				"MOCK_WITH_KEY":          nil,
				"MOCK_0_9":               nil,
				"SLEEPING":               {{Kind: "error", Path: "/is_sleeping", Status: 200, Body: `{"is_sleeping":true}`, Times: -1}},
				"MOCK_WITHOUT_TOKENIZER": {{Kind: "error", Path: "/tokenize", Status: 404, Body: `{"detail":"Not Found"}`, Times: -1}},
				"MOCK_WITHOUT_CONTEXT": {{
					Kind: "error", Path: "/v1/models", Status: 200, Times: -1,
					Body: `{"object":"list","data":[{"id":"org/Model-8B","max_model_len":null}]}`,
				}},
			} {
				o := mockvllm.Options{Models: []string{"org/Model-8B"}}
				switch name {
				case "MOCK_WITH_KEY":
					o.APIKey = "vllm-secret"
				case "MOCK_0_9":
					o.Version = "0.9.2"
				}
				mock, err := mockvllm.Start(t.Context(), "127.0.0.1:0", o)
				if err != nil {
					return err
				}
				env.Defer(func() { mock.Close() })
				for _, f := range faults {
					mock.InjectFault(f)
				}
				env.Setenv(name, mock.URL())
			}
			speechless := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				conn, _, err := http.NewResponseController(w).Hijack()
				if err != nil {
					panic(err)
				}
				io.WriteString(conn, "SSH-2.0-OpenSSH_9.2p1\r\n")
				conn.Close()
			}))
			env.Defer(speechless.Close)
			env.Setenv("SPEECHLESS", speechless.URL)
			env.Setenv("GORACE", "atexit_sleep_ms=0") // the race detector sleeps for a second at each exit otherwise
			return nil
		},
	})
}

var scriptCommands = map[string]func(*testscript.TestScript, bool, []string){
	"exits": exits, "capture": capture, "addrequest": addRequest, "startgateway": startGateway, "complete": complete,
	"child": child,
}

// exits is the command `exits CODE PROGRAM ARGUMENT…`: it runs the program and fails unless its exit code is CODE.
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

// capture is the command `capture NAME PATTERN`: it sets the variable NAME to the pattern's group in the last stdout.
func capture(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: capture NAME PATTERN")
	}
	pattern, err := regexp.Compile(args[1])
	ts.Check(err)
	match := pattern.FindStringSubmatch(ts.ReadFile("stdout"))
	if len(match) != 2 {
		ts.Fatalf("stdout does not match %s, or the pattern has not one group", args[1])
	}
	ts.Setenv(args[0], match[1])
}

// addRequest is the command `addrequest PREFIX TIME MODEL PROMPT COMPLETION STATUS CODE USER`: it adds a request of the
// key with the prefix to the ledger in basegate.db. USER may have Go's escapes.
func addRequest(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 8 {
		ts.Fatalf("usage: addrequest PREFIX TIME MODEL PROMPT COMPLETION STATUS CODE USER")
	}
	ctx := context.Background()
	db, err := database.Open(ctx, database.Settings{Path: ts.MkAbs("basegate.db")}, zap.NewNop())
	ts.Check(err)
	defer db.Close()
	key, err := identity.New(db, zap.NewNop(), identity.Settings{}).Keys.Find(ctx, args[0])
	ts.Check(err)
	at, err := time.Parse(time.RFC3339, args[1])
	ts.Check(err)
	tag, err := strconv.Unquote(`"` + args[7] + `"`)
	ts.Check(err)
	ts.Check(db.WriteExclusive(ctx, func(tx database.Tx) error {
		const text = `
			INSERT INTO requests (request_id, time, key_id, account_id, model, backend, endpoint, workload, user_tag, stream,
				status, code, state, prompt_tokens, completion_tokens, queue_us, first_token_us, total_us)
			SELECT printf('req_%04d', count(*) + 1), $1, $2, $3, $4, 'gpu1', '/v1/completions', 'batch', $5, 1,
				$6, $7, 'settled', $8, $9, 1500, 20000, 1000001
			FROM requests`
		_, err := tx.ExecContext(ctx, text,
			at.UnixMicro(), key.ID, key.AccountID, args[2], tag, args[5], args[6], args[3], args[4])
		return err
	}))
}
