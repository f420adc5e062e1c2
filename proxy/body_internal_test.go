package proxy

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"testing"

	"basegate/admission"
)

// packed is a text as gzip, in so many members.
func packed(text []byte, members int) []byte {
	var out bytes.Buffer
	for i := range members {
		w := gzip.NewWriter(&out)
		w.Write(text[len(text)*i/members : len(text)*(i+1)/members])
		w.Close()
	}
	return out.Bytes()
}

// However a body comes, it is taken whole or not at all, never by more than the byte that shows it to be too long; what
// it may take of the memory is kept to, and nothing is counted any more afterwards. What unpacks it has the standard
// library for a judge.
func FuzzBody(f *testing.F) {
	small := []byte(`{"model":"m","prompt":"x"}`)
	long := bytes.Repeat([]byte("a long prompt "), 10_000)
	for _, members := range []int{1, 3} {
		f.Add(packed(small, members), []byte{5}, true, uint32(1000), uint32(1<<20))
		f.Add(packed(long, members), []byte{200, 1}, true, uint32(1<<20), uint32(1<<20))
	}
	f.Add(packed(bytes.Repeat([]byte{0}, 1<<20), 1), []byte{255}, true, uint32(70_000), uint32(1<<20)) // a bomb
	f.Add(packed(long, 1), []byte{255}, true, uint32(1<<20), uint32(40_000))
	f.Add(packed(small, 1)[:20], []byte{1}, true, uint32(1000), uint32(1<<20))
	f.Add(append(packed(small, 1), "more"...), []byte{1}, true, uint32(1000), uint32(1<<20))
	f.Add(small, []byte{0}, false, uint32(10), uint32(0))
	f.Add(long, []byte{100, 0, 7}, false, uint32(1<<20), uint32(1<<20))
	f.Add([]byte{}, []byte{}, false, uint32(0), uint32(0))
	f.Fuzz(func(t *testing.T, text, plan []byte, zipped bool, limit, room uint32) {
		most := int64(limit % (1 << 21))
		queue := admission.New(admission.Settings{MaxBufferedBytes: int64(room)})
		check := func(name string, source io.Reader, size int64, want []byte, failed bool) {
			in := bodyBuffer{source: source, size: size, queue: queue}
			body, err := in.readAll(most)
			if held := queue.Stats().BufferedBytes; held > int64(room) || int64(cap(body)) > held+initialBuffer {
				t.Errorf("%s: %d bytes of memory, %d are counted, of %d", name, cap(body), held, room)
			}
			in.release()
			switch {
			case queue.Stats().BufferedBytes != 0:
				t.Errorf("%s: %d bytes are still counted", name, queue.Stats().BufferedBytes)
			case errors.Is(err, admission.ErrFull):
				if int64(len(want)) <= initialBuffer && !failed {
					t.Errorf("%s: %d bytes are too much", name, len(want))
				}
			case err != nil && !failed:
				t.Errorf("%s: %v", name, err)
			case err == nil && size < 0 && int64(len(body)) > most+1:
				t.Errorf("%s: %d bytes, over the limit of %d", name, len(body), most)
			case err == nil && int64(len(body)) <= most && (failed || !bytes.Equal(body, want)):
				t.Errorf("%s: got %q, want %q, failed %t", name, body, want, failed)
			case err == nil && int64(len(body)) > most && int64(len(want)) <= most && !failed:
				t.Errorf("%s: %d bytes are taken for more than %d", name, len(want), most)
			}
		}
		if !zipped {
			check("of unknown size", &slicedReader{source: bytes.NewReader(text), plan: plan}, unknownSize, text, false)
			if int64(len(text)) <= most {
				check("of known size", &slicedReader{source: bytes.NewReader(text), plan: plan}, int64(len(text)), text, false)
				check("cut short", &slicedReader{source: bytes.NewReader(text), plan: plan}, int64(len(text))+1, nil, true)
			}
			return
		}
		judge, err := gzip.NewReader(bytes.NewReader(text))
		if err != nil {
			return
		}
		want, err := io.ReadAll(io.LimitReader(judge, most+1))
		ours, broken := gzip.NewReader(&slicedReader{source: bytes.NewReader(text), plan: plan})
		if broken != nil {
			t.Fatalf("in pieces it is no gzip: %v", broken)
		}
		check("packed", ours, unknownSize, want, err != nil)
	})
}

// slicedReader reads source in pieces whose sizes are the bytes of plan, repeated.
type slicedReader struct {
	source io.Reader
	plan   []byte
	reads  int
}

func (s *slicedReader) Read(p []byte) (int, error) {
	size := 1
	if len(s.plan) > 0 {
		size = 1 + int(s.plan[s.reads%len(s.plan)])
		s.reads++
	}
	return s.source.Read(p[:min(size, len(p))])
}
