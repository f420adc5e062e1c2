package history

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"
)

// savedMargin is how far back the hours are read again that other gateways have saved: a row is committed after the time
// that it has.
const savedMargin = time.Minute

// sameEvent is how far apart equal events of several gateways are shown as one.
const sameEvent = time.Minute

// others are the hours of the other gateways. A report adds them to the own ones.
type others struct {
	hours  map[int64]*hour // the sum of all gateways, by the Unix time of the hour's begin; guarded by History.mu
	latest int64           // time of the server's clock when the last of them was saved; used by run only
	failed bool            // used by run only
}

// ShareAs makes the History that of one of several gateways that share a PostgreSQL database: it saves its hours under
// its name, and shows the sums of all, those of the others as they were a minute ago. Call it before Start.
func (h *History) ShareAs(gateway string) { h.gateway = gateway }

// readOthers reads the hours that other gateways have saved since it was last called.
func (h *History) readOthers(ctx context.Context) {
	if h.db.Postgres() == nil {
		return
	}
	now := h.clock()
	err := h.readSaved(ctx, now.Add(-Keep).Truncate(time.Hour).Unix())
	h.mu.Lock()
	prune(h.others.hours, now)
	h.mu.Unlock()
	if failing := err != nil && ctx.Err() == nil; failing != h.others.failed {
		h.others.failed = failing
		if failing {
			h.log.Warn("the history of the other gateways cannot be read; the overview shows older figures of them", zap.Error(err))
		}
	}
}

func (h *History) readSaved(ctx context.Context, oldest int64) error {
	begins, latest, err := selectSaved(ctx, h.db, h.gateway, oldest, h.others.latest-savedMargin.Microseconds())
	if err != nil {
		return err
	}
	for _, begin := range begins {
		sum := newHour()
		err := selectOthers(ctx, h.db, h.gateway, begin, func(_ int64, data []byte) {
			o, err := decode(data)
			if err != nil {
				h.log.Warn("an hour of another gateway's history cannot be read", zap.Time("hour", time.Unix(begin, 0)), zap.Error(err))
				return
			}
			sum.merge(o)
		})
		if err != nil {
			return err
		}
		h.mu.Lock()
		h.others.hours[begin] = sum
		h.mu.Unlock()
	}
	h.others.latest = max(h.others.latest, latest)
	return nil
}

// merge adds another gateway's hour. Series beyond the limits are counted as in an hour of one gateway.
func (o *hour) merge(other *hour) {
	for k, points := range other.series {
		sum := o.series[k]
		if sum == nil {
			if len(o.series) >= maxSeries && k.Model != OtherModels && k.Model != "" {
				if k.Backend != "" {
					continue // its model counts it
				}
				k = Key{Model: OtherModels}
				sum = o.series[k]
			}
			if sum == nil {
				sum = new(series)
				o.series[k] = sum
			}
		}
		for step := range points {
			sum[step].merge(&points[step])
		}
	}
	for k, counts := range other.codes {
		for step, n := range counts {
			if n > 0 {
				o.addCodes(k, step, n)
			}
		}
	}
	for step, g := range other.gauges {
		o.gauges[step].merge(g)
	}
	o.events = append(o.events, other.events...)
}

func (p *point) merge(other *point) {
	p.requests = saturatingAdd(p.requests, int64(other.requests))
	p.failed = saturatingAdd(p.failed, int64(other.failed))
	p.refused = saturatingAdd(p.refused, int64(other.refused))
	p.prompt = saturatingAdd(p.prompt, int64(other.prompt))
	p.completion = saturatingAdd(p.completion, int64(other.completion))
	p.inFlight = saturatingAdd(p.inFlight, int64(other.inFlight))
	p.firstToken.merge(&other.firstToken)
}

func (g *gaugePoint) merge(other gaugePoint) {
	g.sampled = g.sampled || other.sampled
	g.waiting = saturatingAdd(g.waiting, int64(other.waiting))
	g.running = saturatingAdd(g.running, int64(other.running))
}

// withoutRepeats removes the events that another gateway has recorded too. The events are ordered by time, the newest
// first; of equal ones the earliest stays.
func withoutRepeats(all []Event) []Event {
	kept := make([]Event, 0, len(all))
	latest := map[Event]time.Time{} // of equal events, without their time
	for _, e := range slices.Backward(all) {
		what := e
		what.Time = time.Time{}
		before, repeated := latest[what]
		if repeated && e.Time.Sub(before) < sameEvent {
			continue
		}
		latest[what] = e.Time
		kept = append(kept, e)
	}
	slices.Reverse(kept)
	return kept
}
