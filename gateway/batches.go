package gateway

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"basegate/batch"
	"basegate/budget/admission"
	"basegate/database"
	"basegate/gateway/config"
	"basegate/identity"
	"basegate/proxy"
)

// NewBatches returns a Service for commands, which need no Start, and a function that closes its files.
func NewBatches(cfg *config.Config, db *database.DB) (*batch.Service, func() error, error) {
	files, err := openFiles(cfg)
	if err != nil {
		return nil, nil, err
	}
	return batch.New(db, files, nil, batchSettings(cfg), zap.NewNop()), files.Close, nil
}

// LineChecker returns a function that validates the bodies of lines with the configured models, without a gateway.
func LineChecker(ctx context.Context, cfg *config.Config) proxy.LineCheck {
	server := proxy.New(proxySettings(cfg, false), proxy.Deps{
		Fleet: NewFleet(cfg, zap.NewNop()), Memory: admission.NewMemory(maxBufferedBytes(cfg)), Registry: prometheus.NewRegistry(), Log: zap.NewNop(),
	})
	return func(endpoint string, body []byte) (proxy.CheckedLine, error) {
		return server.CheckLine(ctx, identity.Principal{}, endpoint, body, false)
	}
}
