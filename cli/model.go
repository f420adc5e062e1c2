package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"basegate/config"
	"basegate/database"
	"basegate/fleet"
	"basegate/gateway"
)

func newModel() *cobra.Command {
	cmd := &cobra.Command{Use: "model", Short: "List, warm and stop the models, and book windows for them", Args: cobra.NoArgs, RunE: group}
	cmd.AddCommand(
		newModelList(),
		modelOrder("warm ID", "Start a model, or keep one that runs from idling out for a while", fleet.CommandWarm),
		modelOrder("stop ID", "Stop a model when its requests have ended, until somebody asks for it", fleet.CommandStop),
		newWindow(),
	)
	return cmd
}

func newModelList() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the models and how their backends are",
		Long: "List the models and how their backends are, as the running gateway knows them.\n" +
			"Where none answers at server.admin_listen, this command asks every backend itself.",
		Args: cobra.NoArgs,
		RunE: run(func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			reports, err := askGateway(cmd.Context(), cfg)
			if err != nil {
				fmt.Fprintf(cmd.ErrOrStderr(), "No gateway answers at %s; these are the answers of the backends.\n", cfg.Server.AdminListen)
				if reports, err = askBackends(cmd.Context(), cfg); err != nil {
					return err
				}
			}
			if asJSON {
				return printJSON(cmd, reports)
			}
			return printModels(cmd, reports)
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	return cmd
}

// gatewayWithin is how long the running gateway has to tell of its models.
const gatewayWithin = 2 * time.Second

var errNoReport = errors.New("no report")

// askGateway asks the running gateway for what it knows.
func askGateway(ctx context.Context, cfg *config.Config) (reports []fleet.ModelSnapshot, err error) {
	ctx, cancel := context.WithTimeout(ctx, gatewayWithin)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+cfg.Server.AdminListen+"/models", nil)
	if err != nil {
		return nil, fmt.Errorf("ask gateway: %w", err)
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask gateway: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, errNoReport
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 16<<20)).Decode(&reports); err != nil {
		return nil, fmt.Errorf("ask gateway: %w", err)
	}
	same := slices.EqualFunc(reports, cfg.Models, func(r fleet.ModelSnapshot, m config.Model) bool { return r.ID == m.ID })
	if !same { // the gateway of another configuration
		return nil, errNoReport
	}
	return reports, nil
}

// askBackends finds out by itself.
func askBackends(ctx context.Context, cfg *config.Config) (reports []fleet.ModelSnapshot, err error) {
	err = probed(ctx, cfg, func(f *fleet.Fleet) error {
		reports = f.Snapshot()
		return nil
	})
	return reports, err
}

// probed gives do a fleet each of whose backends has been asked once.
func probed(ctx context.Context, cfg *config.Config, do func(*fleet.Fleet) error) error {
	f := gateway.NewFleet(cfg, zap.NewNop())
	defer f.Close()
	if err := f.Start(ctx); err != nil {
		return fmt.Errorf("ask backends: %w", err)
	}
	return do(f)
}

func printModels(cmd *cobra.Command, reports []fleet.ModelSnapshot) error {
	var rows [][]string
	for _, r := range reports {
		length, boot := "-", "-"
		if r.MaxModelLen != nil {
			length = strconv.FormatInt(*r.MaxModelLen, 10)
		}
		if r.BootEstimate > 0 {
			boot = (time.Duration(r.BootEstimate) * time.Second).String()
		}
		var states []string
		for _, b := range r.Backends {
			states = append(states, b.Name+": "+string(b.State))
		}
		windows := slices.Clone(r.Windows)
		for _, b := range r.Booked {
			windows = append(windows, date(b.From)+" to "+date(b.To))
		}
		rows = append(rows, []string{
			r.ID, r.Checkpoint, dash(r.Precision), r.Status, length, boot, strings.Join(states, ", "), dash(strings.Join(windows, "; ")),
		})
	}
	return printTable(cmd, []string{"MODEL", "CHECKPOINT", "PRECISION", "STATUS", "CONTEXT", "BOOT", "BACKENDS", "WINDOWS"}, rows)
}

// errNoModel says that the configuration has no such model.
var errNoModel = errors.New("no such model in the configuration")

// withModel opens the database for something about one model of the configuration.
func withModel(cmd *cobra.Command, id string, do func(context.Context, *database.DB) error) error {
	cfg, err := loadConfig(cmd)
	if err != nil {
		return err
	}
	var known []string
	for _, m := range cfg.Models {
		if m.ID == id {
			return withDatabase(cmd, do)
		}
		known = append(known, m.ID)
	}
	return fmt.Errorf("%w: %s; there are %s", errNoModel, id, strings.Join(known, ", "))
}

// modelOrder is a command that the running gateway obeys.
func modelOrder(use, short string, order fleet.Command) *cobra.Command {
	return &cobra.Command{
		Use:   use,
		Short: short,
		Long:  short + ".\nThe running gateway obeys within a second. One that is not running never does.",
		Args:  cobra.ExactArgs(1),
		RunE: run(func(cmd *cobra.Command, args []string) error {
			return withModel(cmd, args[0], func(ctx context.Context, db *database.DB) error {
				return fleet.Enqueue(ctx, db, args[0], order) //nolint:wrapcheck // it says what was done
			})
		}),
	}
}
