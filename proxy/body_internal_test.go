package proxy

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"basegate/budget/admission"
)

// gzipMembers returns text as gzip with that many members.
func gzipMembers(text []byte, members int) []byte {
	var out bytes.Buffer
	for i := range members {
		w := gzip.NewWriter(&out)
		w.Write(text[len(text)*i/members : len(text)*(i+1)/members])
		w.Close()
	}
	return out.Bytes()
}

// A body is read completely or not at all, and never further than one byte over the limit. Its buffer never exceeds the
// reserved memory, all of which is released afterwards. For gzip, the results are compared with those of io.ReadAll.
func FuzzBody(f *testing.F) {
	small := []byte(`{"model":"m","prompt":"x"}`)
	long := bytes.Repeat([]byte("a long prompt "), 10_000)
	for _, members := range []int{1, 3} {
		f.Add(gzipMembers(small, members), []byte{5}, true, uint32(1000), uint32(1<<20))
		f.Add(gzipMembers(long, members), []byte{200, 1}, true, uint32(1<<20), uint32(1<<20))
	}
	f.Add(gzipMembers(bytes.Repeat([]byte{0}, 1<<20), 1), []byte{255}, true, uint32(70_000), uint32(1<<20)) // a decompression bomb
	f.Add(gzipMembers(long, 1), []byte{255}, true, uint32(1<<20), uint32(40_000))
	f.Add(gzipMembers(small, 1)[:20], []byte{1}, true, uint32(1000), uint32(1<<20))
	f.Add(append(gzipMembers(small, 1), "more"...), []byte{1}, true, uint32(1000), uint32(1<<20))
	f.Add(small, []byte{0}, false, uint32(10), uint32(0))
	f.Add(long, []byte{100, 0, 7}, false, uint32(1<<20), uint32(1<<20))
	f.Add([]byte{}, []byte{}, false, uint32(0), uint32(0))
	f.Fuzz(func(t *testing.T, text, sizes []byte, compressed bool, limit, memory uint32) {
		most := int64(limit % (1 << 21))
		queue := admission.NewMemory(int64(memory))
		// check reads a body of which want is the content, unless reading it must fail.
		check := func(name string, source io.Reader, size int64, want []byte, mustFail bool) {
			allocation := queue.Allocate("key")
			b := buffer{source: source, size: size, trusted: maxTrustedLength, awaited: admission.WaitingCost, memory: &allocation}
			err := b.readAll(most)
			if counted := queue.Stats().BufferedBytes; counted > int64(memory) || int64(cap(b.bytes)) > counted {
				t.Errorf("%s: the buffer has %d bytes with %d of %d bytes counted", name, cap(b.bytes), counted, memory)
			}
			body := bytes.Clone(b.bytes)
			b.release()
			switch {
			case queue.Stats().BufferedBytes != 0:
				t.Errorf("%s: %d bytes are still counted", name, queue.Stats().BufferedBytes)
			case errors.Is(err, admission.ErrFull):
				if needed := int64(3*len(want)+2*initialBuffer) + admission.WaitingCost; needed < int64(memory)/2 && !mustFail {
					t.Errorf("%s: a body of %d bytes did not fit %d bytes of memory", name, len(want), memory)
				}
			case err != nil && !mustFail:
				t.Errorf("%s: %v", name, err)
			case err == nil && size < 0 && int64(len(body)) > most+1:
				t.Errorf("%s: read %d bytes with a limit of %d", name, len(body), most)
			case err == nil && int64(len(body)) <= most && (mustFail || !bytes.Equal(body, want)):
				t.Errorf("%s: got %q, want %q, must fail: %t", name, body, want, mustFail)
			case err == nil && int64(len(body)) > most && int64(len(want)) <= most && !mustFail:
				t.Errorf("%s: a body of %d bytes is over the limit of %d", name, len(want), most)
			}
		}
		if !compressed {
			check("of unknown size", &shortReader{source: bytes.NewReader(text), sizes: sizes}, unknownSize, text, false)
			if int64(len(text)) <= most {
				check("of known size", &shortReader{source: bytes.NewReader(text), sizes: sizes}, int64(len(text)), text, false)
				check("truncated", &shortReader{source: bytes.NewReader(text), sizes: sizes}, int64(len(text))+1, nil, true)
			}
			return
		}
		reference, err := gzip.NewReader(bytes.NewReader(text))
		if err != nil {
			return
		}
		want, err := io.ReadAll(io.LimitReader(reference, most+1))
		source, headerErr := gzip.NewReader(&shortReader{source: bytes.NewReader(text), sizes: sizes})
		if headerErr != nil {
			t.Fatalf("the gzip header is invalid if it is read in pieces: %v", headerErr)
		}
		check("compressed", source, unknownSize, want, err != nil)
	})
}

// shortReader reads from source at most sizes[i]+1 bytes in its i-th read; the sizes repeat.
type shortReader struct {
	source io.Reader
	sizes  []byte
	reads  int
}

func (s *shortReader) Read(p []byte) (int, error) {
	size := 1
	if len(s.sizes) > 0 {
		size = 1 + int(s.sizes[s.reads%len(s.sizes)])
		s.reads++
	}
	return s.source.Read(p[:min(size, len(p))])
}

// deadlineRecorder is a response whose connection has a read deadline.
type deadlineRecorder struct {
	http.ResponseWriter
	deadline time.Time
}

func (r *deadlineRecorder) SetReadDeadline(deadline time.Time) error {
	r.deadline = deadline
	return nil
}

// Package strict blanks the value of an expectation that net/http would refuse by itself.
func TestBodyBehindAnExpectationIsNotAwaited(t *testing.T) {
	for _, expect := range []string{"", "100-continue"} {
		body, conn := strings.NewReader("body"), &deadlineRecorder{ResponseWriter: httptest.NewRecorder()}
		r := httptest.NewRequest(http.MethodPost, "/v1/completions", body)
		r.Header["Expect"] = []string{expect}
		x := &exchange{w: conn, r: r, settings: &Settings{MaxBodyBytes: 1 << 20}}
		if x.discardBody(); body.Len() != 4 {
			t.Errorf("Expect: %q: the body was awaited", expect)
		}
		if conn.deadline.IsZero() {
			t.Errorf("Expect: %q: what net/http reads of the body has no deadline", expect)
		}
	}
}
