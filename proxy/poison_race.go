//go:build race

package proxy

// poison overwrites a buffer that was returned to its pool, so that tests under the race detector fail if it is used again.
func poison(b []byte) {
	for i := range b {
		b[i] = 0xdb
	}
}
