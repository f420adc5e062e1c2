package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"basegate/database"
	"basegate/fleet"
	"basegate/gateway"
	"basegate/gateway/config"
)

func newModel() *cobra.Command {
	return newGroup("model", "List, warm and stop the models, and book windows for them",
		newModelList(),
		newModelCommand("warm ID", "Start a model, or restart the idle time of a running one", fleet.CommandWarm),
		newModelCommand("stop ID", "Drain and stop a model until the next request for it", fleet.CommandStop),
		newWindow(),
	)
}

func newModelList() *cobra.Command {
	return newList("List the models and the states of their backends",
		"List the models and the states of their backends, as the running gateway reports them.\n"+
			"If no gateway answers at server.admin_listen, this command probes every backend itself.",
		func(cmd *cobra.Command) (list, error) {
			partial, err := config.LoadPartial(configPath(cmd))
			if err != nil {
				return list{}, err
			}
			if err := partial.Mistakes(); err != nil {
				return list{}, fmt.Errorf("read configuration: %w", err)
			}
			cfg, _ := partial.Config()
			if s, err := fetchStatus(cmd.Context(), partial); err == nil && slices.EqualFunc(s.Models, cfg.Models, isOf) {
				return listModels(s.Models), nil
			}
			const notice = "No gateway answers at %s; the backends were probed instead.\n"
			fmt.Fprintf(cmd.ErrOrStderr(), notice, cfg.Server.AdminListen)
			var snapshots []fleet.ModelSnapshot
			err = withProbedFleet(cmd.Context(), cfg, func(f *fleet.Fleet) { snapshots = f.Snapshot() })
			return listModels(snapshots), err
		})
}

// isOf reports whether a snapshot is of a model. A gateway that runs another configuration has other models.
func isOf(s fleet.ModelSnapshot, m config.Model) bool { return s.ID == m.ID }

// withProbedFleet calls operation with a fleet whose backends have each been probed once.
func withProbedFleet(ctx context.Context, cfg *config.Config, operation func(*fleet.Fleet)) error {
	f := gateway.NewFleet(cfg, zap.NewNop())
	defer f.Close()
	if err := f.Probe(ctx); err != nil {
		return fmt.Errorf("probe backends: %w", err)
	}
	operation(f)
	return nil
}

func listModels(snapshots []fleet.ModelSnapshot) list {
	l := list{headings: []string{"MODEL", "CHECKPOINT", "PRECISION", "STATUS", "CONTEXT", "BOOT", "BACKENDS", "WINDOWS"}}
	for _, m := range snapshots {
		length, boot := "-", "-"
		if m.MaxModelLen != nil {
			length = strconv.FormatInt(*m.MaxModelLen, 10)
		}
		if m.BootEstimate > 0 {
			boot = (time.Duration(m.BootEstimate) * time.Second).String()
		}
		var states []string
		for _, b := range m.Backends {
			states = append(states, b.Name+": "+string(b.State))
		}
		windows := slices.Clone(m.Windows)
		for _, b := range m.Booked {
			windows = append(windows, formatTime(b.From)+" to "+formatTime(b.To))
		}
		l.add(m, m.ID, m.Checkpoint, dash(m.Precision), m.Status, length, boot, strings.Join(states, ", "), dash(strings.Join(windows, "; ")))
	}
	return l
}

var errNoModel = errors.New("no such model in the configuration")

// errNotManaged is returned for a model whose backends the gateway can neither start nor stop.
var errNotManaged = errors.New("no backend of this model has a launch or sleep section in the configuration, " +
	"so the gateway can neither start nor stop it")

// withManagedModel opens the database for one operation on a model that the gateway can start and stop. It passes on the
// short id of the model, which may be given by an alias.
func withManagedModel(cmd *cobra.Command, id string, operation func(ctx context.Context, db *database.DB, model string) error) error {
	cfg, err := loadConfig(cmd)
	if err != nil {
		return err
	}
	m, err := findModel(cfg, id)
	if err != nil {
		return err
	}
	if !m.Managed() {
		return fmt.Errorf("%s: %w", m.ID, errNotManaged)
	}
	return useDatabase(cmd.Context(), &cfg.Database, func(ctx context.Context, db *database.DB) error { return operation(ctx, db, m.ID) })
}

// findModel returns the model with an id or alias. The error lists the ids.
func findModel(cfg *config.Config, id string) (*config.Model, error) {
	for i := range cfg.Models {
		if m := &cfg.Models[i]; m.ID == id || slices.Contains(m.Aliases, id) {
			return m, nil
		}
	}
	return nil, fmt.Errorf("%w: %s; there are %s", errNoModel, id, strings.Join(cfg.ModelIDs(), ", "))
}

// newModelCommand returns a command that the running gateway executes.
func newModelCommand(use, short string, command fleet.Command) *cobra.Command {
	const long = ".\nThe running gateway executes the command within a second. If none runs within a minute, the command is dropped."
	return newCommand(use, short, short+long, func(cmd *cobra.Command, args []string) error {
		return withManagedModel(cmd, args[0], func(ctx context.Context, db *database.DB, model string) error {
			return fleet.Enqueue(ctx, db, model, command)
		})
	})
}
