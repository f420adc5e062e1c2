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
	return newGroup("window", "Book windows in which a model is kept warm", newWindowAdd(), newWindowList(), newWindowRemove())
}

func newWindowAdd() *cobra.Command {
	from, to := newTimeFlag("TIME", parseTime), newTimeFlag("TIME", parseTime)
	cmd := newCommand("add ID --from TIME --to TIME", "Keep a model warm from one time to another",
		"Keep a model warm from one time to another. It is started earlier by its estimated boot time.\n"+
			"A TIME has an offset from UTC: 2026-11-21T09:30:00Z or 2026-11-21T10:30:00+01:00.\n"+
			"Recurring windows are set in the configuration.",
		func(cmd *cobra.Command, args []string) error {
			return withManagedModel(cmd, args[0], func(ctx context.Context, db *database.DB, model string) error {
				booked, err := fleet.AddWindow(ctx, db, fleet.BookedWindow{Model: model, From: from.value, To: to.value})
				if err != nil {
					return err
				}
				fmt.Fprintln(cmd.OutOrStdout(), booked.ID)
				return nil
			})
		})
	cmd.Flags().Var(from, "from", "start of the window")
	cmd.Flags().Var(to, "to", "end of the window")
	requireFlags(cmd, "from", "to")
	return cmd
}

func newWindowList() *cobra.Command {
	return newList("List the booked windows that have not ended", "", func(cmd *cobra.Command) (list, error) {
		booked, err := fromDatabase(cmd, fleet.Windows)
		l := list{headings: []string{"ID", "MODEL", "FROM", "TO"}}
		for _, b := range booked {
			l.add(b, strconv.FormatInt(b.ID, 10), b.Model, b.From.Format(time.RFC3339), b.To.Format(time.RFC3339))
		}
		return l, err
	})
}

func newWindowRemove() *cobra.Command {
	return newCommand("remove WINDOW", "Remove a booked window, by the id that list shows", "", func(cmd *cobra.Command, args []string) error {
		id, err := strconv.ParseInt(args[0], 10, 64)
		if err != nil {
			return fmt.Errorf("%w: %s", fleet.ErrNoWindow, args[0])
		}
		return withDatabase(cmd, func(ctx context.Context, db *database.DB) error { return fleet.RemoveWindow(ctx, db, id) })
	})
}
