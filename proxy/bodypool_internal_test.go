package proxy

import "testing"

func TestClassesOfBodiesFollowEachOther(t *testing.T) {
	last, capacity := classOf(initialBuffer)
	if last != 0 || capacity != initialBuffer {
		t.Fatalf("the first class is %d of %d bytes", last, capacity)
	}
	for size := int64(initialBuffer); size <= maxTrustedLength; size++ {
		class, got := classOf(size)
		switch {
		case got < size || got-size > size/stepsPerDoubling:
			t.Fatalf("%d bytes are held by %d, want at most a quarter more", size, got)
		case size <= capacity && (class != last || got != capacity):
			t.Fatalf("%d bytes are of class %d of %d bytes, want class %d of %d bytes", size, class, got, last, capacity)
		case size > capacity && (class != last+1 || size != capacity+1):
			t.Fatalf("%d bytes are of class %d, the ones before of class %d up to %d bytes", size, class, last, capacity)
		}
		last, capacity = class, got
	}
	if last != poolClasses-1 || capacity != maxTrustedLength {
		t.Errorf("the last class is %d of %d bytes, want %d of %d", last, capacity, poolClasses-1, maxTrustedLength)
	}
	for _, size := range []int64{0, initialBuffer - 1, maxTrustedLength + 1} {
		if class, got := classOf(size); class != -1 || got != size {
			t.Errorf("%d bytes are of class %d, want no class", size, class)
		}
	}
}

func TestBodyIsReturnedWhenItsLastHolderLetsItGo(t *testing.T) {
	x := &exchange{}
	x.body = newSharedBody(append(getBodyBuffer(initialBuffer), "a body"...))
	held := x.body
	first, second := x.upstreamBody(nil), x.upstreamBody(nil)
	for _, close := range []func() error{first.Close, first.Close} {
		if err := close(); err != nil {
			t.Fatal(err)
		}
	}
	x.releaseBody()
	x.releaseBody()
	if n := held.holders.Load(); n != 1 {
		t.Fatalf("%d holders are left, want the second attempt", n)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	if n := held.holders.Load(); n != 0 {
		t.Errorf("%d holders are left, want none", n)
	}
}
