package breaker

import "sync"

// AnyKey is the key of questions and attempts that are no key's.
const AnyKey = ""

// failing is whose requests the failures in a row since the last success were. A breaker that those of one key alone have
// opened refuses that key and serves the others, because the key's requests may be the cause.
type failing struct {
	mu    sync.Mutex
	begun bool   // there is a failure
	mixed bool   // they are not one key's alone, or one of them proves that the backend is the cause
	key   string // of the last failure
}

func (f *failing) count(key string, proven bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mixed = f.mixed || proven || key == AnyKey || f.begun && f.key != key
	f.begun, f.key = true, key
}

func (f *failing) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.begun, f.mixed = false, false
}

// areOthers reports whether all failures were another key's alone.
func (f *failing) areOthers(key string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.begun && !f.mixed && key != f.key
}
