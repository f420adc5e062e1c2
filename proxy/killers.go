package proxy

import (
	"hash/maphash"
	"slices"
	"sync"
	"time"

	apierr "basegate/errors"
	"basegate/fleet"
)

const (
	// killerMemory is how long a request that has met two dead engines is refused.
	killerMemory = 10 * time.Minute
	// killerDeaths is the number of engines whose death makes a request one that is refused.
	killerDeaths = 2
	// maxRemembered limits the requests that are remembered because an engine has died of them, or beside them.
	maxRemembered = 10_000
)

// killers remembers the requests that engines have died of, by keyed hashes of their bodies: clients send again what
// failed, and each time it may take an engine from everybody.
type killers struct {
	seed     maphash.Seed
	clock    func() time.Time
	mu       sync.Mutex
	requests map[uint64]deaths
}

// deaths are the engines that have died while they worked on one request.
type deaths struct {
	engines []fleet.Run
	until   time.Time
}

func newKillers() *killers {
	return &killers{seed: maphash.MakeSeed(), clock: time.Now, requests: map[uint64]deaths{}}
}

// count counts the death of an engine in which the request was. Many requests may be in one engine that dies.
func (k *killers) count(request uint64, engine fleet.Run) {
	if engine == (fleet.Run{}) {
		return // it may have been dead before
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.clock()
	d := k.requests[request]
	switch {
	case now.After(d.until):
		d.engines = nil
	case slices.Contains(d.engines, engine) || len(d.engines) >= killerDeaths:
		return
	}
	if d.engines == nil && len(k.requests) >= maxRemembered {
		k.forget(now)
	}
	d.engines, d.until = append(d.engines, engine), now.Add(killerMemory)
	k.requests[request] = d
}

// forget removes the requests whose time is over, and all if that leaves too many.
func (k *killers) forget(now time.Time) {
	for request, d := range k.requests {
		if now.After(d.until) {
			delete(k.requests, request)
		}
	}
	if len(k.requests) >= maxRemembered {
		clear(k.requests)
	}
}

func (k *killers) has(request uint64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	d := k.requests[request]
	return len(d.engines) >= killerDeaths && k.clock().Before(d.until)
}

// refuseKiller refuses a request that has met two dead engines, whoever sends it.
func (s *Server) refuseKiller(x *exchange) error {
	x.attempts.fingerprint = maphash.Bytes(s.killers.seed, x.asked().Body())
	if s.killers.has(x.attempts.fingerprint) {
		return apierr.EngineKiller(0, 0)
	}
	return nil
}
