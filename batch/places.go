package batch

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"basegate/database"
)

// Backend is a backend whose places for batch lines the gateways share. Each gateway leases some, and runs no more lines
// than that. The methods are safe for concurrent use.
type Backend interface {
	// Names returns the ids of the model and the backend, which are the same in all gateways.
	Names() (model, backend string)

	// ShrinkPlaces lowers the lease to most, but not below the lines that run, and returns it with the number of those, and
	// whether a line has found no place since the last call because all leased ones were taken.
	ShrinkPlaces(most int64) (places, running int64, short bool)

	// GrowPlaces raises the lease to places.
	GrowPlaces(places int64)
}

const (
	placesTick   = 50 * time.Millisecond  // between checks, in memory, for lines that have found no place
	placesAsk    = 100 * time.Millisecond // at least, between two transactions for a backend
	placesRenew  = 500 * time.Millisecond // between transactions that divide the places of a backend with lines anew
	placesIdle   = 2 * time.Second        // after which places that no line takes are given back
	rotatePlaces = 10 * time.Second       // after which another gateway gets the place that remains from the division
)

// placeDemand is what sharePlaces knows of a backend.
type placeDemand struct {
	holder holder
	leased int64     // by this gateway, as of the last transaction
	share  int64     // of this gateway, as of the last transaction
	used   time.Time // when lines last ran or waited for a place
	asked  time.Time // the last transaction
}

// sharePlaces leases places of backends for the lines of this gateway, until the service's context ends.
func (s *Service) sharePlaces() {
	tick := time.NewTicker(placesTick)
	defer tick.Stop()
	demands := map[[2]string]*placeDemand{}
	failing := false
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
		}
		err := s.sharePlacesOnce(s.ctx, demands)
		if err != nil && !failing && s.ctx.Err() == nil && !errors.Is(err, errLeaseLost) {
			s.log.Warn("the places for batch lines cannot be divided among the gateways", zap.Error(err))
		}
		failing = err != nil
	}
}

// sharePlacesOnce makes one transaction for all backends whose lease is to change or to be divided anew.
func (s *Service) sharePlacesOnce(ctx context.Context, demands map[[2]string]*placeDemand) error {
	me, now := s.cluster.holder(), time.Now()
	var asked []*placeAsk
	for _, b := range s.cluster.Backends() {
		model, name := b.Names()
		d := demands[[2]string{model, name}]
		if d == nil {
			d = &placeDemand{}
			demands[[2]string{model, name}] = d
		}
		if ask := d.next(b, me, now); ask != nil {
			asked = append(asked, ask)
		}
	}
	if len(asked) == 0 || me == (holder{}) {
		return nil
	}
	most, turn := int64(s.settings.Load().PerBackend), s.clock().UnixNano()/int64(rotatePlaces)
	err := s.write(ctx, func(ctx context.Context, tx database.Tx) error {
		if err := checkHolder(ctx, tx, me); err != nil {
			return err
		}
		for _, ask := range asked {
			if err := ask.divide(ctx, tx, me, most, turn); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	grown := false
	for _, ask := range asked {
		ask.demand.leased, ask.demand.share = ask.places, ask.share
		if ask.places > ask.keep {
			ask.backend.GrowPlaces(ask.places)
			grown = true
		}
	}
	if grown {
		wake(s.changed)
	}
	return nil
}

// placeAsk is one backend in a transaction that divides places.
type placeAsk struct {
	backend Backend
	demand  *placeDemand
	keep    int64 // places that this gateway has, and does not give back
	wants   bool  // it takes more, up to its share

	places, share int64 // the result
}

// next returns what to ask for a backend; nil if nothing has to change.
func (d *placeDemand) next(b Backend, me holder, now time.Time) *placeAsk {
	if me != d.holder { // the rows of another epoch do not count
		*d = placeDemand{holder: me}
	}
	most, idle := min(d.leased, d.share), now.Sub(d.used) > placesIdle // others want what is above the share
	if idle {
		most = 0
	}
	keep, running, short := b.ShrinkPlaces(most)
	if running > 0 || short {
		d.used, idle = now, false
	}
	since := now.Sub(d.asked)
	more, less := short && d.leased < max(d.share, 1), keep < d.leased
	if (more || less) && since >= placesAsk || !idle && since >= placesRenew {
		d.asked = now
		return &placeAsk{backend: b, demand: d, keep: keep, wants: !idle}
	}
	return nil
}

// divide leases the places of a backend that this gateway keeps, and more if it wants and they are free. Gateways that want
// places have equal shares; one that has more gives them back as its lines end. most is how many the backend has.
func (a *placeAsk) divide(ctx context.Context, tx database.Tx, me holder, most, turn int64) error {
	model, backend := a.backend.Names()
	others, err := placesOfOthers(ctx, tx, model, backend, me)
	if err != nil {
		return err
	}
	taken, rank, wanting := int64(0), int64(0), int64(1)
	for _, o := range others {
		taken += o.places
		if o.wants {
			wanting++
			if o.gateway < me.gateway {
				rank++
			}
		}
	}
	a.share = most / wanting
	if (rank+turn)%wanting < most%wanting {
		a.share++
	}
	a.places = a.keep
	if a.wants {
		a.places = max(a.keep, min(a.share, most-taken))
	}
	return setPlaces(ctx, tx, model, backend, me, a.places, a.wants)
}

// otherPlaces are the places that another gateway has leased.
type otherPlaces struct {
	gateway int32
	places  int64
	wants   bool
}
