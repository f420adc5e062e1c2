package fleet

import (
	"sync/atomic"
	"time"
)

// fenceVariable is the environment variable of start and stop programs with the fencing number: a higher one than those of
// all programs that were run for the backend before.
const fenceVariable = "BASEGATE_FENCE"

// fences numbers the programs of a gateway that shares its backends with no other. They are microseconds since 1970, as
// those of several gateways are, so that they also rise over restarts.
type fences struct{ last atomic.Int64 }

func (f *fences) next() int64 {
	for {
		last := f.last.Load()
		next := max(last+1, time.Now().UnixMicro())
		if f.last.CompareAndSwap(last, next) {
			return next
		}
	}
}
