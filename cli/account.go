package cli

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"basegate/database"
	"basegate/gateway/config"
	"basegate/identity"
	"basegate/proxy"
)

func newAccount() *cobra.Command {
	return newGroup("account", "Create, invite, list, change and disable accounts",
		newAccountCreate(), newAccountList(), newAccountSet(), newAccountInvite(),
		newStoreCommand("decline EMAIL", "Decline a request for access: the pending account is deleted", "",
			func(ctx context.Context, _ *cobra.Command, store *identity.Store, args []string) error {
				if err := store.Accounts.Decline(ctx, args[0]); err != nil {
					return fmt.Errorf("decline account: %w", err)
				}
				return nil
			}),
		newAccountStateCommand("approve EMAIL", "Approve a pending account, or enable a disabled one", (*identity.Accounts).Enable),
		newAccountStateCommand("disable EMAIL", "Disable an account: all its keys stop working", (*identity.Accounts).Disable),
	)
}

// accountFlags are the flags of account create and account set.
type accountFlags struct {
	flags   *pflag.FlagSet
	fields  identity.Account
	budgets budgetFlags
}

func (a *accountFlags) add(flags *pflag.FlagSet) {
	a.flags = flags
	flags.StringVar(&a.fields.Name, "name", "", "the owner's name")
	flags.BoolVar(&a.fields.Admin, "admin", false, "may administer the gateway")
	flags.IntVar(&a.fields.Concurrency, "concurrency", 0,
		"the most requests at a time that a user can set for a key; 0: limits.concurrency_per_key")
	a.budgets.add(flags)
}

// apply changes the fields whose flags are given.
func (a *accountFlags) apply(f *identity.Account) {
	if a.flags.Changed("name") {
		f.Name = a.fields.Name
	}
	if a.flags.Changed("admin") {
		f.Admin = a.fields.Admin
	}
	if a.flags.Changed("concurrency") {
		f.Concurrency = a.fields.Concurrency
	}
	a.budgets.apply(&f.Caps)
}

func newAccountCreate() *cobra.Command {
	var flags accountFlags
	cmd := newStoreCommand("create EMAIL", "Create an account", "",
		func(ctx context.Context, cmd *cobra.Command, store *identity.Store, args []string) error {
			account := identity.Account{Email: args[0]}
			flags.apply(&account)
			created, err := store.Accounts.Create(ctx, account)
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), created.ID)
			return nil
		})
	flags.add(cmd.Flags())
	return cmd
}

func newAccountSet() *cobra.Command {
	var flags accountFlags
	const short = "Change an account's budgets, concurrency, name or role"
	cmd := newStoreCommand("set EMAIL", short, short+".\n"+setHelp,
		func(ctx context.Context, cmd *cobra.Command, store *identity.Store, args []string) error {
			account, err := store.Accounts.Set(ctx, args[0], flags.apply)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s\n", account.Email, account.Caps)
			return nil
		})
	flags.add(cmd.Flags())
	cmd.Flags().Lookup("admin").Usage += "; --admin=false revokes this"
	return asSetCommand(cmd)
}

// accountJSON is an account as JSON lists have it.
type accountJSON struct {
	ID          string `json:"id"`
	Email       string `json:"email"`
	Name        string `json:"name"`
	Admin       bool   `json:"admin"`
	State       string `json:"state"`
	Concurrency *int   `json:"concurrency"` // null: limits.concurrency_per_key
	budgetsJSON
	CreatedAt time.Time `json:"created_at"`
}

func newAccountList() *cobra.Command {
	return newList("List the accounts", "", func(cmd *cobra.Command) (l list, _ error) {
		accounts, err := fromDatabase(cmd, listAccounts)
		if err != nil {
			return l, err
		}
		l.headings = slices.Concat([]string{"EMAIL", "NAME", "STATE", "ROLE", "AT A TIME"}, budgetHeadings(), []string{"CREATED", "ID"})
		for _, a := range accounts {
			role := "-"
			if a.Admin {
				role = "admin"
			}
			object := accountJSON{
				a.ID, a.Email, a.Name, a.Admin, string(a.State), proxy.OrNull(a.Concurrency), newBudgetsJSON(&a.Caps), a.CreatedAt.UTC(),
			}
			l.add(object, slices.Concat([]string{a.Email, dash(a.Name), string(a.State), role, formatConcurrency(a.Concurrency)},
				budgetCells(&a.Caps), []string{formatTime(a.CreatedAt), a.ID})...)
		}
		return l, nil
	})
}

func newAccountInvite() *cobra.Command {
	return newCommand("invite EMAIL", "Print the URL at which an account's password is set",
		"Print the URL at which an account's password is set. It works once, within seven days.\n"+
			"If there is no account with this e-mail address, one is created. A new invitation invalidates the previous one.\n"+
			"The URL begins with server.public_url. Anyone who has it can sign in, so send it only to the account's owner.",
		func(cmd *cobra.Command, args []string) error {
			return withConfig(cmd, func(ctx context.Context, cfg *config.Config, db *database.DB) error {
				_, token, err := storeOf(db).Accounts.Invite(ctx, args[0])
				if err != nil {
					return fmt.Errorf("invite account: %w", err)
				}
				fmt.Fprintln(cmd.OutOrStdout(), cfg.Server.PublicURL.JoinPath("invitation", token))
				return nil
			})
		})
}

// newAccountStateCommand returns a command that changes the state of one account.
func newAccountStateCommand(
	use, short string, change func(*identity.Accounts, context.Context, string) (identity.Account, error),
) *cobra.Command {
	return newStoreCommand(use, short, "", func(ctx context.Context, cmd *cobra.Command, store *identity.Store, args []string) error {
		account, err := change(store.Accounts, ctx, args[0])
		if err != nil {
			return err
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "%s is %s\n", account.Email, account.State)
		return nil
	})
}
