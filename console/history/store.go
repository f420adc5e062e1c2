package history

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"go.uber.org/zap"

	"basegate/database"
)

// storedHour is the form of an hour in the database: JSON, compressed by gzip. Points without counts are left out.
type storedHour struct {
	Series []storedSeries `json:"s,omitempty"`
	Codes  []storedCodes  `json:"c,omitempty"`
	Gauges []storedGauges `json:"g,omitempty"`
	Events []Event        `json:"e,omitempty"`
}

type storedSeries struct {
	Model   string        `json:"m,omitempty"`
	Backend string        `json:"b,omitempty"`
	Points  []storedPoint `json:"p"`
}

type storedPoint struct {
	Step       int         `json:"i"`
	Requests   uint32      `json:"r,omitempty"`
	Failed     uint32      `json:"x,omitempty"`
	Refused    uint32      `json:"u,omitempty"`
	Prompt     uint32      `json:"p,omitempty"`
	Completion uint32      `json:"c,omitempty"`
	InFlight   uint32      `json:"f,omitempty"`
	FirstToken [][2]uint16 `json:"t,omitempty"` // bucket and count
}

type storedCodes struct {
	Model  string      `json:"m,omitempty"`
	Code   string      `json:"c"`
	Counts [][2]uint32 `json:"n"` // step and count
}

type storedGauges struct {
	Step    int    `json:"i"`
	Waiting uint32 `json:"w,omitempty"`
	Running uint32 `json:"r,omitempty"`
}

// stored converts an hour to its form in the database.
func (o *hour) stored() storedHour {
	s := storedHour{Events: append([]Event(nil), o.events...)}
	for k, points := range o.series {
		one := storedSeries{Model: k.Model, Backend: k.Backend}
		for step := range points {
			if p := &points[step]; *p != (point{}) {
				one.Points = append(one.Points, p.stored(step))
			}
		}
		s.Series = append(s.Series, one)
	}
	for k, counts := range o.codes {
		one := storedCodes{Model: k.model, Code: k.code}
		for step, n := range counts {
			if n > 0 {
				one.Counts = append(one.Counts, [2]uint32{uint32(step), n})
			}
		}
		s.Codes = append(s.Codes, one)
	}
	for step, g := range o.gauges {
		if g.sampled {
			s.Gauges = append(s.Gauges, storedGauges{step, g.waiting, g.running})
		}
	}
	return s
}

func (p *point) stored(step int) storedPoint {
	s := storedPoint{
		Step: step, Requests: p.requests, Failed: p.failed, Refused: p.refused, Prompt: p.prompt, Completion: p.completion,
		InFlight: p.inFlight,
	}
	for bucket, n := range p.firstToken {
		if n > 0 {
			s.FirstToken = append(s.FirstToken, [2]uint16{uint16(bucket), n})
		}
	}
	return s
}

// restore converts the stored form to an hour. Entries beyond the limits are left out.
func (s *storedHour) restore() *hour {
	o := newHour()
	for _, one := range s.Series {
		if len(o.series) > maxSeries { // OtherModels is one more
			break
		}
		points := new(series)
		for _, p := range one.Points {
			if validStep(p.Step) {
				p.restore(&points[p.Step])
			}
		}
		o.series[Key{one.Model, one.Backend}] = points
	}
	for _, one := range s.Codes {
		if len(o.codes) > maxCodes {
			break
		}
		counts := new([stepsPerHour]uint32)
		for _, n := range one.Counts {
			if n[0] < uint32(stepsPerHour) {
				counts[n[0]] = n[1]
			}
		}
		o.codes[codeKey{one.Model, one.Code}] = counts
	}
	for _, g := range s.Gauges {
		if validStep(g.Step) {
			o.gauges[g.Step] = gaugePoint{true, g.Waiting, g.Running}
		}
	}
	o.events = append(o.events, s.Events[:min(len(s.Events), maxEvents)]...)
	return o
}

func (s *storedPoint) restore(p *point) {
	p.requests, p.failed, p.refused, p.inFlight = s.Requests, s.Failed, s.Refused, s.InFlight
	p.prompt, p.completion = s.Prompt, s.Completion
	for _, f := range s.FirstToken {
		if int(f[0]) < buckets {
			p.firstToken[f[0]] = f[1]
		}
	}
}

func validStep(step int) bool { return step >= 0 && step < stepsPerHour }

func encode(s storedHour) ([]byte, error) {
	var out bytes.Buffer
	compressed := gzip.NewWriter(&out)
	if err := json.NewEncoder(compressed).Encode(s); err != nil {
		return nil, fmt.Errorf("encode history: %w", err)
	}
	if err := compressed.Close(); err != nil {
		return nil, fmt.Errorf("encode history: %w", err)
	}
	return out.Bytes(), nil
}

// maxStored limits the JSON of an hour, in bytes. One with the most series and codes is 8 MB.
const maxStored = 32 << 20

func decode(data []byte) (*hour, error) {
	plain, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("decode history: %w", err)
	}
	var s storedHour
	if err := json.NewDecoder(io.LimitReader(plain, maxStored)).Decode(&s); err != nil {
		return nil, fmt.Errorf("decode history: %w", err)
	}
	return s.restore(), nil
}

// load reads the hours of the last day.
func (h *History) load(ctx context.Context) {
	now := h.clock()
	h.mu.Lock()
	defer h.mu.Unlock()
	err := selectHours(ctx, h.db, h.gateway, now.Add(-Keep).Truncate(time.Hour).Unix(), func(begin int64, data []byte) {
		o, err := decode(data)
		if err != nil {
			h.log.Warn("an hour of the overview's history cannot be read", zap.Time("hour", time.Unix(begin, 0)), zap.Error(err))
			return
		}
		h.hours[begin] = o
	})
	if err != nil {
		h.log.Warn("the overview's history cannot be read", zap.Error(err))
	}
	prune(h.hours, now)
}

// save writes the hours that have changed, and deletes rows that are too old.
func (h *History) save(ctx context.Context) {
	oldest := h.clock().Add(-Keep).Truncate(time.Hour).Unix()
	changed := h.takeChanged()
	encoded := make(map[int64][]byte, len(changed))
	for begin, s := range changed {
		data, err := encode(s)
		if err != nil {
			h.log.Error("the overview's history cannot be encoded", zap.Error(err))
			return
		}
		encoded[begin] = data
	}
	writeCtx := context.WithoutCancel(ctx) // the write may run after ctx has ended
	err := h.db.WriteGrouped(ctx, func(tx database.Tx) error {
		for begin, data := range encoded {
			if err := h.upsertHour(writeCtx, tx, begin, data); err != nil {
				return err
			}
		}
		return deleteHoursBefore(writeCtx, tx, oldest)
	})
	if err != nil {
		h.markChanged(changed)
	}
	if failing := err != nil; failing != h.saveFailing {
		h.saveFailing = failing
		if failing {
			h.log.Warn("the overview's history cannot be saved; it is kept in memory", zap.Error(err))
		}
	}
}

// takeChanged returns the hours that are not saved, and marks them as saved.
func (h *History) takeChanged() map[int64]storedHour {
	h.mu.Lock()
	defer h.mu.Unlock()
	changed := map[int64]storedHour{}
	for begin, o := range h.hours {
		if o.changed {
			changed[begin] = o.stored()
			o.changed = false
		}
	}
	return changed
}

func (h *History) markChanged(hours map[int64]storedHour) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for begin := range hours {
		if o := h.hours[begin]; o != nil {
			o.changed = true
		}
	}
}
