package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"basegate/identity"
)

func newAccountInvite() *cobra.Command {
	return &cobra.Command{
		Use:   "invite EMAIL",
		Short: "Print the URL at which an account's password is set",
		Long: "Print the URL at which an account's password is set. It works once, within seven days.\n" +
			"If there is no account with this e-mail address, one is created. A new invitation invalidates the previous one.\n" +
			"The URL begins with server.public_url. Anyone who has it can sign in, so send it only to the account's owner.",
		Args: cobra.ExactArgs(1),
		RunE: run(func(cmd *cobra.Command, args []string) error {
			cfg, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			return withStore(cmd, func(ctx context.Context, store *identity.Store) error {
				_, token, err := store.Accounts.Invite(ctx, args[0])
				if err != nil {
					return fmt.Errorf("invite account: %w", err)
				}
				fmt.Fprintln(cmd.OutOrStdout(), cfg.Server.PublicURL.JoinPath("invitation", token))
				return nil
			})
		}),
	}
}

func newAccountDecline() *cobra.Command {
	return &cobra.Command{
		Use:   "decline EMAIL",
		Short: "Decline a request for access: the pending account is deleted",
		Args:  cobra.ExactArgs(1),
		RunE: run(func(cmd *cobra.Command, args []string) error {
			return withStore(cmd, func(ctx context.Context, store *identity.Store) error {
				if err := store.Accounts.Decline(ctx, args[0]); err != nil {
					return fmt.Errorf("decline account: %w", err)
				}
				return nil
			})
		}),
	}
}
