package batch

import (
	"fmt"
	"strings"
	"testing"

	"basegate/internal/poll"
	"basegate/proxy"
)

// Lines of megabytes were read before they were counted, each as often as it was tried.
func TestLongLineIsReadOnlyWhenThereIsMemoryForIt(t *testing.T) {
	g := startService(t)
	others := g.memory.Allocate("others")
	for others.Grow(1<<10) == nil {
	}
	const length = 200 << 10
	settings := testSettings
	settings.MaxBodyBytes, settings.MaxFileBytes = 1<<20, 1<<20
	g.Reload(settings)
	body, kind := formOf(t, fmt.Sprintf(`{"custom_id":"0","method":"POST","url":"/v1/completions","body":{"model":"m","prompt":%q}}`, strings.Repeat("x", length)))
	var f fileObject
	g.get(t, &f, "POST", "/v1/files", body, "Content-Type", kind)
	var b struct {
		ID      string
		Status  Status
		Waiting Waiting `json:"waiting_for"`
	}
	g.get(t, &b, "POST", "/v1/batches", batchBody(f.ID))
	poll.Until(t, "the line waits for memory", func() bool {
		g.get(t, &b, "GET", "/v1/batches/"+b.ID, "")
		return b.Waiting.Reason == proxy.WaitsForCapacity
	})
	if sent := g.sent(); len(sent) > 0 {
		t.Errorf("%d lines were sent without memory for them", len(sent))
	}
	serve := g.hold(0)
	defer serve()
	others.Release()
	poll.Until(t, "the line runs", func() bool { return g.serving.Load() == 1 })
	if held := g.memory.Stats().BufferedBytes; held < length {
		t.Errorf("a line of more than %d bytes holds %d", length, held)
	}
	serve()
	poll.Until(t, "the batch has completed", func() bool {
		g.get(t, &b, "GET", "/v1/batches/"+b.ID, "")
		return b.Status == Completed
	})
	if s := g.memory.Stats(); s.BufferedBytes != 0 {
		t.Errorf("after the batch, %d bytes are held", s.BufferedBytes)
	}
}
