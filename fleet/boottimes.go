package fleet

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
)

// bootsKept is the number of boots of a backend that its median is computed from.
const bootsKept = 9

// bootTimes holds the durations of the last boots of one backend.
type bootTimes struct {
	mu        sync.Mutex
	durations []time.Duration // oldest first
	persist   func(time.Duration)
}

func (t *bootTimes) add(took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.durations = append(t.durations, took); len(t.durations) > bootsKept {
		t.durations = t.durations[1:]
	}
}

// median returns 0 if no boot has been measured.
func (t *bootTimes) median() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.durations) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(t.durations))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

// bootTimesOf returns the boot times of a backend. f.mu is held, or the fleet is not shared yet.
func (f *Fleet) bootTimesOf(model, backend string) *bootTimes {
	key := model + "/" + backend
	if f.bootTimes[key] == nil {
		t := &bootTimes{}
		t.persist = func(took time.Duration) {
			if f.store != nil {
				f.store.submitBoot(model, backend, time.Now(), took)
			}
		}
		f.bootTimes[key] = t
	}
	return f.bootTimes[key]
}

// loadBootTimes reads the boot times of earlier runs. f.mu is held.
func (f *Fleet) loadBootTimes(ctx context.Context) error {
	return f.store.readBoots(ctx, func(model, backend string, took time.Duration) {
		f.bootTimesOf(model, backend).add(took)
	})
}

// recordBoot records the duration of a boot. A wake is not recorded if the backend can also be launched, since it is
// much faster than a launch. b.mu is held.
func (b *Backend) recordBoot(took time.Duration) {
	if b.life.boot.awaitsLease {
		return
	}
	b.log.Info("backend has started", zap.Duration("took", took), zap.Bool("woken", b.life.boot.wake))
	if b.life.boot.wake && b.cfg().Launch != nil {
		return
	}
	b.bootTimes.add(took)
	if b.leads() {
		b.bootTimes.persist(took)
	}
}
