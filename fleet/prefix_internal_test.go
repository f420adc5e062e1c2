package fleet

import (
	"encoding/binary"
	"testing"
)

func TestTableOfPrefixesIsBounded(t *testing.T) {
	p := newPrefixes()
	prompt := make([]byte, maxPrefix)
	for i := range uint64(10_000) {
		binary.LittleEndian.PutUint64(prompt, i)
		b := p.hash(0, prompt)
		if b.n != maxLengths || b.lengths[b.n-1] != maxPrefix {
			t.Fatalf("%d beginnings up to %d bytes, want %d up to %d", b.n, b.lengths[b.n-1], maxLengths, maxPrefix)
		}
		p.familyOf(&b, len(prompt), func(hash uint64) uint64 { return hash })
	}
	if n := len(p.recent) + len(p.older); n > 2*knownPrefixes || n < knownPrefixes {
		t.Errorf("%d beginnings are known, want at most %d", n, 2*knownPrefixes)
	}
}

func TestUsedPrefixesAreKept(t *testing.T) {
	p := newPrefixes()
	p.put(1, 7)
	for i := range uint64(10 * knownPrefixes) {
		p.put(i+2, 0)
		if i%1000 == 0 {
			if family, found := p.find(1); !found || family != 7 {
				t.Fatalf("a beginning that is used was forgotten after %d others", i)
			}
		}
	}
}
