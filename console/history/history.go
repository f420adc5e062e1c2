// Package history keeps the gateway's own figures of the last day in memory: a point every ten seconds of requests,
// tokens, errors, queue depth and time to first token, by model and backend, and the events of the fleet and of budgets.
// So an operator sees what happened without Prometheus.
//
// Several gateways that share a PostgreSQL database each record their own requests. Each reads the hours that the others
// have saved, and its reports are sums over all gateways, those of the others up to a minute old.
//
// Its memory is bounded whatever the configuration is: an hour has at most maxSeries series, maxCodes error codes and
// maxEvents events. Further models are counted together as OtherModels. The hours are also rows of the database, written
// every minute and at Close, so that a restart keeps them and a crash loses at most a minute.
//
// It holds counts, names of models and backends, error codes, and the ids of accounts and keys whose budgets raised an
// alarm; nothing of prompts or completions, and no addresses. Metrics for Prometheus are left to the packages that
// count them.
package history

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"basegate/database"
	apierr "basegate/errors"
)

const (
	// Step is the time that one point covers.
	Step = 10 * time.Second
	// Keep is how far back points and events are kept.
	Keep = 24 * time.Hour

	stepsPerHour = int(time.Hour / Step)
	saveInterval = time.Minute
)

// Limits of one hour.
const (
	maxSeries = 48
	maxCodes  = 128 // pairs of model and error code
	maxEvents = 200
)

// OtherModels is the name under which the models beyond the limit are counted together.
const OtherModels = "other models"

// Key names a series: a backend, a model (Backend is empty) or all requests (both are empty).
type Key struct{ Model, Backend string }

// codeKey names the requests of a model that ended with an error code.
type codeKey struct{ model, code string }

// Request is a request that has ended.
type Request struct {
	Model      string // empty if it was refused before its model was known
	Backend    string // of the last attempt; empty if there was none
	Code       string // of the error; empty on success
	Prompt     int64  // tokens charged
	Completion int64  // tokens charged
	FirstToken time.Duration
}

// clientGone is the code of a request whose client has disconnected, which is nobody's failure.
const clientGone = "client_gone"

// outcome returns whether the service has failed a request, or has refused it as the client's fault: its status is 4xx.
func (q *Request) outcome() (failed, refused bool) {
	if q.Code == "" || q.Code == clientGone {
		return false, false
	}
	code := apierr.Code(q.Code)
	status := code.Status()
	refused = status >= 400 && status < 500 && !code.FromUpstream()
	return !refused, refused
}

// Gauges are sampled with every point.
type Gauges struct {
	Waiting  int         // requests that wait for a slot or for the reservations of others
	Running  int         // requests that have a slot
	InFlight map[Key]int // attempts at each backend
}

// point is one series during one step.
type point struct {
	requests           uint32
	failed, refused    uint32
	prompt, completion uint32
	inFlight           uint32
	firstToken         distribution
}

// series are the points of one hour.
type series [stepsPerHour]point

// gaugePoint is what is sampled at the end of a step.
type gaugePoint struct {
	sampled          bool // the gateway ran
	waiting, running uint32
}

// hour is one hour of history.
type hour struct {
	series  map[Key]*series
	codes   map[codeKey]*[stepsPerHour]uint32
	gauges  [stepsPerHour]gaugePoint
	events  []Event
	changed bool // since it was last saved
}

func newHour() *hour {
	return &hour{series: map[Key]*series{}, codes: map[codeKey]*[stepsPerHour]uint32{}}
}

// History records the last day. It is safe for concurrent use.
type History struct {
	db     *database.DB
	log    *zap.Logger
	sample func() Gauges
	clock  func() time.Time

	gateway string // see ShareAs

	mu     sync.Mutex
	hours  map[int64]*hour // by the Unix time of the hour's begin
	others others

	saveFailing bool // used by run only

	stop context.CancelFunc // nil before Start
	done chan struct{}      // closed when run has returned
}

// New returns a History. It calls sample at every point, which must return at once.
func New(db *database.DB, log *zap.Logger, sample func() Gauges) *History {
	return &History{db: db, log: log, sample: sample, clock: time.Now, hours: map[int64]*hour{}, others: others{hours: map[int64]*hour{}}}
}

// Start reads what earlier runs have recorded of the last day, and samples and saves until Close. An hour that cannot be
// read is left out: history is no reason not to serve.
func (h *History) Start(ctx context.Context) {
	h.load(ctx)
	h.readOthers(ctx)
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	h.stop, h.done = stop, make(chan struct{})
	go h.run(running)
}

