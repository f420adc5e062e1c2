package proxy

import (
	"context"
	"errors"
	"testing"

	"basegate/budget/admission"
)

// A count that has ended copies no further text: a prompt can be an array of a million texts.
func TestEndedCountTakesNoFurtherText(t *testing.T) {
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	queue := admission.NewMemory(1 << 10)
	for name, want := range map[string]error{"its context has ended": context.Canceled, "no memory is left": admission.ErrFull} {
		ctx := t.Context()
		if errors.Is(want, context.Canceled) {
			ctx = cancelled
		}
		x := &exchange{memory: queue.Allocate("key")}
		counter := newTextCounter(ctx, x, true)
		for range 2 {
			if counter.add(100, func() string { t.Errorf("%s: a text was copied", name); return "" }, func(int64) {}) {
				t.Errorf("%s: a further text is taken", name)
			}
		}
		if err := counter.wait(); !errors.Is(err, want) {
			t.Errorf("%s: got error %v, want %v", name, err, want)
		}
		counter.stop()
		if held := queue.Stats().BufferedBytes; held != 0 {
			t.Errorf("%s: %d bytes are still counted", name, held)
		}
	}
}
