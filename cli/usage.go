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

	"basegate/budget/usage"
	"basegate/budget/usage/report"
	"basegate/database"
	"basegate/identity"
)

// usageQuery has the flags of the usage command.
type usageQuery struct {
	flags        *pflag.FlagSet
	since, until dateFlag
	by           string
	account, key string
	asJSON       bool
	asCSV        bool
}

func newUsage() *cobra.Command {
	q := usageQuery{until: dateFlag{endOfDay: true}}
	groupings := strings.Join(report.CommandLineGroupings(), ", ")
	cmd := &cobra.Command{
		Use:   "usage",
		Short: "Show the requests and tokens used",
		Long: "Show the requests and tokens used, from the ledger. Requests, days and hours are sorted from the newest;\n" +
			"other groups from the most tokens.\n" +
			"A DATE is a day in UTC, such as 2026-11-21, or a time, such as 2026-11-21T09:30:00Z. --since includes its\n" +
			"day or time; --until includes its day, but excludes its time. A request counts at its time of arrival, once\n" +
			"it has ended.",
		Args:    cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) error { return q.validate() },
		RunE: run(func(cmd *cobra.Command, _ []string) error {
			return withDatabase(cmd, func(ctx context.Context, db *database.DB) error {
				return q.print(ctx, db, cmd.OutOrStdout())
			})
		}),
	}
	q.flags = cmd.Flags()
	q.flags.Var(&q.since, "since", "from this day or time on")
	q.flags.Var(&q.until, "until", "up to this day, or before this time")
	q.flags.StringVar(&q.by, "by", string(usage.ByRequest), "group by: "+groupings)
	q.flags.StringVar(&q.account, "account", "", "only the account with the address `EMAIL`")
	q.flags.StringVar(&q.key, "key", "", "only the key with this `ID` or prefix")
	q.flags.BoolVar(&q.asJSON, "json", false, "as JSON")
	q.flags.BoolVar(&q.asCSV, "csv", false, "as CSV")
	cmd.MarkFlagsMutuallyExclusive("json", "csv")
	return cmd
}

var errNoTime = errors.New("--since is not before --until: there is no time between them")

// validate refuses flags that make no sense for any ledger.
func (q *usageQuery) validate() error {
	if _, ok := report.CommandLineColumns(usage.Grouping(q.by)); !ok {
		return fmt.Errorf("--by %s: expected one of %s", q.by, strings.Join(report.CommandLineGroupings(), ", "))
	}
	if q.flags.Changed("since") && q.flags.Changed("until") && !q.since.at.Before(q.until.at) {
		return errNoTime
	}
	return nil
}

// filter resolves the account and the key of the flags. An empty --account or --key is an error and not the absence of
// a filter: a script whose variable is empty must not get the usage of all accounts.
func (q *usageQuery) filter(ctx context.Context, store *identity.Store) (usage.Filter, error) {
	f := usage.Filter{Since: q.since.at, Until: q.until.at}
	if q.flags.Changed("account") {
		a, err := store.Accounts.Find(ctx, q.account)
		if err != nil {
			return f, fmt.Errorf("find account: %w", err)
		}
		f.Account = a.ID
	}
	if q.flags.Changed("key") {
		k, err := store.Keys.Find(ctx, q.key)
		if err != nil {
			return f, fmt.Errorf("find key: %w", err)
		}
		f.Key = k.ID
		f.Account = cmp.Or(f.Account, k.AccountID) // requests are indexed by account, not by key
	}
	return f, nil
}

func (q *usageQuery) print(ctx context.Context, db *database.DB, out io.Writer) error {
	store := identity.New(db, zap.NewNop(), identity.Settings{})
	filter, err := q.filter(ctx, store)
	if err != nil {
		return err
	}
	names, err := readNames(ctx, store)
	if err != nil {
		return err
	}
	by := usage.Grouping(q.by)
	columns, _ := report.CommandLineColumns(by)
	u := report.Usage{Columns: columns, Names: names, Rows: usage.New(db, zap.NewNop()).Rows(ctx, filter, by)}
	switch {
	case q.asJSON:
		err = u.WriteJSON(out)
	case q.asCSV:
		err = u.WriteCSV(out)
	default:
		err = u.WriteTable(out)
	}
	if err != nil {
		return fmt.Errorf("print usage: %w", err)
	}
	return nil
}

// readNames reads the names of all keys and accounts.
func readNames(ctx context.Context, store *identity.Store) (report.Names, error) {
	known := map[string]identity.Principal{}
	names := report.Names{Emails: map[string]string{}, Keys: func(id string) (identity.Principal, bool) {
		p, ok := known[id]
		return p, ok
	}}
	keys, err := store.Keys.List(ctx)
	if err != nil {
		return names, fmt.Errorf("list keys: %w", err)
	}
	for _, k := range keys {
		known[k.ID] = identity.Principal{KeyName: k.Name, KeyPrefix: k.Prefix}
	}
	accounts, err := store.Accounts.List(ctx)
	if err != nil {
		return names, fmt.Errorf("list accounts: %w", err)
	}
	for _, a := range accounts {
		names.Emails[a.ID] = a.Email
	}
	return names, nil
}
