package gateway

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"basegate/batch"
	"basegate/budget/admission"
	"basegate/budget/cluster"
	"basegate/database"
	"basegate/fleet"
	"basegate/gateway/config"
	"basegate/identity"
	"basegate/proxy"
)

// completer lets batches send their lines the way of live requests.
type completer struct {
	proxy *proxy.Server
	keys  *identity.Keys
}

var lineStates = map[proxy.LineState]batch.State{
	proxy.LineEnded: batch.Ended, proxy.LineWaits: batch.Waits, proxy.LineCancelled: batch.Cancelled,
}

// ServeLine implements batch.Completer.
func (c completer) ServeLine(ctx context.Context, l batch.Line) batch.Result {
	place, _ := l.Place.(*fleet.Place) // AcquirePlace's, or nil
	r := c.proxy.ServeLine(ctx, proxy.Line{
		Batch: l.Batch, Account: l.Account, Key: l.Key, Endpoint: l.Endpoint, Body: l.Body,
		Deadline: l.Deadline, Place: place, Memory: l.Memory,
	})
	return batch.Result{
		State: lineStates[r.State], RequestID: r.RequestID, Status: r.Status, Body: r.Body, Success: r.Code == "", Retryable: r.Retryable,
		Began: r.Began, InputTokens: r.Usage.Prompt, OutputTokens: r.Usage.Completion, Settlement: r.Settlement, Release: r.Release, Reason: batch.Reason(r.Reason), ResetsAt: r.ResetsAt,
	}
}

// Allocate implements batch.Completer.
func (c completer) Allocate(key string) admission.Allocation { return c.proxy.Allocate(key) }

// AcquirePlace implements batch.Completer.
func (c completer) AcquirePlace(model string, perBackend int, start bool) (batch.Place, batch.Reason) {
	place, reason := c.proxy.AcquirePlace(model, perBackend, start)
	if place == nil {
		return nil, batch.Reason(reason)
	}
	return place, batch.Nothing
}

// Standing implements batch.Completer.
func (c completer) Standing(key string) batch.Standing {
	s := c.proxy.Standing(key)
	return batch.Standing{Reason: batch.Reason(s.Reason), ResetsAt: s.ResetsAt, Revoked: s.Revoked, Caps: s.Caps}
}

// Checker implements batch.Completer.
func (c completer) Checker(ctx context.Context, account, key string) (func(string, []byte) (string, error), error) {
	principal, err := c.keys.Identify(ctx, account, key)
	if err != nil {
		return nil, err //nolint:wrapcheck // it says which key
	}
	return func(endpoint string, body []byte) (string, error) {
		return c.proxy.CheckLine(ctx, principal, endpoint, body)
	}, nil
}

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
	return batch.New(db, files, completer{}, batchSettings(cfg), zap.NewNop()), files.Close, nil
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

// extensions are the routes of files and batches as the proxy mounts them.
func extensions(s *batch.Service) []proxy.Extension {
	var all []proxy.Extension
	for _, r := range s.Routes() {
		all = append(all, proxy.Extension{Method: r.Method, Path: r.Path, ReadsBody: r.ReadsBody, Serve: func(c proxy.ExtensionCall) error {
			return r.Serve(&batch.Call{Response: c.Response, Request: c.Request, Account: c.Account, Key: c.Key, Param: c.Param})
		}})
	}
	return all
}
