package stream_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"basegate/proxy/stream"
)

var errNoMemory = errors.New("no memory")

// memory counts bytes up to a limit.
type memory struct{ limit, used, peak int64 }

func (m *memory) Grow(bytes int64) error {
	if m.used+bytes > m.limit {
		return errNoMemory
	}
	m.used += bytes
	m.peak = max(m.peak, m.used)
	return nil
}

func (m *memory) Shrink(bytes int64) { m.used -= bytes }

func chunkOf(index int, text string) []byte {
	return fmt.Appendf(nil, `data: {"choices":[{"index":%d,"text":%q,"finish_reason":null}]}`+"\n\n", index, text)
}

// The state of a stream grows with the choices received, not with the largest index.
func TestStateOfALargeIndexIsSmall(t *testing.T) {
	s := stream.NewState(stream.Limits{Choices: 10_000_000}, false, nil)
	defer s.Release()
	s.Add(chunkOf(9_999_999, "a"))
	s.Add(chunkOf(5, "b"))
	if got := s.Choices(); len(got) != 2 || got[0].Index != 9_999_999 || got[1].Index != 5 {
		t.Errorf("got %d choices, want those received", len(got))
	}
	if got := s.Tokens(); got != 2 {
		t.Errorf("got %d tokens, want one for each event", got)
	}
}

// The choices and texts of a stream count as memory; a stream without any left fails.
func TestStateCountsItsMemory(t *testing.T) {
	for name, event := range map[string]func(i int) []byte{
		"many choices": func(i int) []byte { return chunkOf(i, "a") },
		"a long text":  func(int) []byte { return chunkOf(0, strings.Repeat("x", 1000)) },
	} {
		m := &memory{limit: 1 << 20}
		s := stream.NewState(stream.Limits{Choices: 1 << 30, Memory: m}, false, nil)
		status, events := stream.Open, 0
		for ; status == stream.Open && events < 1<<20; events++ {
			_, status = s.Add(event(events))
		}
		if f := s.Failure(); status != stream.Failed || f.Kind != stream.NoMemory || !errors.Is(f.Err, errNoMemory) {
			t.Errorf("%s: got status %v and failure %+v after %d events, want NoMemory", name, status, f, events)
		}
		if s.Release(); m.used != 0 {
			t.Errorf("%s: %d bytes are still counted", name, m.used)
		}
	}
}

// An object cannot have more choices than were asked for, and its choices count as memory: one can be two bytes long.
func TestObjectLimitsItsChoices(t *testing.T) {
	body := []byte(`{"choices":[` + strings.Repeat("{},", 99_999) + `{}]}`)
	o := stream.NewObject(stream.Limits{Choices: 99_999})
	if err := o.Parse(body); err == nil {
		t.Error("an object with one choice too many is parsed")
	}
	m := &memory{limit: 1 << 20}
	o = stream.NewObject(stream.Limits{Choices: 100_000, Memory: m})
	if err := o.Parse(body); !errors.Is(err, errNoMemory) {
		t.Error("100,000 choices fit in 1 MiB, want errNoMemory")
	}
	if o.Release(); m.used != 0 {
		t.Errorf("%d bytes are still counted", m.used)
	}
	m.limit = 1 << 30
	o = stream.NewObject(stream.Limits{Choices: 100_000, Memory: m})
	if err := o.Parse(body); err != nil || len(o.FinishReasons()) != 100_000 || m.peak < 8<<20 {
		t.Errorf("got error %v, %d choices and %d bytes counted, want 100,000 choices of 112 bytes", err, len(o.FinishReasons()), m.peak)
	}
	if o.Release(); m.used != 0 {
		t.Errorf("%d bytes are still counted", m.used)
	}
}

func TestEventOverTheLimitIsRefused(t *testing.T) {
	m := &memory{limit: 1 << 30}
	r := stream.NewReader(strings.NewReader("data: "+strings.Repeat("x", 1<<20)+"\n\n"), stream.Limits{EventBytes: 100 << 10, Memory: m})
	if _, err := r.Next(); !errors.Is(err, stream.ErrTooLarge) {
		t.Errorf("got error %v, want ErrTooLarge", err)
	}
	if r.Release(); m.used != 0 || m.peak < 64<<10 || m.peak > 400<<10 {
		t.Errorf("%d bytes are still counted, peak %d, want 0 and about the limit", m.used, m.peak)
	}
}

func TestCommentsAreNotDataEvents(t *testing.T) {
	s := stream.NewState(stream.Limits{Choices: 1}, false, nil)
	defer s.Release()
	s.Add([]byte(": ping\n\n: ping\n\n"))
	if got := s.DataEvents(); got != 0 {
		t.Errorf("two comments: got %d data events, want 0", got)
	}
	if _, status := s.Add(chunkOf(0, "a")); status != stream.Open || s.DataEvents() != 1 {
		t.Errorf("got status %v and %d data events, want 1", status, s.DataEvents())
	}
}
