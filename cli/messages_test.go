package cli_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"basegate/cli"
)

// foreign matches words of Go and of libraries, which no user should have to read.
var foreign = regexp.MustCompile(`(?i)strconv|parseint|parsebool|invalid syntax|unmarshal|in the group|arg\(s\)|flag\(s\)|shorthand|` +
	`sql:|context (canceled|deadline)|goroutine|<nil>|%!|sqlite3?\.|syntax error|any token|EOF\b`)

// TestMessages runs the command lines in the golden files, each after the configuration in front of it, if there is one, and
// compares what they print on both streams and their exit codes. The files are to be read aloud.
func TestMessages(t *testing.T) {
	for name, least := range map[string]int{"wrong-commands": 60, "wrong-configurations": 20} {
		t.Run(name, func(t *testing.T) {
			path, err := filepath.Abs("testdata/" + name + ".golden")
			must(t, err)
			golden, err := os.ReadFile(path)
			must(t, err)
			t.Setenv("BASEGATE_CONFIG", "")
			newHome(t)
			got, number := replay(t, string(golden))
			if *update {
				must(t, os.WriteFile(path, []byte(got), 0o600))
				return
			}
			if diff := cmp.Diff(string(golden), got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", path, diff)
			}
			if number < least {
				t.Errorf("%s has %d command lines, want at least %d", path, number, least)
			}
		})
	}
}

// newHome changes to a new folder with a configuration, accounts, keys and the lines of batches.
func newHome(t *testing.T) {
	t.Helper()
	t.Chdir(t.TempDir())
	const line = `{"custom_id":"1","method":"POST","url":"/v1/completions","body":{"model":"m","prompt":"a"}}` + "\n"
	for name, text := range map[string]string{
		"config.yaml": `
server: {listen: "127.0.0.1:0", admin_listen: "127.0.0.1:0"}
database: {path: basegate.db}
models:
  - {id: m, checkpoint: org/Model-8B, backends: [{url: "http://127.0.0.1:1"}]}
  - {id: n, checkpoint: org/N, backends: [{url: "http://127.0.0.1:1"}]}`,
		"lines.jsonl": line,
		"wrong.jsonl": line + strings.NewReplacer(`"1"`, `"2"`, `"a"`, `"a","temprature":1`).Replace(line),
	} {
		must(t, os.WriteFile(name, []byte(text), 0o600))
	}
	for _, args := range []string{
		"account create ada@example.org --monthly-budget 1M", "account create bob@example.org",
		"key create --account ada@example.org --name laptop", "key create --account bob@example.org --name laptop",
		"key create --account ada@example.org --name phone",
	} {
		if code, output := runLine(args); code != 0 {
			t.Fatalf("basegate %s: exit code %d: %s", args, code, output)
		}
	}
}

// runLine runs a command and returns its exit code, and what it prints on both streams.
func runLine(args string) (code int, output string) {
	var out bytes.Buffer
	code = cli.Run(context.Background(), strings.Fields(args), &out, &out)
	return code, out.String()
}

// ids matches the ids of keys and gateways, and the beginnings of secrets.
var ids = regexp.MustCompile(`\b(key_|acs-bm-)(\w{13}|\w{6})\b`)

// replay runs the command lines of a golden file and returns the file with what they print now, and their number. Lines that
// are indented are the configuration of the next command; those that begin with # are headings.
func replay(t *testing.T, golden string) (now string, number int) {
	t.Helper()
	var got, config strings.Builder
	inOutput := false
	for line := range strings.Lines(golden) {
		command, isCommand := strings.CutPrefix(line, "$ basegate")
		switch text, isConfig := strings.CutPrefix(line, "    "); {
		case inOutput:
			inOutput = !strings.HasPrefix(line, "exit ")
			continue
		case isConfig:
			config.WriteString(text)
		case isCommand:
			if config.Len() > 0 {
				must(t, os.WriteFile("config.yaml", []byte(config.String()), 0o600))
				config.Reset()
			}
			code, output := runLine(command)
			if code == 0 {
				t.Errorf("basegate%s succeeds", command)
			}
			if found := foreign.FindString(output); found != "" {
				t.Errorf("basegate%s: the words %q are not the user's, in: %s", strings.TrimSpace(command), found, output)
			}
			number, inOutput = number+1, true
			line = fmt.Sprintf("%s%sexit %d\n", line, ids.ReplaceAllString(output, "$1…"), code)
		}
		got.WriteString(line)
	}
	return got.String(), number
}
