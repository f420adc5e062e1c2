package gateway

import "testing"

func TestNearlyFullDisk(t *testing.T) {
	for _, c := range []struct {
		free, size uint64
		was, want  bool
	}{
		{free: 2 * gib, size: 8 * gib, want: false},
		{free: gib - 1, size: 8 * gib, want: true},
		{free: 4 * gib, size: 100 * gib, want: true},
		{free: 6 * gib, size: 100 * gib, want: false},
		{free: 6 * gib, size: 100 * gib, was: true, want: true}, // until a quarter more is free
		{free: 7 * gib, size: 100 * gib, was: true, want: false},
		{free: 30 * gib, size: 8192 * gib, want: false}, // 5 % of a large disk is much
		{free: 19 * gib, size: 8192 * gib, want: true},
	} {
		if got := nearlyFull(c.free, c.size, c.was); got != c.want {
			t.Errorf("%d of %d bytes free, nearly full before: %t: got %t, want %t", c.free, c.size, c.was, got, c.want)
		}
	}
}
