package proxy

import "testing"

func TestClassesOfBodiesFollowEachOther(t *testing.T) {
	last, capacity := classOf(initialBuffer)
	if last != firstClass || capacity != initialBuffer {
		t.Fatalf("the first class is %d of %d bytes", last, capacity)
	}
	for size := int64(initialBuffer); size <= maxTrustedLength; size++ {
		class, got := classOf(size)
		switch {
		case got < size || got-size > size/4:
			t.Fatalf("%d bytes are held by %d, want at most a quarter more", size, got)
		case size <= capacity && (class != last || got != capacity):
			t.Fatalf("%d bytes are of class %d of %d bytes, want class %d of %d bytes", size, class, got, last, capacity)
		case size > capacity && (class != last+1 || size != capacity+1):
			t.Fatalf("%d bytes are of class %d, the ones before of class %d up to %d bytes", size, class, last, capacity)
		}
		last, capacity = class, got
	}
	if last != lastClass || capacity != maxTrustedLength {
		t.Errorf("the last class is %d of %d bytes, want %d of %d", last, capacity, lastClass, maxTrustedLength)
	}
	for _, size := range []int64{0, initialBuffer - 1, maxTrustedLength + 1} {
		if class, got := classOf(size); class != 0 || got != size {
			t.Errorf("%d bytes are of class %d, want no class", size, class)
		}
	}
}
