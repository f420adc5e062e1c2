package breaker_test

import (
	"slices"
	"testing"
	"time"

	"basegate/breaker"
)

func TestTheLastOutcomesAreRemembered(t *testing.T) {
	b := breaker.New("gpu1", breaker.Settings{ConsecutiveFailures: 100, OpenFor: time.Minute, HalfOpenRequests: 1},
		func(breaker.State, breaker.State) {})
	report := func(c breaker.Class) {
		t.Helper()
		p, err := b.Allow()
		if err != nil {
			t.Fatal(err)
		}
		p.Report(c)
		p.Close()
	}
	classes := func() (all []breaker.Class) {
		for _, o := range b.Outcomes() {
			all = append(all, o.Class)
		}
		return all
	}
	if got := classes(); got != nil {
		t.Errorf("at the beginning: %v", got)
	}
	report(breaker.ClientGone)
	report(breaker.Success)
	if got, want := classes(), []breaker.Class{breaker.ClientGone, breaker.Success}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for range breaker.Remembered - 1 {
		report(breaker.ServerError)
	}
	got := classes()
	if len(got) != breaker.Remembered || got[0] != breaker.Success || got[1] != breaker.ServerError {
		t.Errorf("after a round: %v", got)
	}
	report(breaker.EngineDead)
	if got := classes(); got[len(got)-1] != breaker.EngineDead || got[0] != breaker.ServerError || b.State() != breaker.Open {
		t.Errorf("after the last: %v, %v", got, b.State())
	}
}
