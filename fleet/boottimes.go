package fleet

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"basegate/database"
)

// bootsKept is the number of boots of a backend that its median is computed from.
const bootsKept = 9

type bootTimes struct {
	mu        sync.Mutex
	durations []time.Duration // oldest first
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
func (f *Fleet) bootTimesOf(id backendID) *bootTimes {
	if f.bootTimes[id] == nil {
		f.bootTimes[id] = &bootTimes{}
	}
	return f.bootTimes[id]
}

// loadBootTimes reads the boot times of earlier runs. f.mu is held.
func (f *Fleet) loadBootTimes(ctx context.Context) error {
	const text = `
		SELECT model, backend, took_us FROM (
			SELECT model, backend, took_us, ended_at, row_number() OVER (PARTITION BY model, backend ORDER BY ended_at DESC) AS n
			FROM boots
		) AS latest
		WHERE n <= $1 ORDER BY ended_at`
	_, err := database.List(ctx, f.db.Read(), func(row database.Scanner) (id backendID, err error) {
		var took int64
		if err = row.Scan(&id.model, &id.backend, &took); err == nil {
			f.bootTimesOf(id).add(micros(took))
		}
		return id, err
	}, text, bootsKept)
	return err
}

// recordBoot records the duration of a boot. A wake is not recorded if the backend can also be launched, since it is
// much faster than a launch. b.mu is held.
func (b *Backend) recordBoot(took time.Duration) {
	if b.life.boot.pending {
		return
	}
	b.log.Info("backend has started", zap.Duration("took", took), zap.Bool("woken", b.life.boot.wake))
	if b.life.boot.wake && b.cfg().Launch != nil {
		return
	}
	b.bootTimes.add(took)
	if b.leads() { // without the row, the estimate is less accurate after a restart
		const text = `INSERT INTO boots (model, backend, ended_at, took_us) VALUES ($1, $2, $3, $4)`
		b.fleet.submit(text, b.modelID, b.Name, time.Now().UnixMicro(), took.Microseconds())
	}
}
