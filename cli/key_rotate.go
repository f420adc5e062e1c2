package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"basegate/identity"
)

func newKeyRotate() *cobra.Command {
	var grace time.Duration
	cmd := &cobra.Command{
		Use:   "rotate ID",
		Short: "Give a key a new secret and print it; it is not shown again",
		Long: "Give a key a new secret and print it; it is not shown again.\n" + keyHelp + "\n" +
			"The replaced secret works until the grace time ends. The key keeps its id, its limits and its usage.\n" +
			"With --grace 0s every secret but the new one stops working within a second.",
		Args: cobra.ExactArgs(1),
		RunE: run(func(cmd *cobra.Command, args []string) error {
			return withStore(cmd, func(ctx context.Context, store *identity.Store) error {
				key, secret, err := store.Keys.Rotate(ctx, args[0], grace)
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "key %s of %s; the replaced secret works until %s; the new one is not shown again:\n",
					key.ID, key.Email, key.ReplacedUntil.Format(time.RFC3339))
				fmt.Fprintln(cmd.OutOrStdout(), secret)
				return nil
			})
		}),
	}
	cmd.Flags().DurationVar(&grace, "grace", identity.DefaultGrace, "how long the replaced secret still works")
	return cmd
}
