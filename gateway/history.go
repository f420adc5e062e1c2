package gateway

import "basegate/console/history"

func (g *Gateway) sampleGauges() history.Gauges {
	load := g.ledger.Load()
	sampled := history.Gauges{Waiting: load.Waiting, Running: load.Running, InFlight: map[history.Key]int{}}
	for _, m := range g.fleet.BaseModels() {
		for _, b := range m.Backends() {
			sampled.Waiting += b.Held()
			sampled.InFlight[history.Key{Model: m.ID(), Backend: b.Name}] = int(b.InFlight())
		}
	}
	return sampled
}
