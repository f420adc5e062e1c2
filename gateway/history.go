package gateway

import (
	"fmt"

	"basegate/budget"
	"basegate/fleet"
	"basegate/history"
	"basegate/proxy"
)

// recordEnded counts a request in the history.
func (g *Gateway) recordEnded(e proxy.Ended) { g.history.Record(history.Request(e)) }

// sampleGauges returns what the history samples.
func (g *Gateway) sampleGauges() history.Gauges {
	queue := g.queue.Stats()
	sampled := history.Gauges{
		Waiting: queue.Waiting + g.ledger.Waiting(), Running: queue.Running, InFlight: map[history.Key]int{},
	}
	for _, m := range g.fleet.Models() {
		for _, b := range m.Backends() {
			sampled.InFlight[history.Key{Model: m.ID(), Backend: b.Name}] = int(b.InFlight())
		}
	}
	return sampled
}

// fleetEvents are the events of the timeline by those of the fleet.
var fleetEvents = map[fleet.EventKind]history.EventKind{
	fleet.BreakerOpened: history.BreakerOpened,
	fleet.BreakerClosed: history.BreakerClosed,
	fleet.BootBegun:     history.BootBegun,
	fleet.BootEnded:     history.BootEnded,
	fleet.BootStopped:   history.BootStopped,
	fleet.BootFailed:    history.BootFailed,
}

// onFleetEvent adds an event of a backend to the timeline.
func (g *Gateway) onFleetEvent(e fleet.Event) {
	g.history.Add(history.Event{Kind: fleetEvents[e.Kind], Model: e.Model, Backend: e.Backend, Detail: e.Reason})
}

// onBudgetAlarm adds the alarm of a cap to the timeline.
func (g *Gateway) onBudgetAlarm(a budget.Alarm) {
	e := history.Event{Kind: history.BudgetNear, AccountID: a.Account, Detail: describeAlarm(a)}
	if a.Percent == budget.UsedUp {
		e.Kind = history.BudgetUsed
	}
	if a.Cap.Scope == budget.Key {
		e.KeyID = a.Key
	}
	g.history.Add(e)
}

// meterNames are what a meter counts, in words.
var meterNames = map[budget.Meter]string{
	budget.Total: "tokens", budget.Input: "prompt tokens", budget.Output: "completion tokens",
}

// describeAlarm says what is used of which cap.
func describeAlarm(a budget.Alarm) string {
	return fmt.Sprintf("%d of %d %s of the %s are used; resets at %s UTC",
		a.Cap.Used, a.Cap.Limit, meterNames[a.Cap.Meter], a.Cap.Window, a.Cap.ResetsAt.UTC().Format("2006-01-02 15:04"))
}
