package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"basegate/identity"
)

func newAccount() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "account",
		Short: "Create, invite, list, change and disable accounts",
		Args:  cobra.NoArgs,
		RunE:  requireSubcommand,
	}
	cmd.AddCommand(newAccountCreate(), newAccountList(), newAccountSet(), newAccountInvite(),
		newAccountApprove(), newAccountDecline(), newAccountDisable())
	return cmd
}

func newAccountCreate() *cobra.Command {
	var account identity.Account
	var budgets budgetFlags
	cmd := &cobra.Command{
		Use:   "create EMAIL",
		Short: "Create an account",
		Args:  cobra.ExactArgs(1),
		RunE: run(func(cmd *cobra.Command, args []string) error {
			account.Email = args[0]
			budgets.apply(&account.Caps)
			return withStore(cmd, func(ctx context.Context, store *identity.Store) error {
				created, err := store.Accounts.Create(ctx, account)
				if err != nil {
					return err
				}
				fmt.Fprintln(cmd.OutOrStdout(), created.ID)
				return nil
			})
		}),
	}
	cmd.Flags().StringVar(&account.Name, "name", "", "the owner's name")
	cmd.Flags().BoolVar(&account.Admin, "admin", false, "may administer the gateway")
	cmd.Flags().IntVar(&account.Concurrency, "concurrency", 0, maxConcurrencyHelp)
	budgets.add(cmd.Flags())
	return cmd
}

func newAccountSet() *cobra.Command {
	var fields identity.Account
	var budgets budgetFlags
	cmd := &cobra.Command{
		Use:   "set EMAIL",
		Short: "Change an account's budgets, concurrency, name or role",
		Long:  "Change an account's budgets, concurrency, name or role.\n" + setHelp,
		Args:  cobra.ExactArgs(1),
		RunE: run(func(cmd *cobra.Command, args []string) error {
			return withStore(cmd, func(ctx context.Context, store *identity.Store) error {
				account, err := store.Accounts.Set(ctx, args[0], func(f *identity.Account) {
					if cmd.Flags().Changed("name") {
						f.Name = fields.Name
					}
					if cmd.Flags().Changed("admin") {
						f.Admin = fields.Admin
					}
					if cmd.Flags().Changed("concurrency") {
						f.Concurrency = fields.Concurrency
					}
					budgets.apply(&f.Caps)
				})
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s\n", account.Email, account.Caps)
				return nil
			})
		}),
	}
	cmd.Flags().StringVar(&fields.Name, "name", "", "the owner's name")
	cmd.Flags().BoolVar(&fields.Admin, "admin", false, "may administer the gateway; --admin=false revokes this")
	cmd.Flags().IntVar(&fields.Concurrency, "concurrency", 0, maxConcurrencyHelp)
	budgets.add(cmd.Flags())
	return asSetCommand(cmd)
}

func newAccountList() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the accounts",
		Args:  cobra.NoArgs,
		RunE: run(func(cmd *cobra.Command, _ []string) error {
			return withStore(cmd, func(ctx context.Context, store *identity.Store) error {
				accounts, err := store.Accounts.List(ctx)
				if err != nil {
					return fmt.Errorf("list accounts: %w", err)
				}
				return printAccounts(cmd, accounts, asJSON)
			})
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	return cmd
}

// maxConcurrencyHelp explains the flag --concurrency of an account.
const maxConcurrencyHelp = "the most requests at a time that a user can set for a key; 0: limits.concurrency_per_key"

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

func printAccounts(cmd *cobra.Command, accounts []identity.Account, asJSON bool) error {
	rows, objects := [][]string{}, []accountJSON{}
	for _, a := range accounts {
		role := "-"
		if a.Admin {
			role = "admin"
		}
		budgets := newBudgetsJSON(a.Caps)
		concurrency, number := formatConcurrency(a.Concurrency)
		row := append([]string{a.Email, dash(a.Name), string(a.State), role, concurrency}, budgets.cells()...)
		rows = append(rows, append(row, formatTime(a.CreatedAt), a.ID))
		objects = append(objects, accountJSON{
			ID: a.ID, Email: a.Email, Name: a.Name, Admin: a.Admin, State: string(a.State), Concurrency: number,
			budgetsJSON: budgets, CreatedAt: a.CreatedAt.UTC(),
		})
	}
	if asJSON {
		return printJSON(cmd, objects)
	}
	headings := append([]string{"EMAIL", "NAME", "STATE", "ROLE", "AT A TIME"}, budgetHeadings...)
	return printTable(cmd, append(headings, "CREATED", "ID"), rows)
}

func newAccountDisable() *cobra.Command {
	const short = "Disable an account: all its keys stop working"
	return newAccountStateCommand("disable EMAIL", short, (*identity.Accounts).Disable)
}

func newAccountApprove() *cobra.Command {
	const short = "Approve a pending account, or enable a disabled one"
	return newAccountStateCommand("approve EMAIL", short, (*identity.Accounts).Enable)
}

// newAccountStateCommand returns a command that changes the state of one account.
func newAccountStateCommand(
	use, short string, change func(*identity.Accounts, context.Context, string) (identity.Account, error),
) *cobra.Command {
	return &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.ExactArgs(1),
		RunE: run(func(cmd *cobra.Command, args []string) error {
			return withStore(cmd, func(ctx context.Context, store *identity.Store) error {
				account, err := change(store.Accounts, ctx, args[0])
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "%s is %s\n", account.Email, account.State)
				return nil
			})
		}),
	}
}
