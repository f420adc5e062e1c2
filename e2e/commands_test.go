//go:build e2e

package e2e_test

import (
	"strings"
	"testing"

	"basegate/mockvllm"
)

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

// lineContaining returns the first line that contains part, or "".
func lineContaining(text, part string) string {
	for line := range strings.Lines(text) {
		if strings.Contains(line, part) {
			return line
		}
	}
	return ""
}
