//go:build e2e

package e2e_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"basegate/mockvllm"
)

func TestExitCodes(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing.yaml")
	for _, c := range []struct {
		name string
		args []string
		code int
	}{
		{"a command that succeeds", []string{"version"}, 0},
		{"help", []string{"serve", "--help"}, 0},
		{"a missing configuration", []string{"serve", "--config", missing}, 1},
		{"no command", nil, 2},
		{"an unknown command", []string{"sreve"}, 2},
		{"an unknown flag", []string{"serve", "--verbose"}, 2},
		{"a missing argument", []string{"key", "pause"}, 2},
		{"a superfluous argument", []string{"serve", "now"}, 2},
		{"a group without its command", []string{"key"}, 2},
		{"an unknown command of a group", []string{"key", "delete", "x"}, 2},
		{"a missing required flag", []string{"key", "create", "--name", "x"}, 2},
		{"a flag of the wrong type", []string{"key", "create", "--account", "a@b.c", "--name", "x", "--concurrency", "many"}, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			stdout, stderr, code := runCommand(t, c.args...)
			if code != c.code {
				t.Errorf("exit code %d, want %d; stderr: %s", code, c.code, stderr)
			}
			if c.code != 0 && (stdout != "" || !strings.HasPrefix(stderr, "basegate: ")) {
				t.Errorf("want the error on stderr only: stdout %q, stderr %q", stdout, stderr)
			}
		})
	}
}

func TestServeNamesTheAddressItCannotListenOn(t *testing.T) {
	g, mock := startGateway(t, settings{}, mockvllm.Options{})
	busyAddress := strings.TrimPrefix(g.url, "http://")
	other := newEnvironment(t, settings{}, mock.URL())
	text, err := os.ReadFile(other.config)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, other.config, strings.Replace(string(text), `listen: "127.0.0.1:0"`, `listen: "`+busyAddress+`"`, 1))
	_, stderr, code := runCommand(t, "serve", "--config", other.config)
	if code != 1 || !strings.Contains(stderr, busyAddress) {
		t.Errorf("exit code %d, want 1; stderr without the address %s: %s", code, busyAddress, stderr)
	}
}

func TestCheckPassesWithAHealthyBackend(t *testing.T) {
	mock := startMock(t, mockvllm.Options{MaxModelLen: 4096})
	stdout, stderr, code := runCommand(t, "check", "--config", newEnvironment(t, settings{}, mock.URL()).config)
	if code != 0 {
		t.Errorf("exit code %d, want 0: %s%s", code, stdout, stderr)
	}
	for _, want := range []string{"configuration", "database", "m/b0", checkpoint, "4096"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("the table lacks %s:\n%s", want, stdout)
		}
	}
	if strings.Contains(stdout, "failed") {
		t.Errorf("exit code 0, but:\n%s", stdout)
	}
}

func TestCheckFailsIfABackendIsDead(t *testing.T) {
	alive := startMock(t, mockvllm.Options{})
	dead, url := startMockProcess(t)
	dead.cmd.Process.Kill()
	<-dead.exited
	stdout, _, code := runCommand(t, "check", "--config", newEnvironment(t, settings{}, alive.URL(), url).config)
	if code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	if line := lineContaining(stdout, "m/b1"); !strings.Contains(line, "failed") || !strings.Contains(line, "unreachable") {
		t.Errorf("the dead backend's line: %q", line)
	}
	if line := lineContaining(stdout, "m/b0"); !strings.Contains(line, "ok") {
		t.Errorf("the other backend's line: %q", line)
	}
}

func TestCheckFailsIfTheModelIsNotServed(t *testing.T) {
	mock := startMock(t, mockvllm.Options{Models: []string{"somebody/else"}})
	stdout, _, code := runCommand(t, "check", "--config", newEnvironment(t, settings{}, mock.URL()).config)
	if code != 1 || !strings.Contains(stdout, "somebody/else") || !strings.Contains(stdout, checkpoint) {
		t.Errorf("exit code %d, want 1 and both models:\n%s", code, stdout)
	}
}

func TestCheckFailsIfTheBackendKeyIsWrong(t *testing.T) {
	mock := startMock(t, mockvllm.Options{APIKey: "right"})
	stdout, _, code := runCommand(t, "check", "--config", newEnvironment(t, settings{}, mock.URL()).config)
	if code != 1 || !strings.Contains(stdout, "401") {
		t.Errorf("exit code %d, want 1 and the status 401:\n%s", code, stdout)
	}
}

func TestCheckWarnsIfTheVLLMVersionLogsPrompts(t *testing.T) {
	mock := startMock(t, mockvllm.Options{Version: "0.9.2"})
	stdout, _, code := runCommand(t, "check", "--config", newEnvironment(t, settings{}, mock.URL()).config)
	if code != 0 || !strings.Contains(stdout, "logs every prompt") {
		t.Errorf("exit code %d, want 0 and a warning:\n%s", code, stdout)
	}
}

func TestCheckFailsIfTheContextExceedsTheBackends(t *testing.T) {
	mock := startMock(t, mockvllm.Options{MaxModelLen: 4096})
	longer := strings.Replace(modelConfig("m", mock.URL()), "{id: m,", "{id: m, max_model_len: 8192,", 1)
	stdout, _, code := runCommand(t, "check", "--config", newEnvironment(t, settings{models: longer}).config)
	if line := lineContaining(stdout, "4096"); code != 1 || !strings.Contains(line, "failed") || !strings.Contains(line, "8192") {
		t.Errorf("exit code %d, want 1 and a failure with both lengths:\n%s", code, stdout)
	}
}

func TestRepositoryConfigurationIsValid(t *testing.T) {
	config, err := filepath.Abs("../config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	stdout, _, code := runCommand(t, "check", "--config", config) // the exit code may be 1, if Docker is missing
	if code == 2 || !strings.Contains(lineContaining(stdout, "configuration"), "llama-8b, llama-405b, trinity-base") {
		t.Errorf("exit code %d, want 0 or 1 and all models:\n%s", code, stdout)
	}
}

// lineContaining returns the first line that contains part, or "".
func lineContaining(text, part string) string {
	for line := range strings.Lines(text) {
		if strings.Contains(line, part) {
			return line
		}
	}
	return ""
}
