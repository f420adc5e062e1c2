//go:build e2e

package e2e_test

import (
	"context"
	"math/rand/v2"
	"time"

	"basegate/internal/wait"
)

// networkFault is a fault that a relay's network has for a limited time.
type networkFault struct {
	name        string
	maxDuration time.Duration                       // its duration is random, up to this
	conditions  func(rng *rand.Rand) linkConditions // of all links during the fault; may be nil
	apply       func(*link)                         // called for half of the links, new ones included; may break them; may be nil
	undo        func(*link)                         // called for the same links at the end; may be nil
}

// longFault exceeds the gateway's timeouts for a backend and for a client that does not read.
const shortFault, longFault = 2 * time.Second, 6 * time.Second

var networkFaults = []networkFault{
	{name: "latency", maxDuration: shortFault, conditions: func(rng *rand.Rand) linkConditions {
		return linkConditions{latency: 10*time.Millisecond + randomUpTo(rng, 300*time.Millisecond)}
	}},
	{name: "bandwidth", maxDuration: shortFault, conditions: func(rng *rand.Rand) linkConditions {
		return linkConditions{rate: 8<<10 + rng.IntN(128<<10)}
	}},
	{name: "slicing", maxDuration: shortFault, conditions: func(rng *rand.Rand) linkConditions {
		return linkConditions{slice: 1 + rng.IntN(60)}
	}},
	{name: "reset", apply: func(*link) {}, undo: (*link).reset},
	{name: "cut after some bytes", maxDuration: shortFault, apply: func(l *link) { l.bytesLeft = 1 + l.relay.rng.IntN(2000) }},
	{name: "blocked for a while", maxDuration: longFault, apply: (*link).block, undo: (*link).unblock},
	{name: "blocked, then reset", maxDuration: longFault, apply: (*link).block, undo: (*link).reset},
	{name: "blocked towards the client", maxDuration: longFault, apply: func(l *link) { l.blockDirection(toClient) }, undo: (*link).unblock},
	{name: "blocked towards the server", maxDuration: longFault, apply: func(l *link) { l.blockDirection(toServer) }, undo: (*link).unblock},
	{name: "half-open: only the server's end is reset", maxDuration: longFault, apply: func(l *link) { l.resetEnd(serverEnd) }, undo: (*link).reset},
	{name: "half-open: only the client's end is reset", maxDuration: longFault, apply: func(l *link) { l.resetEnd(clientEnd) }, undo: (*link).reset},
	{name: "half-closed towards the server", maxDuration: shortFault, apply: func(l *link) { l.closeWrite(serverEnd) }},
	{name: "half-closed towards the client", maxDuration: shortFault, apply: func(l *link) { l.closeWrite(clientEnd) }},
}

// randomUpTo returns a random duration from 0 to limit.
func randomUpTo(rng *rand.Rand, limit time.Duration) time.Duration {
	return time.Duration(rng.Int64N(int64(limit) + 1))
}

// block, blockDirection, resetEnd and closeWrite are called with the relay's lock held.

func (l *link) block() {
	l.blockDirection(toServer)
	l.blockDirection(toClient)
}

func (l *link) blockDirection(dir int) {
	if l.blocked[dir] == nil {
		l.blocked[dir] = make(chan struct{})
	}
}

// unblock ends the blocking of both directions.
func (l *link) unblock() {
	l.relay.mu.Lock()
	defer l.relay.mu.Unlock()
	for dir, ch := range l.blocked {
		if ch != nil {
			close(ch)
			l.blocked[dir] = nil
		}
	}
}

// resetEnd resets the connection at one end; the other end gets neither data nor a reset.
func (l *link) resetEnd(end int) {
	l.block()
	l.ends[end].SetLinger(0)
	l.ends[end].Close()
}

// closeWrite half-closes the connection at one end, as if the other had sent its FIN.
func (l *link) closeWrite(end int) {
	l.ends[end].CloseWrite()
}

// injectFaults starts one random fault after another until ctx ends, then stops the last one. It returns how often each
// fault occurred. The sequence depends on rng alone.
func (r *relay) injectFaults(ctx context.Context, rng *rand.Rand) (count map[string]int) {
	count = map[string]int{}
	for wait.For(ctx, randomUpTo(rng, time.Second)) {
		fault := networkFaults[rng.IntN(len(networkFaults))]
		count[fault.name]++
		undo := r.startFault(fault, rng)
		wait.For(ctx, randomUpTo(rng, fault.maxDuration))
		undo()
	}
	return count
}

// startFault starts a fault, which lasts until undo is called.
func (r *relay) startFault(f networkFault, rng *rand.Rand) (undo func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var affected []*link
	if f.conditions != nil {
		r.conditions = f.conditions(rng)
	}
	if f.apply != nil {
		r.applyFault = func(l *link) {
			if r.rng.IntN(2) == 0 {
				l.fault = f.name
				f.apply(l)
				affected = append(affected, l)
			}
		}
		for l := range r.links {
			if l.ends[serverEnd] != nil {
				r.applyFault(l)
			}
		}
	}
	return func() {
		r.mu.Lock()
		r.conditions, r.applyFault = linkConditions{}, nil
		r.mu.Unlock()
		if f.undo != nil {
			for _, l := range affected {
				f.undo(l)
			}
		}
	}
}
