package cli

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"basegate/identity"
)

func newKey() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "key",
		Short: "Create, list, change, pause, resume and revoke keys",
		Args:  cobra.NoArgs,
		RunE:  requireSubcommand,
	}
	cmd.AddCommand(
		newKeyCreate(), newKeyList(), newKeySet(),
		newKeyStateCommand("pause ID", "Pause a key: it is refused until the operator resumes it", (*identity.Keys).Pause),
		newKeyStateCommand("resume ID", "Resume a paused key", (*identity.Keys).Resume),
		newKeyStateCommand("revoke ID", "Revoke a key permanently", (*identity.Keys).Revoke),
	)
	return cmd
}

func newKeyCreate() *cobra.Command {
	var key identity.NewKey
	var budgets budgetFlags
	cmd := &cobra.Command{
		Use:   "create --account EMAIL --name NAME",
		Short: "Create a key and print its secret, which is not shown again",
		Args:  cobra.NoArgs,
		RunE: run(func(cmd *cobra.Command, _ []string) error {
			budgets.apply(&key.Caps)
			return withStore(cmd, func(ctx context.Context, store *identity.Store) error {
				created, secret, err := store.Keys.Create(ctx, key)
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "key %s of %s; its secret is not shown again:\n", created.ID, created.Email)
				fmt.Fprintln(cmd.OutOrStdout(), secret)
				return nil
			})
		}),
	}
	cmd.Flags().StringVar(&key.Email, "account", "", "the account's e-mail address")
	cmd.Flags().StringVar(&key.Name, "name", "", "what the key is for")
	cmd.Flags().IntVar(&key.Concurrency, "concurrency", 0, "requests at a time; 0: limits.concurrency_per_key")
	budgets.add(cmd.Flags())
	for _, required := range []string{"account", "name"} {
		cobra.CheckErr(cmd.MarkFlagRequired(required)) // fails only for a flag that is not defined
	}
	return cmd
}

func newKeySet() *cobra.Command {
	var fields identity.KeyFields
	var budgets budgetFlags
	cmd := &cobra.Command{
		Use:   "set ID",
		Short: "Change a key's budgets, name or concurrency",
		Long:  "Change a key's budgets, name or concurrency.\n" + keyHelp + "\n" + keySetHelp + "\n" + setHelp,
		Args:  cobra.ExactArgs(1),
		RunE: run(func(cmd *cobra.Command, args []string) error {
			return withStore(cmd, func(ctx context.Context, store *identity.Store) error {
				key, err := store.Keys.Set(ctx, args[0], func(f *identity.KeyFields) {
					if cmd.Flags().Changed("name") {
						f.Name = fields.Name
					}
					if cmd.Flags().Changed("concurrency") {
						f.Concurrency, f.Operator.Concurrency = fields.Concurrency, fields.Concurrency
					}
					budgets.apply(&f.Caps)
					budgets.apply(&f.Operator.Caps) // also those that the user has set to the same value
				})
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "key %s (%s) of %s: %s\n", key.Prefix+"…", key.Name, key.Email, key.Caps)
				return nil
			})
		}),
	}
	cmd.Flags().StringVar(&fields.Name, "name", "", "what the key is for")
	cmd.Flags().IntVar(&fields.Concurrency, "concurrency", 0, "requests at a time; 0: limits.concurrency_per_key")
	budgets.add(cmd.Flags())
	return asSetCommand(cmd)
}

// keySetHelp says what a limit of the operator means.
const keySetHelp = `A limit that is set here is the operator's: the key's user cannot raise or remove it. A budget "unbounded" and a
concurrency of 0 leave it to the user again.`

func newKeyList() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the keys",
		Args:  cobra.NoArgs,
		RunE: run(func(cmd *cobra.Command, _ []string) error {
			return withStore(cmd, func(ctx context.Context, store *identity.Store) error {
				all, err := store.Keys.List(ctx)
				if err != nil {
					return fmt.Errorf("list keys: %w", err)
				}
				return printKeys(cmd, all, asJSON)
			})
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	return cmd
}

type keyJSON struct {
	ID          string `json:"id"`
	Prefix      string `json:"prefix"`
	Name        string `json:"name"`
	Account     string `json:"account"`
	State       string `json:"state"`
	Concurrency *int   `json:"concurrency"` // null: limits.concurrency_per_key
	budgetsJSON
	Operator  operatorJSON `json:"operator"`
	CreatedAt time.Time    `json:"created_at"`
}

// operatorJSON is what the operator has set for a key; null is not set.
type operatorJSON struct {
	Paused      bool `json:"paused"` // only the operator can resume the key
	Concurrency *int `json:"concurrency"`
	budgetsJSON
}

// formatConcurrency returns a concurrency for tables and for JSON; 0 is the configured default.
func formatConcurrency(n int) (text string, number *int) {
	if n == 0 {
		return "default", nil
	}
	return strconv.Itoa(n), &n
}

func printKeys(cmd *cobra.Command, all []identity.Key, asJSON bool) error {
	rows, objects := [][]string{}, []keyJSON{}
	for _, k := range all {
		concurrency, number := formatConcurrency(k.Concurrency)
		_, operators := formatConcurrency(k.Operator.Concurrency)
		object := keyJSON{
			ID: k.ID, Prefix: k.Prefix, Name: k.Name, Account: k.Email, State: string(k.State),
			Concurrency: number, budgetsJSON: newBudgetsJSON(k.Caps), CreatedAt: k.CreatedAt.UTC(),
			Operator: operatorJSON{k.PausedByOperator, operators, newBudgetsJSON(k.Operator.Caps)},
		}
		objects = append(objects, object)
		row := append([]string{k.Prefix + "…", k.Name, k.Email, string(k.State), concurrency}, object.cells()...)
		rows = append(rows, append(row, formatTime(k.CreatedAt), k.ID))
	}
	if asJSON {
		return printJSON(cmd, objects)
	}
	headings := append([]string{"KEY", "NAME", "ACCOUNT", "STATE", "AT A TIME"}, budgetHeadings...)
	return printTable(cmd, append(headings, "CREATED", "ID"), rows)
}

// keyHelp explains the argument ID.
const keyHelp = "ID is the key's id, or its prefix as `key list` shows it."

// newKeyStateCommand returns a command that changes the state of one key.
func newKeyStateCommand(
	use, short string, change func(*identity.Keys, context.Context, string) (identity.Key, error),
) *cobra.Command {
	return &cobra.Command{
		Use:   use,
		Short: short,
		Long:  short + ".\n" + keyHelp,
		Args:  cobra.ExactArgs(1),
		RunE: run(func(cmd *cobra.Command, args []string) error {
			return withStore(cmd, func(ctx context.Context, store *identity.Store) error {
				key, err := change(store.Keys, ctx, args[0])
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "key %s (%s) of %s is %s\n", key.Prefix+"…", key.Name, key.Email, key.State)
				return nil
			})
		}),
	}
}
