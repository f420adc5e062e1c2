package gateway

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"basegate/batch"
	"basegate/budget/admission"
	"basegate/budget/cluster"
	"basegate/database"
	"basegate/gateway/config"
	"basegate/identity"
	"basegate/proxy"
)

// shareBatches makes the gateway run batches together with those on the same PostgreSQL database.
func (g *Gateway) shareBatches() {
	l, ok := g.ledger.(*cluster.Ledger)
	if !ok {
		return
	}
	g.fleet.SharePlaces()
	g.batches.Join(batch.Cluster{Epoch: l.Epoch, Backends: func() (all []batch.Backend) {
		for _, m := range g.fleet.Models() {
			for _, b := range m.Backends() {
				all = append(all, b)
			}
		}
		return all
	}})
}

// NewBatches returns a Service for commands, which need no Start, and a function that closes its files.
func NewBatches(cfg *config.Config, db *database.DB) (*batch.Service, func() error, error) {
	files, err := openFiles(cfg)
	if err != nil {
		return nil, nil, err
	}
	return batch.New(db, files, nil, batchSettings(cfg), zap.NewNop()), files.Close, nil
}

// LineChecker returns a function that validates the bodies of lines with the configured models, without a gateway.
func LineChecker(ctx context.Context, cfg *config.Config) func(string, []byte) (string, error) {
	server := proxy.New(proxySettings(cfg, false), proxy.Deps{
		Fleet: NewFleet(cfg, zap.NewNop()), Queue: admission.New(queueSettings(cfg)), Registry: prometheus.NewRegistry(), Log: zap.NewNop(),
	})
	return func(endpoint string, body []byte) (string, error) {
		return server.CheckLine(ctx, identity.Principal{}, endpoint, body)
	}
}
