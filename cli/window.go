package cli

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"basegate/database"
	"basegate/fleet"
)

func newWindow() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "window",
		Short: "Book windows in which a model is kept warm",
		Args:  cobra.NoArgs,
		RunE:  requireSubcommand,
	}
	cmd.AddCommand(newWindowAdd(), newWindowList(), newWindowRemove())
	return cmd
}

func newWindowAdd() *cobra.Command {
	var from, to timeFlag
	cmd := &cobra.Command{
		Use:   "add ID --from TIME --to TIME",
		Short: "Keep a model warm from one time to another",
		Long: "Keep a model warm from one time to another. It is started earlier by its estimated boot time.\n" +
			"A TIME has an offset from UTC: 2026-11-21T09:30:00Z or 2026-11-21T10:30:00+01:00.\n" +
			"Recurring windows are set in the configuration.",
		Args: cobra.ExactArgs(1),
		RunE: run(func(cmd *cobra.Command, args []string) error {
			return withManagedModel(cmd, args[0], func(ctx context.Context, db *database.DB, model string) error {
				booked, err := fleet.AddWindow(ctx, db, fleet.BookedWindow{Model: model, From: from.at, To: to.at})
				if err != nil {
					return err
				}
				fmt.Fprintln(cmd.OutOrStdout(), booked.ID)
				return nil
			})
		}),
	}
	cmd.Flags().Var(&from, "from", "start of the window")
	cmd.Flags().Var(&to, "to", "end of the window")
	for _, required := range []string{"from", "to"} {
		cobra.CheckErr(cmd.MarkFlagRequired(required)) // fails only for a flag that is not defined
	}
	return cmd
}

func newWindowList() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the booked windows that have not ended",
		Args:  cobra.NoArgs,
		RunE: run(func(cmd *cobra.Command, _ []string) error {
			return withDatabase(cmd, func(ctx context.Context, db *database.DB) error {
				booked, err := fleet.Windows(ctx, db)
				if err != nil {
					return err
				}
				if asJSON {
					return printJSON(cmd, booked)
				}
				var rows [][]string
				for _, b := range booked {
					from, to := b.From.Format(time.RFC3339), b.To.Format(time.RFC3339)
					rows = append(rows, []string{strconv.FormatInt(b.ID, 10), b.Model, from, to})
				}
				return printTable(cmd, []string{"ID", "MODEL", "FROM", "TO"}, rows)
			})
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	return cmd
}

func newWindowRemove() *cobra.Command {
	return &cobra.Command{
		Use:   "remove WINDOW",
		Short: "Remove a booked window, by the id that list shows",
		Args:  cobra.ExactArgs(1),
		RunE: run(func(cmd *cobra.Command, args []string) error {
			id, err := strconv.ParseInt(args[0], 10, 64)
			if err != nil {
				return fmt.Errorf("%w: %s", fleet.ErrNoWindow, args[0])
			}
			return withDatabase(cmd, func(ctx context.Context, db *database.DB) error {
				return fleet.RemoveWindow(ctx, db, id)
			})
		}),
	}
}
