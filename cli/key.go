package cli

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"basegate/database"
	"basegate/gateway/config"
	"basegate/identity"
	"basegate/proxy"
)

func newKey() *cobra.Command {
	return newGroup("key", "Create, list, change, rotate, pause, resume and revoke keys",
		newKeyCreate(), newKeyList(), newKeySet(), newKeyRotate(),
		newKeyStateCommand("pause ID", "Pause a key: it is refused until the operator resumes it", (*identity.Keys).Pause),
		newKeyStateCommand("resume ID", "Resume a paused key", (*identity.Keys).Resume),
		newKeyStateCommand("revoke ID", "Revoke a key permanently", (*identity.Keys).Revoke),
	)
}

func newKeyCreate() *cobra.Command {
	var email string
	var flags keyFlags
	cmd := newCommand("create --account EMAIL --name NAME", "Create a key and print its secret, which is not shown again", "",
		func(cmd *cobra.Command, _ []string) error {
			return withConfig(cmd, func(ctx context.Context, cfg *config.Config, db *database.DB) error {
				if err := flags.resolve(ctx, cfg, db); err != nil {
					return err
				}
				store := storeOf(db)
				store.Keys.Reload(identity.Settings{KeysPerAccount: cfg.Limits.KeysPerAccount})
				created, secret, err := store.Keys.Create(ctx, flags.newKey(cfg, email))
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "key %s of %s; its secret is not shown again:\n", created.ID, created.Email)
				fmt.Fprintln(cmd.OutOrStdout(), secret)
				return nil
			})
		})
	cmd.Flags().StringVar(&email, "account", "", "the account's e-mail address")
	flags.add(cmd.Flags())
	requireFlags(cmd, "account", "name")
	return cmd
}

func newKeySet() *cobra.Command {
	var flags keyFlags
	const short = "Change a key's budgets, expiry, models, name, concurrency or rights"
	cmd := newCommand("set ID", short, short+".\n"+keyHelp+"\n"+keySetHelp+"\n"+setHelp, func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().Changed("models") {
			if err := withConfig(cmd, flags.resolve); err != nil {
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
	})
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
	if k.Adapters {
		text += ", may add adapters"
	}
	return text
}

// keySetHelp says what a limit of the operator means.
const keySetHelp = `A limit that is set here is the operator's: the key's user cannot raise or remove it. A budget "unbounded", a
concurrency of 0, "never" and "any" leave it to the user again.`

func newKeyRotate() *cobra.Command {
	var grace time.Duration
	const short = "Give a key a new secret and print it; it is not shown again"
	cmd := newStoreCommand("rotate ID", short, short+".\n"+keyHelp+"\n"+
		"The replaced secret works until the grace time ends. The key keeps its id, its limits and its usage.\n"+
		"With --grace 0s every secret but the new one stops working within a second.",
		func(ctx context.Context, cmd *cobra.Command, store *identity.Store, args []string) error {
			key, secret, err := store.Keys.Rotate(ctx, args[0], grace)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "key %s of %s; the replaced secret works until %s; the new one is not shown again:\n",
				key.ID, key.Email, key.ReplacedUntil.Format(time.RFC3339))
			fmt.Fprintln(cmd.OutOrStdout(), secret)
			return nil
		})
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if grace < 0 || grace > identity.MaxGrace {
			return fmt.Errorf("--grace: %w, not %s", identity.ErrBadGrace, grace)
		}
		return nil
	}
	cmd.Flags().DurationVar(&grace, "grace", identity.DefaultGrace, "how long the replaced secret still works")
	return cmd
}

// keyJSON is a key as JSON lists have it.
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
	Children            *bool        `json:"children"` // whether the key may make keys; null: limits.children
	Adapters            bool         `json:"adapters"` // it may add LoRA adapters
	Parent              *string      `json:"parent"`   // id of the key that has made this one; null: none has
	Run                 *string      `json:"run"`      // null: none
}

// operatorJSON is what the operator has set of a key; null is not set.
type operatorJSON struct {
	Paused      bool `json:"paused"` // only the operator can resume the key
	Concurrency *int `json:"concurrency"`
	budgetsJSON
	ExpiresAt *time.Time `json:"expires_at"`
	Models    []string   `json:"models"`
}

func newKeyJSON(k *identity.Key) keyJSON {
	o := keyJSON{
		ID: k.ID, Prefix: k.Prefix, Name: k.Name, Account: k.Email, State: string(k.State), Concurrency: proxy.OrNull(k.Concurrency),
		budgetsJSON: newBudgetsJSON(&k.Caps), ExpiresAt: proxy.OrNull(k.ExpiresAt), Models: k.Models.IDs(), CreatedAt: k.CreatedAt.UTC(),
		Operator: operatorJSON{
			k.PausedByOperator, proxy.OrNull(k.Operator.Concurrency), newBudgetsJSON(&k.Operator.Caps),
			proxy.OrNull(k.Operator.ExpiresAt), k.Operator.Models.IDs(),
		},
		Adapters: k.Adapters, Parent: proxy.OrNull(k.Parent), Run: proxy.OrNull(k.Run),
	}
	if k.Children.Valid {
		o.Children = &k.Children.Bool
	}
	if k.ReplacedSecretWorks() {
		o.ReplacedSecretUntil = &k.ReplacedUntil
	}
	return o
}

// stateCell returns the state of a key for tables, which show that an active key has expired.
func stateCell(k identity.Key) string {
	if k.State == identity.KeyActive && k.Expired() {
		return "expired"
	}
	return string(k.State)
}

// formatConcurrency returns a concurrency for tables; 0 is the configured default.
func formatConcurrency(n int) string {
	if n == 0 {
		return "default"
	}
	return strconv.Itoa(n)
}

func newKeyList() *cobra.Command {
	return newList("List the keys", "", func(cmd *cobra.Command) (l list, _ error) {
		keys, err := fromDatabase(cmd, listKeys)
		if err != nil {
			return l, err
		}
		for _, k := range keys {
			l.add(newKeyJSON(&k), slices.Concat(
				[]string{k.Prefix + "…", k.Name, k.Email, stateCell(k), formatConcurrency(k.Concurrency)}, budgetCells(&k.Caps),
				[]string{formatTimeOr(k.ExpiresAt, never), strings.ReplaceAll(k.Models.String(), " ", ""), formatTime(k.CreatedAt), k.ID})...)
		}
		l.headings = slices.Concat([]string{"KEY", "NAME", "ACCOUNT", "STATE", "AT A TIME"}, budgetHeadings(), []string{"EXPIRES", "MODELS", "CREATED", "ID"})
		return l, nil
	})
}

// keyHelp explains the argument ID.
const keyHelp = "ID is the key's id or its prefix, as `key list` shows them, or a name that no other key has."

// newKeyStateCommand returns a command that changes the state of one key.
func newKeyStateCommand(
	use, short string, change func(*identity.Keys, context.Context, string) (identity.Key, error),
) *cobra.Command {
	return newStoreCommand(use, short, short+".\n"+keyHelp,
		func(ctx context.Context, cmd *cobra.Command, store *identity.Store, args []string) error {
			key, err := change(store.Keys, ctx, args[0])
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "key %s (%s) of %s is %s\n", key.Prefix+"…", key.Name, key.Email, key.State)
			return nil
		})
}
