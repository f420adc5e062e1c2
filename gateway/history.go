package gateway

import "basegate/console/history"

// sampleGauges returns what the history samples.
func (g *Gateway) sampleGauges() history.Gauges {
	queue := g.queue.Stats()
	sampled := history.Gauges{
		Waiting: queue.Waiting + g.ledger.Waiting(), Running: queue.Running, InFlight: map[history.Key]int{},
	}
	for _, m := range g.fleet.Models() {
		for _, b := range m.Backends() {
			sampled.Waiting += b.Held()
			sampled.InFlight[history.Key{Model: m.ID(), Backend: b.Name}] = int(b.InFlight())
		}
	}
	return sampled
}
