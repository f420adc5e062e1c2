//go:build e2e

package e2e_test

import (
	"net/http"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"basegate/mockvllm"
)

func TestReloadAddsAModelAndRejectsAnInvalidFile(t *testing.T) {
	g, mock := startGateway(t, settings{}, mockvllm.Options{})
	second := strings.Replace(smallRequest, `"m"`, `"second"`, 1)
	if code := g.complete(second).apiError(t).Code; code != "model_not_found" {
		t.Fatalf("before the reload: got the code %q, want model_not_found", code)
	}

	g.writeConfig(settings{models: modelConfig("m", mock.URL()) + ", " + modelConfig("second", mock.URL())})
	g.signal(syscall.SIGHUP)
	g.waitForOutput(g.stderr, `configuration reloaded`)
	if got := g.complete(second); got.status != http.StatusOK {
		t.Fatalf("after the reload: got %d %s, want 200", got.status, got.body)
	}

	g.writeConfig(settings{extra: "nonsense: 1"}, mock.URL())
	g.signal(syscall.SIGHUP)
	g.waitForOutput(g.stderr, `reload refused.*`+regexp.QuoteMeta(g.config)+`:4: `)
	if got := g.complete(second); got.status != http.StatusOK {
		t.Errorf("after the rejected reload: got %d %s, want 200", got.status, got.body)
	}
}

func TestReloadReportsSettingsThatNeedARestart(t *testing.T) {
	g, mock := startGateway(t, settings{}, mockvllm.Options{})
	g.writeConfig(settings{extra: "log: {level: debug}"}, mock.URL())
	g.signal(syscall.SIGHUP)
	g.waitForOutput(g.stderr, `changes only with a restart","setting":"log"`)
}

func TestReloadDoesNotInterruptARunningStream(t *testing.T) {
	g, mock := startGateway(t, settings{}, mockvllm.Options{})
	s := g.heldStream(mock)
	g.signal(syscall.SIGHUP)
	g.waitForOutput(g.stderr, `configuration reloaded`)
	mock.ClearFaults()
	if rest := s.readAll(); !strings.HasSuffix(rest, "data: [DONE]\n\n") {
		t.Errorf("the stream ended with %q", rest)
	}
}

func TestStreamSurvivesTheRemovalOfItsModel(t *testing.T) {
	g, mock := startGateway(t, settings{}, mockvllm.Options{})
	s := g.heldStream(mock)
	g.writeConfig(settings{models: modelConfig("another", mock.URL())})
	g.signal(syscall.SIGHUP)
	g.waitForOutput(g.stderr, `configuration reloaded`)
	if code := g.complete(smallRequest).apiError(t).Code; code != "model_not_found" {
		t.Errorf("after the removal: got the code %q, want model_not_found", code)
	}
	mock.ClearFaults()
	if rest := s.readAll(); !strings.HasSuffix(rest, "data: [DONE]\n\n") {
		t.Errorf("the stream ended with %q", rest)
	}
}
