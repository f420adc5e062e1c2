package fleet_test

import (
	"errors"
	"sync"
	"testing"

	"basegate/fleet"
)

func TestSharedPlacesAreThoseThatWereLeased(t *testing.T) {
	f := startFleet(t, modelConfig(t, "m", newServer(t, 100).URL))
	m := getModel(t, f, "m")
	b := m.Backends()[0]
	take := func(want error) *fleet.Place {
		t.Helper()
		p, err := m.AcquirePlace(fleet.Caller{}, 4)
		if !errors.Is(err, want) {
			t.Fatalf("AcquirePlace: %v, want %v", err, want)
		}
		return p
	}
	take(nil).Release() // alone, a gateway has all places
	f.SharePlaces()
	take(fleet.ErrNoPlace)
	if leased, running, short := b.ShrinkPlaces(4); leased != 0 || running != 0 || !short {
		t.Errorf("before a lease: %d leased, %d running, short %t; want 0, 0, true", leased, running, short)
	}
	b.GrowPlaces(2)
	first, second := take(nil), take(nil)
	take(fleet.ErrNoPlace)
	if leased, running, short := b.ShrinkPlaces(1); leased != 2 || running != 2 || !short {
		t.Errorf("while two lines run: %d leased, %d running, short %t; want 2, 2, true", leased, running, short)
	}
	first.Release()
	if leased, running, short := b.ShrinkPlaces(1); leased != 1 || running != 1 || short {
		t.Errorf("after one has ended: %d leased, %d running, short %t; want 1, 1, false", leased, running, short)
	}
	take(fleet.ErrNoPlace)
	second.Release()
	b.GrowPlaces(100)
	for range 4 {
		defer take(nil).Release()
	}
	take(fleet.ErrNoPlace) // the configured limit is each gateway's too
}

// A lease that shrinks while lines begin is never smaller than their number.
func TestShrunkenLeaseCoversTheLinesThatRun(t *testing.T) {
	f := startFleet(t, modelConfig(t, "m", newServer(t, 100).URL))
	f.SharePlaces()
	m := getModel(t, f, "m")
	b := m.Backends()[0]
	b.GrowPlaces(8)
	var taking sync.WaitGroup
	for range 4 {
		taking.Go(func() {
			for range 200 {
				if p, err := m.AcquirePlace(fleet.Caller{}, 100); err == nil {
					p.Release()
				}
			}
		})
	}
	for i := range 400 {
		if leased, running, _ := b.ShrinkPlaces(int64(i % 8)); running > leased || leased > 8 {
			t.Errorf("%d lines run with %d places leased", running, leased)
		}
		b.GrowPlaces(8)
	}
	taking.Wait()
}
