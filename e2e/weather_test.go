//go:build e2e

package e2e_test

import (
	"context"
	"math/rand/v2"
	"time"
)

// mishap is something that a network does for a while.
type mishap struct {
	name    string
	most    time.Duration                 // how long it lasts, at the most
	weather func(dice *rand.Rand) weather // what all lines go through meanwhile
	strike  func(*line)                   // befalls half of the lines meanwhile, those that come too, and may break them
	lift    func(*line)                   // befalls the same at the end
}

// Holding outlasts the gateway's patience with a backend, and with a client that does not read.
const briefly, long = 2 * time.Second, 6 * time.Second

var mishaps = []mishap{
	{name: "latency", most: briefly, weather: func(dice *rand.Rand) weather {
		return weather{latency: 10*time.Millisecond + upTo(dice, 300*time.Millisecond)}
	}},
	{name: "bandwidth", most: briefly, weather: func(dice *rand.Rand) weather { return weather{rate: 8<<10 + dice.IntN(128<<10)} }},
	{name: "slicing", most: briefly, weather: func(dice *rand.Rand) weather { return weather{slice: 1 + dice.IntN(60)} }},
	{name: "reset", strike: func(*line) {}, lift: (*line).reset},
	{name: "cut within the bytes", most: briefly, strike: func(l *line) { l.left = 1 + l.relay.luck.IntN(2000) }},
	{name: "nothing passes for a while", most: long, strike: (*line).hold, lift: (*line).release},
	{name: "nothing passes, then it breaks", most: long, strike: (*line).hold, lift: (*line).reset},
	{name: "nothing passes to the client's end", most: long, strike: func(l *line) { l.holdWay(1) }, lift: (*line).release},
	{name: "nothing passes to the server's end", most: long, strike: func(l *line) { l.holdWay(0) }, lift: (*line).release},
	{name: "half-open: the server's end alone is reset", most: long, strike: func(l *line) { l.abandon(1) }, lift: (*line).reset},
	{name: "half-open: the client's end alone is reset", most: long, strike: func(l *line) { l.abandon(0) }, lift: (*line).reset},
	{name: "half-closed towards the server", most: briefly, strike: func(l *line) { l.finish(1) }},
	{name: "half-closed towards the client", most: briefly, strike: func(l *line) { l.finish(0) }},
}

// upTo is as long as the dice say.
func upTo(dice *rand.Rand, most time.Duration) time.Duration {
	return time.Duration(dice.Int64N(int64(most) + 1))
}

// hold, holdWay, abandon and finish are called under the relay's lock.

func (l *line) hold() {
	l.holdWay(0)
	l.holdWay(1)
}

func (l *line) holdWay(way int) {
	if l.held[way] == nil {
		l.held[way] = make(chan struct{})
	}
}

// release lets everything pass that was held.
func (l *line) release() {
	l.relay.mu.Lock()
	defer l.relay.mu.Unlock()
	for way, held := range l.held {
		if held != nil {
			close(held)
			l.held[way] = nil
		}
	}
}

// abandon resets one end, of which the other hears nothing.
func (l *line) abandon(end int) {
	l.hold()
	l.ends[end].SetLinger(0)
	l.ends[end].Close()
}

// finish tells one end that the other has nothing more to say.
func (l *line) finish(end int) {
	l.ends[end].CloseWrite()
}

// storm has one mishap after the other, until ctx ends, and then none. The dice alone decide which, and for how long; it
// counts them.
func (r *relay) storm(ctx context.Context, dice *rand.Rand) (count map[string]int) {
	count = map[string]int{}
	for pause(ctx, upTo(dice, time.Second)) {
		m := mishaps[dice.IntN(len(mishaps))]
		count[m.name]++
		lift := r.begin(m, dice)
		pause(ctx, upTo(dice, m.most))
		lift()
	}
	return count
}

// pause lets time pass; false when ctx has ended.
func pause(ctx context.Context, span time.Duration) bool {
	late := time.NewTimer(span)
	defer late.Stop()
	select {
	case <-late.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// begin has a mishap, until lift.
func (r *relay) begin(m mishap, dice *rand.Rand) (lift func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var struck []*line
	if m.weather != nil {
		r.now = m.weather(dice)
	}
	if m.strike != nil {
		r.strike = func(l *line) {
			if r.luck.IntN(2) == 0 {
				l.harm = m.name
				m.strike(l)
				struck = append(struck, l)
			}
		}
		for l := range r.lines {
			if l.ends[1] != nil {
				r.strike(l)
			}
		}
	}
	return func() {
		r.mu.Lock()
		r.now, r.strike = weather{}, nil
		r.mu.Unlock()
		if m.lift != nil {
			for _, l := range struck {
				m.lift(l)
			}
		}
	}
}
