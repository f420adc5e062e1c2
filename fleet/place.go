package fleet

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// ErrNoPlace is returned by AcquirePlace if every ready backend runs as many batch lines as it may, has requests that wait, or
// has not been asked yet whether it does.
var ErrNoPlace = errors.New("no backend has a place for a batch line")

// Place is the permission to run one batch line at a backend, beside the live requests.
type Place struct {
	Backend *Backend
	model   *Model
	most    int64 // lines at a backend
}

// places counts the batch lines that run at a backend.
type places struct{ running atomic.Int64 }

// take counts one more line if running lines run and one more may.
func (p *places) take(running, most int64) bool {
	return running < most && p.running.CompareAndSwap(running, running+1)
}

func (p *places) release() { p.running.Add(-1) }

// AcquirePlace returns a place at the ready backend with the fewest batch lines: one that runs fewer than most of them,
// and where no request waited at the last probe, which reads the queue only once a line has asked for a place. It starts nothing:
// the error is ErrUnsuitable, ErrNoPlace or ErrNotReady. The caller must release the place.
func (m *Model) AcquirePlace(c Caller, most int) (*Place, error) {
	suitable := m.suitable(c)
	if len(suitable) == 0 {
		return nil, ErrUnsuitable
	}
	ready := false
	for {
		var chosen *Backend
		var fewest int64
		for _, b := range suitable {
			if !b.serves(c) {
				continue
			}
			ready = true
			b.watchQueue()
			if b.mayHaveQueue() {
				continue
			}
			if n := b.places.running.Load(); n < int64(most) && (chosen == nil || n < fewest) {
				chosen, fewest = b, n
			}
		}
		switch {
		case !ready:
			return nil, ErrNotReady
		case chosen == nil:
			return nil, ErrNoPlace
		case chosen.places.take(fewest, int64(most)):
			return &Place{chosen, m, int64(most)}, nil
		}
	}
}

// ErrNotReady is returned by AcquirePlace if no backend is ready, or the breaker of each that is ready is open.
var ErrNotReady = errors.New("no backend is ready")

// Prefer moves the place to the backend that has the line's adapter, or whose cache has its prefix, if that has a place and not
// too many lines. The line may then use only Backend. If its backend does not suit or serve it, Prefer moves it to another one that
// does.
func (p *Place) Prefer(prefix Prefix, caller Caller) {
	var candidates []candidate
	for _, b := range p.model.suitable(caller) {
		if !b.serves(caller) {
			continue
		}
		c := p.model.candidate(b, b.places.running.Load())
		if b == p.Backend {
			c.load-- // without this line
		} else if b.mayHaveQueue() || c.load >= p.most {
			continue
		}
		candidates = append(candidates, c)
	}
	if len(candidates) == 0 || !prefix.known() && p.model.adapter == nil && slices.ContainsFunc(candidates, func(c candidate) bool { return c.backend == p.Backend }) {
		return
	}
	p.model.sortCandidates(candidates, &prefix)
	for _, c := range candidates {
		if c.backend == p.Backend {
			return
		}
		if c.backend.places.take(c.load, p.most) {
			p.Release()
			p.Backend = c.backend
			return
		}
	}
}

// Release gives the place back.
func (p *Place) Release() { p.Backend.places.release() }

const (
	// queueWatch is how long a backend's queue is watched after a batch line has asked for a place.
	queueWatch = 30 * time.Second
	// queueProbeInterval is how often the queue of a backend is read that is watched or busy.
	queueProbeInterval = time.Second
)

// watchQueue makes probes read the length of the backend's queue, from the next one on. What was read before does not count.
func (b *Backend) watchQueue() {
	now := b.clock().UnixNano()
	if last := b.watched.Swap(now); now-last > int64(queueWatch) {
		b.queueRead.Store(false)
		b.probeSoon()
	}
}

// watchesQueue reports whether probes read the length of the queue.
func (b *Backend) watchesQueue() bool {
	return b.clock().UnixNano()-b.watched.Load() < int64(queueWatch) || b.InFlight() >= busyFrom || b.turns.limited() ||
		b.Replica() > 0 && b.leads()
}

// mayHaveQueue reports whether requests wait for the backend, at the server or here, or that is not known yet.
func (b *Backend) mayHaveQueue() bool {
	return !b.queueRead.Load() || b.queued.Load() > 0 || b.Held() > 0
}

// probeQueue reads how many requests wait in vLLM's own queue. A backend that does not tell has no queue. Batch lines that run
// count as those that wait, since live requests are not held back because of them.
func (b *Backend) probeQueue(ctx context.Context) {
	defer b.queueRead.Store(true)
	b.mu.Lock()
	b.readFrom = max(burstFrom, 2*b.inFlight)
	b.mu.Unlock()
	response, err := b.Get(ctx, "/metrics")
	if err != nil {
		b.queued.Store(0)
		b.engineRuns.Store(0)
		b.turns.expire(b.clock())
		return
	}
	e, known := readEngine(response.Body)
	e.readAt = b.clock()
	b.engine.Store(&e)
	running, waiting := e.Running, e.Waiting
	b.queued.Store(waiting)
	b.engineRuns.Store(running)
	b.engineRan.Store(max(running, b.engineRan.Load()))
	if known && response.Status == http.StatusOK {
		b.turns.observe(b.clock(), running, max(0, waiting-b.places.running.Load()))
	} else {
		b.turns.open()
	}
}

// Engine is what the engines of a server say of themselves, together.
type Engine struct {
	Running, Waiting int64    // requests
	Cache            *float64 // the part of the KV cache that is used; nil if it is not known
	HitRate          *float64 // the part of the prompts' tokens that was in the prefix cache, since the server's start; nil likewise

	readAt time.Time
}

// engineLife is how long what was read of a backend's engines is shown.
const engineLife = 10 * time.Second

// Engine returns what a ready backend's metrics have said of late; nil if they have said nothing. It makes probes read them.
func (b *Backend) Engine() *Engine {
	if !b.is(Ready) {
		return nil
	}
	b.watchQueue()
	if e := b.engine.Load(); e != nil && b.clock().Sub(e.readAt) < engineLife {
		return e
	}
	return nil
}

// readEngine reads the metrics of a server. It reports whether they have the number of requests that wait.
func readEngine(metrics []byte) (e Engine, known bool) {
	var engines, used, queries, hits float64
	lines := bufio.NewScanner(bytes.NewReader(metrics))
	for lines.Scan() {
		rest, found := strings.CutPrefix(lines.Text(), "vllm:")
		end := strings.IndexAny(rest, "{ ")
		if !found || end < 0 {
			continue
		}
		value, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
		if err != nil {
			continue
		}
		switch strings.TrimPrefix(rest[:end], "gpu_") {
		case "num_requests_running":
			e.Running += int64(value)
		case "num_requests_waiting":
			e.Waiting, known = e.Waiting+int64(value), true
		case "kv_cache_usage_perc", "cache_usage_perc": // the latter before 0.10
			used, engines = used+value, engines+1
		case "prefix_cache_queries_total":
			queries += value
		case "prefix_cache_hits_total":
			hits += value
		}
	}
	if engines > 0 {
		e.Cache = new(used / engines)
	}
	if queries > 0 {
		e.HitRate = new(hits / queries)
	}
	return e, known
}
