package stream_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"basegate/internal/ssetest"
	"basegate/proxy/stream"
)

// pooledSource is a source that is read like the bodies of http1/client.
type pooledSource struct{ io.Reader }

func (p pooledSource) ReadPooled(get func() []byte, put func([]byte)) (buffer []byte, n int, err error) {
	buffer = get()
	n, err = p.Read(buffer)
	if n == 0 {
		put(buffer)
		return nil, 0, err
	}
	return buffer, n, err
}

// relay reads a stream to its end, as a proxy does, and returns the bytes to pass on.
func relay(source io.Reader, choices int, passUsage bool) (passed string, state *stream.State, status stream.Status, err error) {
	limits := stream.Limits{Choices: choices}
	reader := stream.NewReader(source, limits)
	defer reader.Release()
	state = stream.NewState(limits, passUsage, nil)
	for {
		batch, err := reader.Next()
		if errors.Is(err, io.EOF) || errors.Is(err, stream.ErrMidEvent) {
			return passed, state, state.End(), nil
		}
		if err != nil {
			return passed, state, status, err
		}
		events, status := state.Add(batch)
		passed += string(events)
		if status != stream.Open {
			return passed, state, status, nil
		}
	}
}

// The events with data are passed on unchanged, except for the usage event that the client did not ask for, and nothing else
// is, however the network splits the stream: in two at every offset, byte by byte, and not at all. [DONE] is left to the caller.
func TestStreamIsUnchangedHoweverItIsSplit(t *testing.T) {
	for _, s := range ssetest.Streams() {
		t.Run(s.Name, func(t *testing.T) {
			sent := s.Text()
			check := func(split string, source func() io.Reader) {
				t.Helper()
				for passUsage, want := range map[bool]string{true: s.Passed(true), false: s.Passed(false)} {
					want = strings.TrimSuffix(want, ssetest.Done)
					for kind, r := range map[string]io.Reader{"plain": source(), "pooled": pooledSource{source()}} {
						got, state, status, err := relay(r, s.Choices, passUsage)
						if got != want {
							t.Fatalf("%s, %s source, usage %t (-want +got):\n%s", split, kind, passUsage, cmp.Diff(want, got))
						}
						if status != stream.Complete || err != nil || !state.Usage(1).Known {
							t.Fatalf("%s, %s source, usage %t: status %d, usage %+v, %v", split, kind, passUsage, status, state.Usage(1), err)
						}
					}
				}
			}
			for at := range len(sent) + 1 {
				check(fmt.Sprint("split at ", at), func() io.Reader {
					return io.MultiReader(strings.NewReader(sent[:at]), strings.NewReader(sent[at:]))
				})
			}
			check("byte by byte", func() io.Reader { return iotest.OneByteReader(strings.NewReader(sent)) })
			check("not split", func() io.Reader { return strings.NewReader(sent) })
		})
	}
}

// If a stream is cut off at any offset, the events that are whole are passed on. The stream is complete from the usage
// event on, which the client asked for; every choice has finished before it.
func TestStreamCutOffAtAnyOffsetPassesWholeEvents(t *testing.T) {
	for _, s := range ssetest.Streams() {
		t.Run(s.Name, func(t *testing.T) {
			sent := s.Text()
			for at := range len(sent) {
				whole, want, end := "", stream.Failed, 0
				for _, e := range s.Events {
					if end += len(e); end > at {
						break
					}
					whole += ssetest.WithoutComments(e)
					if ssetest.IsUsage(e) {
						want = stream.Complete
					}
				}
				got, _, status, err := relay(strings.NewReader(sent[:at]), s.Choices, true)
				if got != whole || err != nil {
					t.Fatalf("cut off at %d: %v (-want +got):\n%s", at, err, cmp.Diff(whole, got))
				}
				if status != want {
					t.Fatalf("cut off at %d: status %d, want %d", at, status, want)
				}
			}
		})
	}
}

// An event that is an object without choices is no chunk: it is an error of vLLM's in a shape of its own, or nonsense. If
// it were passed on, a client would take it for the beginning of a completion.
func TestEventWithoutChoicesFailsTheStream(t *testing.T) {
	const chunk = `data: {"choices":[{"index":0,"text":"a","finish_reason":"length"}]}` + "\n\n"
	for payload, kind := range map[string]stream.FailureKind{
		`{"detail":"Not Found"}`:           stream.ErrorEvent,
		`{"object":"error","message":"x"}`: stream.ErrorEvent,
		`{"message":"x","code":500}`:       stream.Malformed,
		`{}`:                               stream.Malformed,
		`{"choices":null}`:                 stream.Malformed,
		`{"choices":[5]}`:                  stream.Malformed,
		`{"choices":[{"index":1}]}`:        stream.Malformed,
		`{"choices":[{"index":-1}]}`:       stream.Malformed,
		`{"choices":[{"index":0.5}]}`:      stream.Malformed,
		`{"choices":[{"index":"0"}]}`:      stream.Malformed,
		`{"choices":{},"usage":{"prompt_tokens":1,"completion_tokens":1}}`: stream.Malformed,
		`{"choices":7,"usage":{"prompt_tokens":1,"completion_tokens":1}}`:  stream.Malformed,
		`{"choices":null,"usage":null}`:                                    stream.Malformed,
		`{"usage":null}`:                                                   stream.Malformed,
	} {
		for _, before := range []string{"", chunk} {
			s := stream.NewState(stream.Limits{Choices: 1}, false, nil)
			pass, status := s.Add([]byte(before + "data: " + payload + "\n\n"))
			if status != stream.Failed || s.Failure().Kind != kind || string(pass) != before {
				t.Errorf("%s after %q: passed on %q, status %d, failure %+v, want kind %d", payload, before, pass, status, s.Failure(), kind)
			}
			s.Release()
		}
	}
}

