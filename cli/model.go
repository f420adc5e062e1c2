package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"basegate/config"
	"basegate/fleet"
	"basegate/gateway"
)

func newModel() *cobra.Command {
	cmd := &cobra.Command{Use: "model", Short: "List the models", Args: cobra.NoArgs, RunE: group}
	cmd.AddCommand(newModelList())
	return cmd
}

func newModelList() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the models and how their backends are, asking each one",
		Args:  cobra.NoArgs,
		RunE: run(func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			return probed(cmd.Context(), cfg, func(f *fleet.Fleet) error { return printModels(cmd, f, asJSON) })
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	return cmd
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

type modelJSON struct {
	ID          string        `json:"id"`
	Checkpoint  string        `json:"checkpoint"`
	Precision   string        `json:"precision"`
	Status      string        `json:"status"`
	MaxModelLen *int64        `json:"max_model_len"` // null: no backend has said
	MaxLogprobs int           `json:"max_logprobs"`
	Backends    []backendJSON `json:"backends"`
}

type backendJSON struct {
	Name    string `json:"name"`
	URL     string `json:"url"`
	GPU     string `json:"gpu"`
	State   string `json:"state"`
	Reason  string `json:"reason,omitempty"`
	Version string `json:"version,omitempty"`
}

func printModels(cmd *cobra.Command, f *fleet.Fleet, asJSON bool) error {
	rows, objects := [][]string{}, []modelJSON{}
	for _, m := range f.Models() {
		object := modelJSON{
			ID: m.ID(), Checkpoint: m.Checkpoint(), Precision: m.Precision(), Status: m.Status(), MaxLogprobs: m.MaxLogprobs(),
		}
		length := "-"
		if n := m.MaxModelLen(); n > 0 {
			object.MaxModelLen = &n
			length = strconv.FormatInt(n, 10)
		}
		var states []string
		for _, b := range m.Backends() {
			state, reason := b.State()
			object.Backends = append(object.Backends, backendJSON{b.Name, b.URL("").String(), b.GPU, string(state), reason, b.Version()})
			states = append(states, fmt.Sprintf("%s: %s", b.Name, state))
		}
		objects = append(objects, object)
		rows = append(rows, []string{m.ID(), m.Checkpoint(), dash(m.Precision()), m.Status(), length, strings.Join(states, ", ")})
	}
	if asJSON {
		return printJSON(cmd, objects)
	}
	return printTable(cmd, []string{"MODEL", "CHECKPOINT", "PRECISION", "STATUS", "CONTEXT", "BACKENDS"}, rows)
}
