package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"basegate/identity"
)

func newKey() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "key",
		Short: "Create, list, change, rotate, pause, resume and revoke keys",
		Args:  cobra.NoArgs,
		RunE:  requireSubcommand,
	}
	cmd.AddCommand(
		newKeyCreate(), newKeyList(), newKeySet(), newKeyRotate(),
		newKeyStateCommand("pause ID", "Pause a key: it is refused until the operator resumes it", (*identity.Keys).Pause),
		newKeyStateCommand("resume ID", "Resume a paused key", (*identity.Keys).Resume),
		newKeyStateCommand("revoke ID", "Revoke a key permanently", (*identity.Keys).Revoke),
	)
	return cmd
}

func newKeyCreate() *cobra.Command {
	var email string
	var flags keyFlags
	cmd := &cobra.Command{
		Use:   "create --account EMAIL --name NAME",
		Short: "Create a key and print its secret, which is not shown again",
		Args:  cobra.NoArgs,
		RunE: run(func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			if err := flags.resolve(cfg); err != nil {
				return err
			}
			return withStore(cmd, func(ctx context.Context, store *identity.Store) error {
				store.Keys.Reload(identity.Settings{KeysPerAccount: cfg.Limits.KeysPerAccount})
				created, secret, err := store.Keys.Create(ctx, flags.newKey(cfg, email))
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "key %s of %s; its secret is not shown again:\n", created.ID, created.Email)
				fmt.Fprintln(cmd.OutOrStdout(), secret)
				return nil
			})
		}),
	}
	cmd.Flags().StringVar(&email, "account", "", "the account's e-mail address")
	flags.add(cmd.Flags())
	for _, required := range []string{"account", "name"} {
		cobra.CheckErr(cmd.MarkFlagRequired(required)) // fails only for a flag that is not defined
	}
	return cmd
}

func newKeySet() *cobra.Command {
	var flags keyFlags
	const short = "Change a key's budgets, expiry, models, name or concurrency"
	cmd := &cobra.Command{
		Use:   "set ID",
		Short: short,
		Long:  short + ".\n" + keyHelp + "\n" + keySetHelp + "\n" + setHelp,
		Args:  cobra.ExactArgs(1),
		RunE: run(func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("models") {
				cfg, err := loadConfig(cmd)
				if err != nil {
					return err
				}
				if err := flags.resolve(cfg); err != nil {
					return err
				}
			}
			return withStore(cmd, func(ctx context.Context, store *identity.Store) error {
				key, err := store.Keys.Set(ctx, args[0], flags.apply)
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "key %s (%s) of %s: %s\n", key.Prefix+"…", key.Name, key.Email, limitsOf(key))
				return nil
			})
		}),
	}
	flags.add(cmd.Flags())
	return asSetCommand(cmd)
}

// limitsOf describes the budgets, the expiry and the models of a key.
func limitsOf(k identity.Key) string {
	text := k.Caps.String()
	switch {
	case k.Expired():
		text += ", expired " + k.ExpiresAt.Format(time.RFC3339)
	case !k.ExpiresAt.IsZero():
		text += ", expires " + k.ExpiresAt.Format(time.RFC3339)
	}
	if !k.Models.Any() {
		text += ", models " + k.Models.String()
	}
	return text
}

// keySetHelp says what a limit of the operator means.
const keySetHelp = `A limit that is set here is the operator's: the key's user cannot raise or remove it. A budget "unbounded", a
concurrency of 0, "never" and "any" leave it to the user again.`

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
	ExpiresAt           *time.Time   `json:"expires_at"`            // null: never
	Models              []string     `json:"models"`                // null: any
	ReplacedSecretUntil *time.Time   `json:"replaced_secret_until"` // null: no replaced secret works
	Operator            operatorJSON `json:"operator"`
	CreatedAt           time.Time    `json:"created_at"`
}

// operatorJSON is what the operator has set for a key; null is not set.
type operatorJSON struct {
	Paused      bool `json:"paused"` // only the operator can resume the key
	Concurrency *int `json:"concurrency"`
	budgetsJSON
	ExpiresAt *time.Time `json:"expires_at"`
	Models    []string   `json:"models"`
}

// optionalTime returns nil, which is JSON's null, for the zero time.
func optionalTime(at time.Time) *time.Time {
	if at.IsZero() {
		return nil
	}
	return &at
}

// newKeyJSON returns a key as JSON lists have it.
func newKeyJSON(k identity.Key) keyJSON {
	_, concurrency := formatConcurrency(k.Concurrency)
	_, operators := formatConcurrency(k.Operator.Concurrency)
	object := keyJSON{
		ID: k.ID, Prefix: k.Prefix, Name: k.Name, Account: k.Email, State: string(k.State),
		Concurrency: concurrency, budgetsJSON: newBudgetsJSON(k.Caps),
		ExpiresAt: optionalTime(k.ExpiresAt), Models: k.Models.IDs(), CreatedAt: k.CreatedAt.UTC(),
		Operator: operatorJSON{
			k.PausedByOperator, operators, newBudgetsJSON(k.Operator.Caps),
			optionalTime(k.Operator.ExpiresAt), k.Operator.Models.IDs(),
		},
	}
	if k.ReplacedSecretWorks() {
		object.ReplacedSecretUntil = &k.ReplacedUntil
	}
	return object
}

// stateCell returns the state of a key for tables, which show that an active key has expired.
func stateCell(k identity.Key) string {
	if k.State == identity.KeyActive && k.Expired() {
		return "expired"
	}
	return string(k.State)
}

// expiryCell returns the time of a key's expiry for tables.
func expiryCell(k identity.Key) string {
	if k.ExpiresAt.IsZero() {
		return never
	}
	return formatTime(k.ExpiresAt)
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
		concurrency, _ := formatConcurrency(k.Concurrency)
		object := newKeyJSON(k)
		objects = append(objects, object)
		row := append([]string{k.Prefix + "…", k.Name, k.Email, stateCell(k), concurrency}, object.cells()...)
		rows = append(rows, append(row, expiryCell(k), strings.ReplaceAll(k.Models.String(), " ", ""), formatTime(k.CreatedAt), k.ID))
	}
	if asJSON {
		return printJSON(cmd, objects)
	}
	headings := append([]string{"KEY", "NAME", "ACCOUNT", "STATE", "AT A TIME"}, budgetHeadings...)
	return printTable(cmd, append(headings, "EXPIRES", "MODELS", "CREATED", "ID"), rows)
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
