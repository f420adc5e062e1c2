package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"basegate/budget"
	"basegate/database"
	"basegate/identity"
)

// usageReport is what a usage command was asked for.
type usageReport struct {
	flags        *pflag.FlagSet
	since, until moment
	by           string
	account, key string
	asJSON       bool
	asCSV        bool
}

func newUsage() *cobra.Command {
	r := usageReport{until: moment{end: true}}
	cmd := &cobra.Command{
		Use:   "usage",
		Short: "Show what has been used",
		Long: "Show what has been used, from the ledger: requests and days from the newest, the others from the one with the most tokens.\n" +
			"A DATE is a day, UTC, such as 2026-11-21, or a time such as 2026-11-21T09:30:00Z. --since begins with it; --until ends with\n" +
			"a whole day, and before a time. A request is of the time at which it came, and is shown once it has ended.",
		Args:    cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) error { return r.check() },
		RunE: run(func(cmd *cobra.Command, _ []string) error {
			return withDatabase(cmd, func(ctx context.Context, db *database.DB) error { return r.print(ctx, db, cmd.OutOrStdout()) })
		}),
	}
	r.flags = cmd.Flags()
	r.flags.Var(&r.since, "since", "from this day or time on")
	r.flags.Var(&r.until, "until", "up to this day, or before this time")
	r.flags.StringVar(&r.by, "by", string(budget.ByRequest), "what to add up by: "+strings.Join(groupings, ", "))
	r.flags.StringVar(&r.account, "account", "", "only of the account with the address `EMAIL`")
	r.flags.StringVar(&r.key, "key", "", "only of the key `ID`, which may be its prefix")
	r.flags.BoolVar(&r.asJSON, "json", false, "as JSON")
	r.flags.BoolVar(&r.asCSV, "csv", false, "as CSV")
	cmd.MarkFlagsMutuallyExclusive("json", "csv")
	return cmd
}

var errNoTime = errors.New("--since is not before --until: there is no time between them")

// check finds what makes no sense whatever has been used.
func (r *usageReport) check() error {
	if _, ok := columnsBy[budget.Grouping(r.by)]; !ok {
		return fmt.Errorf("--by %s: expected one of %s", r.by, strings.Join(groupings, ", "))
	}
	if r.flags.Changed("since") && r.flags.Changed("until") && !r.since.at.Before(r.until.at) {
		return errNoTime
	}
	return nil
}

// filter finds the account and the key that were asked for. An empty one was asked for too, and is not found: a script
// whose variable is empty must not get everybody's usage.
func (r *usageReport) filter(ctx context.Context, store *identity.Store) (budget.Filter, error) {
	f := budget.Filter{Since: r.since.at, Until: r.until.at}
	if r.flags.Changed("account") {
		a, err := store.Accounts.Find(ctx, r.account)
		if err != nil {
			return f, fmt.Errorf("find account: %w", err)
		}
		f.Account = a.ID
	}
	if r.flags.Changed("key") {
		k, err := store.Keys.Find(ctx, r.key)
		if err != nil {
			return f, fmt.Errorf("find key: %w", err)
		}
		f.Key = k.ID
		f.Account = cmp.Or(f.Account, k.AccountID) // by which its requests are found faster
	}
	return f, nil
}

func (r *usageReport) print(ctx context.Context, db *database.DB, out io.Writer) error {
	store := identity.New(db, zap.NewNop(), identity.Settings{})
	filter, err := r.filter(ctx, store)
	if err != nil {
		return err
	}
	known, err := readNames(ctx, store)
	if err != nil {
		return err
	}
	by := budget.Grouping(r.by)
	columns := columnsBy[by]
	to := r.form(columns, out)
	for row, err := range budget.New(db, zap.NewNop(), budget.Settings{}).Rows(ctx, filter, by) {
		if err != nil {
			return err
		}
		values := make([]any, len(columns))
		for i, c := range columns {
			values[i] = c.value(known, &row)
		}
		if err := to.row(values); err != nil {
			return fmt.Errorf("print usage: %w", err)
		}
	}
	if err := to.end(); err != nil {
		return fmt.Errorf("print usage: %w", err)
	}
	return nil
}

func (r *usageReport) form(columns []column, out io.Writer) form {
	switch {
	case r.asJSON:
		return newJSONForm(columns, out)
	case r.asCSV:
		return newCSVForm(columns, out)
	default:
		return newTableForm(columns, out)
	}
}