// Close saves the current hour and stops.
func (h *History) Close() {
	if h.stop == nil {
		return
	}
	h.stop()
	<-h.done
}

func (h *History) run(ctx context.Context) {
	defer close(h.done)
	sample, save := time.NewTicker(Step), time.NewTicker(saveInterval)
	defer sample.Stop()
	defer save.Stop()
	h.recordGauges()
	for {
		select {
		case <-sample.C:
			h.recordGauges()
		case <-save.C:
			h.save(ctx)
			h.readOthers(ctx)
		case <-ctx.Done():
			h.save(context.WithoutCancel(ctx))
			return
		}
	}
}

// Record counts a request that has ended.
func (h *History) Record(q Request) {
	now := h.clock()
	h.mu.Lock()
	defer h.mu.Unlock()
	current, step := h.at(now)
	current.changed = true
	current.add(Key{}, step, &q)
	if q.Model != "" {
		name := current.add(Key{Model: q.Model}, step, &q)
		if q.Backend != "" && name == q.Model {
			current.add(Key{q.Model, q.Backend}, step, &q)
		}
	}
	if q.Code != "" {
		current.addCode(codeKey{q.Model, q.Code}, step)
	}
}

// at returns the hour of a time, and the index of its step. h.mu is held.
func (h *History) at(t time.Time) (current *hour, step int) {
	begin := t.Truncate(time.Hour).Unix()
	current = h.hours[begin]
	if current == nil {
		current = newHour()
		h.hours[begin] = current
		prune(h.hours, t)
	}
	return current, int((t.Unix() - begin) / int64(Step/time.Second))
}

// prune drops the hours that are too old, and those of a clock that was ahead.
func prune(hours map[int64]*hour, now time.Time) {
	for begin := range hours {
		if age := now.Sub(time.Unix(begin, 0)); age > Keep+time.Hour || age < -time.Hour {
			delete(hours, begin)
		}
	}
}

// add counts a request in a series, and returns the name of the model under which it was counted. A backend beyond the
// limit is counted with its model only.
func (o *hour) add(k Key, step int, q *Request) (model string) {
	s := o.series[k]
	if s == nil {
		if len(o.series) >= maxSeries && k.Model != OtherModels {
			if k.Backend != "" {
				return k.Model
			}
			return o.add(Key{Model: OtherModels}, step, q)
		}
		s = new(series)
		o.series[k] = s
	}
	p := &s[step]
	p.requests = saturatingAdd(p.requests, 1)
	switch failed, refused := q.outcome(); {
	case failed:
		p.failed = saturatingAdd(p.failed, 1)
	case refused:
		p.refused = saturatingAdd(p.refused, 1)
	}
	p.prompt = saturatingAdd(p.prompt, q.Prompt)
	p.completion = saturatingAdd(p.completion, q.Completion)
	if q.FirstToken > 0 {
		p.firstToken.observe(q.FirstToken)
	}
	return k.Model
}

// otherCodes is the code under which the pairs beyond the limit are counted together.
const otherCodes = "other"

func (o *hour) addCode(k codeKey, step int) { o.addCodes(k, step, 1) }

func (o *hour) addCodes(k codeKey, step int, n uint32) {
	counts := o.codes[k]
	if counts == nil {
		if len(o.codes) >= maxCodes {
			k = codeKey{OtherModels, otherCodes}
			counts = o.codes[k]
		}
		if counts == nil {
			counts = new([stepsPerHour]uint32)
			o.codes[k] = counts
		}
	}
	counts[step] = saturatingAdd(counts[step], int64(n))
}

// recordGauges samples the gauges into the current point.
func (h *History) recordGauges() {
	now, g := h.clock(), h.sample()
	h.mu.Lock()
	defer h.mu.Unlock()
	current, step := h.at(now)
	current.changed = true
	current.gauges[step] = gaugePoint{
		sampled: true, waiting: saturatingAdd(0, int64(g.Waiting)), running: saturatingAdd(0, int64(g.Running)),
	}
	for k, n := range g.InFlight {
		s := current.series[k]
		if s == nil {
			if n == 0 || len(current.series) >= maxSeries {
				continue
			}
			s = new(series)
			current.series[k] = s
		}
		s[step].inFlight = saturatingAdd(0, int64(n))
	}
}

func saturatingAdd(a uint32, b int64) uint32 {
	return uint32(min(int64(a)+max(b, 0), 1<<32-1)) //nolint:gosec // within the range
}
