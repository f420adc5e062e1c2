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

func TestReloadAddsAModelAndRefusesABrokenFile(t *testing.T) {
	g, mock := gatewayOf(t, settings{}, mockvllm.Options{})
	second := strings.Replace(small, `"m"`, `"second"`, 1)
	if code := g.complete(second).fault(t).Code; code != "model_not_found" {
		t.Fatalf("before the reload: %s", code)
	}

	g.configure(settings{models: model("m", mock.URL()) + ", " + model("second", mock.URL())})
	g.signal(syscall.SIGHUP)
	g.says(g.stderr, `configuration reloaded`)
	if answer := g.complete(second); answer.status != http.StatusOK {
		t.Fatalf("after the reload: %d %s", answer.status, answer.body)
	}

	g.configure(settings{rest: "nonsense: 1"}, mock.URL())
	g.signal(syscall.SIGHUP)
	g.says(g.stderr, `reload refused.*`+regexp.QuoteMeta(g.config)+`:4: `)
	if answer := g.complete(second); answer.status != http.StatusOK {
		t.Errorf("after the refused reload: %d %s", answer.status, answer.body)
	}
}

func TestReloadTellsWhatOnlyARestartChanges(t *testing.T) {
	g, mock := gatewayOf(t, settings{}, mockvllm.Options{})
	g.configure(settings{rest: "log: {level: debug}"}, mock.URL())
	g.signal(syscall.SIGHUP)
	g.says(g.stderr, `changes only with a restart","setting":"log"`)
}

func TestAReloadDoesNotDisturbARunningStream(t *testing.T) {
	g, mock := gatewayOf(t, settings{}, mockvllm.Options{})
	s := g.heldStream(mock)
	g.signal(syscall.SIGHUP)
	g.says(g.stderr, `configuration reloaded`)
	mock.ClearFaults()
	if rest := s.rest(); !strings.HasSuffix(rest, "data: [DONE]\n\n") {
		t.Errorf("the stream ended with %q", rest)
	}
}

func TestAStreamOutlivesTheRemovalOfItsModel(t *testing.T) {
	g, mock := gatewayOf(t, settings{}, mockvllm.Options{})
	s := g.heldStream(mock)
	g.configure(settings{models: model("another", mock.URL())})
	g.signal(syscall.SIGHUP)
	g.says(g.stderr, `configuration reloaded`)
	if code := g.complete(small).fault(t).Code; code != "model_not_found" {
		t.Errorf("after its removal: %s", code)
	}
	mock.ClearFaults()
	if rest := s.rest(); !strings.HasSuffix(rest, "data: [DONE]\n\n") {
		t.Errorf("the stream ended with %q", rest)
	}
}
