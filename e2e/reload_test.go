//go:build e2e

package e2e_test

import (
	"strings"
	"syscall"
	"testing"

	"basegate/mockvllm"
)

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
