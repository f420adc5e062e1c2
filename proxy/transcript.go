package proxy

import (
	"bytes"
	"errors"
	"net/http"

	"basegate/breaker"
)

var (
	errNotEvent = errors.New("the backend sent something else than a stream of events")
	errNoFinish = errors.New("the stream ended without a finish for every choice")
	errNoUsage  = errors.New("the stream ended without the usage that was asked for")
)

// ending is how a stream stands after some of its events.
type ending uint8

const (
	// endNone: more is to come.
	endNone ending = iota
	// endDone: [DONE] has come, and every choice has finished.
	endDone
	// endFailed: an error has come, or [DONE] before its time; the transcript's verdict says which.
	endFailed
)

// transcript follows a stream: which choices have finished, what vLLM says it cost, and whether it is still sound.
type transcript struct {
	total     int                    // how many choices the whole answer has
	passUsage bool                   // the client asked for the usage event
	echoed    func(choice int) int64 // tokens of the prompt in each; nil: none
	choices   []delivered            // those that events have come of: a request can ask for millions

	began      bool // an event that the client gets has come
	unfinished int
	tokens     int64 // that have gone to the client at the least
	usage      usage
	verdict    breaker.Outcome // of endFailed
	event      recurring
	scratch    []byte
}

func newTranscript(choices int, passUsage bool) *transcript {
	return &transcript{total: choices, passUsage: passUsage, unfinished: choices}
}

// take reads a batch of whole events and returns the bytes to pass on: the batch itself but for events that are left
// out. Nothing behind the end is passed on, and [DONE] itself is not among them.
func (t *transcript) take(batch []byte) ([]byte, ending) {
	rest := batch
	for len(rest) > 0 {
		var event []byte
		before := len(batch) - len(rest)
		event, rest = cut(rest)
		pass, end := t.read(event)
		if end != endNone {
			return batch[:before], end
		}
		if !pass {
			batch = t.without(batch, before, before+len(event))
			rest = batch[before:]
		}
	}
	return batch, endNone
}

// without is batch less the bytes from start to end. The batch belongs to the reader of events, so the bytes behind
// are moved in a copy.
func (t *transcript) without(batch []byte, start, end int) []byte {
	if end == len(batch) {
		return batch[:start]
	}
	t.scratch = append(append(t.scratch[:0], batch[:start]...), batch[end:]...)
	return t.scratch
}

var done = []byte("[DONE]")

// read judges one event: whether it is passed on, and whether it ends the stream.
func (t *transcript) read(event []byte) (pass bool, end ending) {
	payload := data(event)
	if len(payload) == 0 {
		if !withoutData(event) {
			return false, t.fail(breaker.Outcome{Class: breaker.Malformed, Status: http.StatusOK, Cause: errNotEvent})
		}
		return t.began, endNone
	}
	if bytes.Equal(payload, done) {
		return false, t.atDone()
	}
	e := &t.event
	if err := e.read(payload); err != nil {
		return false, t.fail(breaker.Outcome{Class: breaker.Malformed, Status: http.StatusOK, Cause: err})
	}
	switch {
	case e.failed():
		return false, t.fail(breaker.Classify(http.StatusOK, payload))
	case len(e.choices) == 0 && e.cost().known:
		t.usage = e.cost()
		return t.passUsage, endNone
	case !t.takeChoices(e.choices):
		return false, t.fail(breaker.Outcome{Class: breaker.Aborted, Status: http.StatusOK})
	default:
		t.began = true
		return true, endNone
	}
}

// takeChoices notes what an event brings of each choice, and which it finishes. A choice that vLLM aborted is no finish:
// then it returns false.
func (t *transcript) takeChoices(choices []choice) bool {
	for i := range choices {
		if choices[i].aborted() {
			return false
		}
	}
	for i := range choices {
		c := &choices[i]
		if c.index < 0 || c.index >= t.total {
			continue
		}
		d := t.choice(c.index)
		before := d.least()
		d.take(c)
		t.tokens += d.least() - before
		if c.finished() && !d.finished {
			d.finished = true
			t.unfinished--
		}
	}
	return true
}

// choice is what has come of one choice.
func (t *transcript) choice(index int) *delivered {
	for next := len(t.choices); next <= index; next++ {
		var d delivered
		if t.echoed != nil {
			d.echoed = t.echoed(next)
		}
		t.choices = append(t.choices, d)
	}
	return &t.choices[index]
}

func (t *transcript) fail(v breaker.Outcome) ending {
	t.verdict = v
	return endFailed
}

// atDone judges [DONE], which vLLM also sends behind an error.
func (t *transcript) atDone() ending {
	if t.unfinished > 0 {
		return t.fail(breaker.Outcome{Class: breaker.Truncated, Status: http.StatusOK, Cause: errNoFinish})
	}
	return endDone
}

// atEnd judges a stream that ended without [DONE]: it is whole when every choice has finished and nothing that the
// client asked for is missing.
func (t *transcript) atEnd() ending {
	if t.passUsage && !t.usage.known {
		return t.fail(breaker.Outcome{Class: breaker.Truncated, Status: http.StatusOK, Cause: errNoUsage})
	}
	return t.atDone()
}
