package cli

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"basegate/database"
	"basegate/fleet"
	"basegate/gateway/config"
)

func newAdapter() *cobra.Command {
	return newGroup("adapter", "Add, list and remove the LoRA adapters of models", newAdapterAdd(), newAdapterList(), newAdapterRemove())
}

func newAdapterAdd() *cobra.Command {
	var path string
	const short = "Add an adapter, which clients then use as a model"
	cmd := newCommand("add BASE ID --path PATH", short, short+".\n"+
		"The running gateways know it within a second; a backend loads it when it is first needed there.\n"+
		"An adapter of the same ID gets a new version. Files do not change once they are added: put new ones in another folder.",
		func(cmd *cobra.Command, args []string) error {
			return withConfig(cmd, func(ctx context.Context, cfg *config.Config, db *database.DB) error {
				base, err := findModel(cfg, args[0])
				if err != nil {
					return err
				}
				if err := fleet.CheckAdapterID(args[1]); err != nil {
					return err
				}
				added, err := fleet.AddAdapter(ctx, db, cfg.Models, fleet.Adapter{ID: args[1], Model: base.ID, Path: path})
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "adapter %s of %s has version %d\n", added.ID, added.Model, added.Version)
				return nil
			})
		})
	cmd.Flags().StringVar(&path, "path", "", "a folder or a repository, as the backends see it")
	requireFlags(cmd, "path")
	return cmd
}

// adapterJSON is an adapter as JSON lists have it.
type adapterJSON struct {
	ID         string    `json:"id"`
	Parent     string    `json:"parent"`
	Path       string    `json:"path"`
	Version    int64     `json:"version"`
	Configured bool      `json:"configured"` // in the configuration, where it is removed
	Changed    bool      `json:"changed"`    // its files have changed since it was added
	CreatedAt  time.Time `json:"created_at"`
}

func newAdapterList() *cobra.Command {
	return newList("List the adapters", "", func(cmd *cobra.Command) (l list, err error) {
		l.headings = []string{"ADAPTER", "MODEL", "PATH", "VERSION", "SOURCE", "FILES", "CREATED"}
		err = withConfig(cmd, func(ctx context.Context, cfg *config.Config, db *database.DB) error {
			adapters, err := fleet.Adapters(ctx, db, cfg.Models)
			for _, a := range adapters {
				o := adapterJSON{a.ID, a.Model, a.Path, a.Version, a.Configured, a.Changed(), a.CreatedAt}
				source, files := "added", "unchanged"
				if o.Configured {
					source = "configuration"
				}
				if o.Changed {
					files = "changed: add it again"
				}
				l.add(o, a.ID, a.Model, a.Path, strconv.FormatInt(a.Version, 10), source, files, formatTime(a.CreatedAt))
			}
			return err
		})
		return l, err
	})
}

func newAdapterRemove() *cobra.Command {
	const short = "Remove an adapter that was added"
	return newCommand("remove ID", short, short+". Requests that run are completed; new ones get model_not_found.",
		func(cmd *cobra.Command, args []string) error {
			return withConfig(cmd, func(ctx context.Context, cfg *config.Config, db *database.DB) error {
				_, err := fleet.RemoveAdapter(ctx, db, cfg.Models, args[0], "")
				return err
			})
		})
}
