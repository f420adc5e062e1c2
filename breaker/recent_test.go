package breaker_test

import (
	"slices"
	"testing"
	"time"

	"basegate/breaker"
)

func TestRecentReturnsTheLastObservations(t *testing.T) {
	b := breaker.New("gpu1", breaker.Settings{ConsecutiveFailures: 100, OpenFor: time.Minute, HalfOpenRequests: 1},
		func(breaker.State, breaker.State) {})
	report := func(c breaker.Class) {
		t.Helper()
		p, err := b.Allow(breaker.AnyKey)
		if err != nil {
			t.Fatal(err)
		}
		p.Report(c)
		p.Close()
	}
	classes := func() (all []breaker.Class) {
		for _, o := range b.Recent() {
			all = append(all, o.Class)
		}
		return all
	}
	if got := classes(); got != nil {
		t.Errorf("before any report: got %v, want none", got)
	}
	report(breaker.ClientGone)
	report(breaker.Success)
	if got, want := classes(), []breaker.Class{breaker.ClientGone, breaker.Success}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for range breaker.MaxRecent - 1 {
		report(breaker.ServerError)
	}
	got := classes()
	if len(got) != breaker.MaxRecent || got[0] != breaker.Success || got[1] != breaker.ServerError {
		t.Errorf("with the ring buffer full: got %v", got)
	}
	report(breaker.EngineDead)
	if got := classes(); got[len(got)-1] != breaker.EngineDead || got[0] != breaker.ServerError || b.State() != breaker.Open {
		t.Errorf("after EngineDead: got %v, breaker %v", got, b.State())
	}
}
