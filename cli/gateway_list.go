package cli

import (
	"cmp"
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
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the gateways on the database, and which of them are alive",
		Long: "List the gateways on the database: which are alive, their epoch, version, requests in flight and waiting, and the\n" +
			"age of their last heartbeat. A gateway is silent if its heartbeats have stopped for 12 seconds, and ended if it\n" +
			"has stopped or another gateway has ended its epoch; it is then listed for a day. An epoch that keeps rising is\n" +
			"a gateway that restarts, or two with one gateway.name. With SQLite there is one gateway, and no epoch.",
		Args: cobra.NoArgs,
		RunE: run(func(cmd *cobra.Command, _ []string) error {
			gateways, err := listGateways(cmd)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd, gateways)
			}
			return printGateways(cmd, gateways)
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	return cmd
}

// listGateways returns the gateways on the configured database.
func listGateways(cmd *cobra.Command) (all []cluster.Gateway, err error) {
	cfg, err := loadPartialConfig(cmd)
	if err != nil {
		return nil, err
	}
	certain, err := cfg.Config("database")
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	if !certain.Database.Postgres() {
		return listOnlyGateway(cmd.Context(), cfg, certain.Database.Path)
	}
	err = withDatabase(cmd, func(ctx context.Context, db *database.DB) error {
		all, err = cluster.Gateways(ctx, db.Read())
		return err
	})
	return all, err
}

// listOnlyGateway returns the gateway that serves from a SQLite database; none if no process does.
func listOnlyGateway(ctx context.Context, cfg *config.Partial, path string) ([]cluster.Gateway, error) {
	holder, held, err := database.FindHolder(path)
	if err != nil {
		return nil, fmt.Errorf("find gateway: %w", err)
	}
	if !held || holder.Admin == "" { // a command holds the lock
		return []cluster.Gateway{}, nil
	}
	g := cluster.Gateway{Name: holder.Host, Alive: true, State: cluster.GatewayAlive} // it holds the lock, so it runs
	s, err := fetchStatus(ctx, cfg)
	switch {
	case err == nil && s.PID == holder.PID:
		g.Version, g.InFlight, g.LastHeartbeat = s.Version, s.InFlight, time.Now().UTC()
	case adminAddress(holder) != "":
		g.Alive, g.State = false, cluster.GatewaySilent
	}
	return []cluster.Gateway{g}, nil
}

func printGateways(cmd *cobra.Command, gateways []cluster.Gateway) error {
	var rows [][]string
	for _, g := range gateways {
		epoch, beat := "-", "-"
		if g.Epoch > 0 {
			epoch = strconv.FormatInt(g.Epoch, 10)
			beat = time.Duration(g.HeartbeatLag*float64(time.Second)).Round(100*time.Millisecond).String() + " ago"
		}
		rows = append(rows, []string{
			g.Name, string(g.State), epoch, cmp.Or(g.Version, "-"), strconv.FormatInt(g.InFlight, 10),
			strconv.FormatInt(g.Waiting, 10), beat,
		})
	}
	return printTable(cmd, []string{"GATEWAY", "STATE", "EPOCH", "VERSION", "IN FLIGHT", "WAITING", "HEARTBEAT"}, rows)
}