// The event of the usage is left out for a client that did not ask for it, even if its counts are of no use.
func TestUsageEventIsLeftOutWhateverItCounts(t *testing.T) {
	const chunk = `data: {"choices":[{"index":0,"text":"a","finish_reason":"length"}]}` + "\n\n"
	for _, usage := range []string{`{}`, `{"prompt_tokens":null}`, `{"prompt_tokens":5.5,"completion_tokens":1}`} {
		event := `data: {"choices":[],"usage":` + usage + "}\n\n"
		for passUsage, want := range map[bool]string{false: chunk, true: chunk + event} {
			got, state, status, err := relay(strings.NewReader(chunk+event+ssetest.Done), 1, passUsage)
			if got != want || status != stream.Complete || err != nil || state.Usage(1).Known {
				t.Errorf("%s, usage asked for %t: passed on %q, status %d, usage %+v, %v; want %q", usage, passUsage, got, status, state.Usage(1), err, want)
			}
		}
	}
}

// A choice has finished when its finish reason is a string that is not empty.
func TestStreamIsCompleteWhenEveryChoiceHasAFinishReason(t *testing.T) {
	for reason, want := range map[string]stream.Status{
		`"stop"`: stream.Complete, `"content_filter"`: stream.Complete,
		`""`: stream.Failed, "null": stream.Failed, "false": stream.Failed, "true": stream.Failed, "0": stream.Failed, "1": stream.Failed,
		"{}": stream.Failed, `{"type":"stop"}`: stream.Failed, `["stop"]`: stream.Failed,
	} {
		for form, chunk := range map[string]string{
			"a completion":      `data: {"choices":[{"index":0,"text":"a","finish_reason":` + reason + `}]}`,
			"a chat completion": `data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":` + reason + `}]}`,
			"two in an event":   `data: {"choices":[{"index":1,"text":"b","finish_reason":"stop"},{"index":0,"text":"a","finish_reason":` + reason + `}]}`,
			"no index":          `data: {"choices":[{"text":"a","finish_reason":` + reason + `}]}`,
		} {
			for _, end := range []string{"", ssetest.Done} {
				other := ssetest.Event(1, "b", `"stop"`)
				got, state, status, err := relay(strings.NewReader(other+chunk+"\n\n"+end), 2, false)
				if got != other+chunk+"\n\n" || status != want || err != nil || (want == stream.Failed) != (state.Failure().Kind == stream.Truncated) {
					t.Errorf("%s, finish reason %s, end %q: got %q, status %d, %+v, %v", form, reason, end, got, status, state.Failure(), err)
				}
			}
		}
	}
}

// The stream has ended when the usage event has arrived that was asked for, even if its counts are of no use.
func TestStreamEndsWithItsUsageEventWhateverItCounts(t *testing.T) {
	finished := ssetest.Event(0, "a", `"stop"`)
	for usage, known := range map[string]bool{
		`{"prompt_tokens":5,"completion_tokens":1}`: true, `{"prompt_tokens":0,"completion_tokens":0}`: false, `{}`: false,
	} {
		for _, choices := range []string{`"choices":[],`, `"choices":null,`, ""} {
			_, state, status, err := relay(strings.NewReader(finished+"data: {"+choices+`"usage":`+usage+"}\n\n"), 1, true)
			if status != stream.Complete || err != nil || state.Usage(1).Known != known {
				t.Errorf("%s%s: got status %d, %+v, %+v, %v", choices, usage, status, state.Failure(), state.Usage(1), err)
			}
		}
	}
}

// Comments take no memory, however many come without an event, and whether or not a blank line follows.
func TestCommentsAreNotKept(t *testing.T) {
	event := ssetest.Event(0, "a", `"stop"`)
	for _, comment := range []string{": ping\n", ": ping\n\n", ":\r\n", "\n", ": ping\r\n\r\n"} {
		sent := strings.Repeat(comment, 100_000) + event
		m := &memory{limit: 0}
		r := stream.NewReader(strings.NewReader(sent), stream.Limits{EventBytes: 64 << 10, Memory: m})
		s := stream.NewState(stream.Limits{Choices: 1}, false, nil)
		var passed string
		for passed == "" {
			batch, err := r.Next()
			if err != nil {
				t.Fatalf("%q: %v", comment, err)
			}
			events, _ := s.Add(batch)
			passed = string(events)
		}
		if passed != event || s.DataEvents() != 1 {
			t.Errorf("%q: passed on %q, %d events with data", comment, passed, s.DataEvents())
		}
		r.Release()
	}
}
