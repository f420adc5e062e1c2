package cli

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"basegate/budget/cluster"
	"basegate/database"
	"basegate/gateway/config"
)

func newGatewayList() *cobra.Command {
	return newList("List the gateways on the database, and which of them are alive",
		"List the gateways on the database: which are alive, their epoch, version, requests in flight and waiting, and the\n"+
			"age of their last heartbeat. A gateway is silent if its heartbeats have stopped for 12 seconds, and ended if it\n"+
			"has stopped or another gateway has ended its epoch; it is then listed for a day. An epoch that keeps rising is\n"+
			"a gateway that restarts, or two with one gateway.name. With SQLite there is one gateway, and no epoch.",
		func(cmd *cobra.Command) (list, error) {
			gateways, err := findGateways(cmd)
			return listGateways(gateways), err
		})
}

// findGateways returns the gateways on the configured database.
func findGateways(cmd *cobra.Command) ([]cluster.Gateway, error) {
	cfg, err := config.LoadPartial(configPath(cmd))
	if err != nil {
		return nil, err
	}
	certain, err := cfg.Config("database")
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	if !certain.Database.Postgres() {
		return findOnlyGateway(cmd.Context(), cfg)
	}
	return fromDatabase(cmd, func(ctx context.Context, db *database.DB) ([]cluster.Gateway, error) {
		return cluster.Gateways(ctx, db.Read())
	})
}

// findOnlyGateway returns the gateway that serves from a SQLite database; none if no process does.
func findOnlyGateway(ctx context.Context, cfg *config.Partial) ([]cluster.Gateway, error) {
	holder, here, err := findHolder(cfg)
	if err != nil || holder.Admin == "" { // a command holds the lock, or nothing does
		return nil, err
	}
	g := cluster.Gateway{Name: holder.Host, Alive: true, State: cluster.GatewayAlive} // it holds the lock, so it runs
	s, err := fetchStatus(ctx, cfg)
	switch {
	case err == nil && s.PID == holder.PID:
		g.Version, g.InFlight, g.LastHeartbeat = s.Version, s.InFlight, time.Now().UTC()
	case here:
		g.Alive, g.State = false, cluster.GatewaySilent
	}
	return []cluster.Gateway{g}, nil
}

func listGateways(gateways []cluster.Gateway) list {
	l := list{headings: []string{"GATEWAY", "STATE", "EPOCH", "VERSION", "IN FLIGHT", "WAITING", "HEARTBEAT"}}
	for _, g := range gateways {
		epoch, beat := "-", "-"
		if g.Epoch > 0 {
			epoch = strconv.FormatInt(g.Epoch, 10)
			beat = time.Duration(g.HeartbeatLag*float64(time.Second)).Round(100*time.Millisecond).String() + " ago"
		}
		l.add(g, g.Name, string(g.State), epoch, dash(g.Version), strconv.FormatInt(g.InFlight, 10), strconv.FormatInt(g.Waiting, 10), beat)
	}
	return l
}
