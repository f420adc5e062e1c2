package fleet

import (
	"context"
	"net/http"
	"time"

	"basegate/breaker"
	"basegate/validate"
)

// healthTimeout limits the question after a failed attempt, which the client waits for.
const healthTimeout = 2 * time.Second

// The V1 engine of these versions responds 200 to /health, whatever has become of it.
var (
	blindHealthSince = validate.Version{Minor: 8}
	blindHealthUntil = validate.Version{Minor: 9, Patch: 2}
)

// Health requests /health after an attempt has failed.
func (b *Backend) Health(ctx context.Context) breaker.Health {
	ctx, cancel := context.WithTimeout(ctx, min(b.settings.ProbeTimeout, healthTimeout))
	defer cancel()
	response, err := b.Get(ctx, "/health")
	version := b.VLLM()
	switch {
	case err != nil && isRefused(err):
		return breaker.NotListening
	case err != nil:
		return breaker.Silent
	case response.Status == http.StatusServiceUnavailable, response.Status == http.StatusInternalServerError: // 500 before 0.11
		return breaker.Unhealthy
	case response.Status != http.StatusOK, version.Before(blindHealthUntil) && !version.Before(blindHealthSince):
		return breaker.Silent
	}
	return breaker.Healthy
}
