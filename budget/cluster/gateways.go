package cluster

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"basegate/database"
)

// GatewayState says whether a gateway takes part in the cluster.
type GatewayState string

// The states.
const (
	GatewayAlive  GatewayState = "alive"
	GatewaySilent GatewayState = "silent" // its heartbeats have stopped, and no other gateway has ended its epoch yet
	GatewayEnded  GatewayState = "ended"  // it has left, or another gateway has ended its epoch
)

// Gateway is a gateway of the cluster, for operators.
type Gateway struct {
	Name          string       `json:"name"`
	Alive         bool         `json:"alive"`
	State         GatewayState `json:"state"`
	Epoch         int64        `json:"epoch"` // rises with each start and whenever another gateway ends it; 0 with SQLite
	Version       string       `json:"version"`
	InFlight      int64        `json:"in_flight"` // requests with a reservation
	Waiting       int64        `json:"waiting"`
	LastHeartbeat time.Time    `json:"last_heartbeat"`
	HeartbeatLag  float64      `json:"heartbeat_lag_seconds"` // its age
}

// endedShown is how long a gateway is listed after its last heartbeat if its epoch has ended.
const endedShown = 24 * time.Hour

// Gateways returns the gateways of a database that are alive or silent, and those that have ended in the last day, by name.
func Gateways(ctx context.Context, db database.Reader) ([]Gateway, error) {
	const text = `
		WITH clock AS (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now)
		SELECT g.name, g.alive, g.epoch, g.version, g.beat_at, clock.now - g.beat_at,
			(SELECT count(*) FROM inflight i WHERE i.gateway = g.id), (SELECT count(*) FROM waiter w WHERE w.gateway = g.id)
		FROM gateway g, clock WHERE g.alive OR g.beat_at > clock.now - $1 ORDER BY g.name`
	all := []Gateway{}
	err := database.Each(ctx, db, func(r *sql.Rows) error {
		var (
			g         Gateway
			current   bool
			beat, lag int64
		)
		if err := r.Scan(&g.Name, &current, &g.Epoch, &g.Version, &beat, &lag, &g.InFlight, &g.Waiting); err != nil {
			return err
		}
		lag = max(lag, 0)
		g.LastHeartbeat, g.HeartbeatLag = time.UnixMicro(beat).UTC(), float64(lag/1000)/1000
		switch {
		case !current:
			g.State = GatewayEnded
		case time.Duration(lag)*time.Microsecond > defaultDead:
			g.State = GatewaySilent
		default:
			g.State = GatewayAlive
		}
		g.Alive = g.State == GatewayAlive
		all = append(all, g)
		return nil
	}, text, endedShown.Microseconds())
	if err != nil {
		return nil, fmt.Errorf("list gateways: %w", err)
	}
	return all, nil
}
