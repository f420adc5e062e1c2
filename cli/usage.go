package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

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
	since, until *parsedFlag[time.Time]
	by           string
	account, key string
	asJSON       bool
	asCSV        bool
}

func newUsage() *cobra.Command {
	q := usageQuery{since: newTimeFlag("DATE", parseDate), until: newTimeFlag("DATE", parseEndDate)}
	groupings := strings.Join(report.CommandLineGroupings(), ", ")
	cmd := newCommand("usage", "Show the requests and tokens used",
		"Show the requests and tokens used, from the ledger. Requests, days and hours are sorted from the newest;\n"+
			"other groups from the most tokens. Without flags, show the days of this month.\n"+
			"A DATE is a day in UTC, such as 2026-11-21, or a time, such as 2026-11-21T09:30:00Z. --since includes its\n"+
			"day or time; --until includes its day, but excludes its time. A request counts at its time of arrival, once\n"+
			"it has ended.",
		func(cmd *cobra.Command, _ []string) error {
			return withDatabase(cmd, func(ctx context.Context, db *database.DB) error {
				return q.print(ctx, db, cmd.OutOrStdout())
			})
		})
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if !flagGiven(cmd) {
			now := time.Now().UTC()
			q.by, q.since.value = string(usage.ByDay), time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)
		}
		return q.validate()
	}
	q.flags = cmd.Flags()
	q.flags.Var(q.since, "since", "from this day or time on")
	q.flags.Var(q.until, "until", "up to this day, or before this time")
	q.flags.StringVar(&q.by, "by", string(usage.ByRequest), "group by: "+groupings)
	q.flags.StringVar(&q.account, "account", "", "only the account with the address `EMAIL`")
	q.flags.StringVar(&q.key, "key", "", "only the key with this `ID`, prefix or name")
	q.flags.BoolVar(&q.asJSON, "json", false, "as JSON")
	q.flags.BoolVar(&q.asCSV, "csv", false, "as CSV")
	excludeFlags(cmd, "json", "csv")
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("by", cobra.FixedCompletions(report.CommandLineGroupings(), cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

var errNoTime = errors.New("--since is not before --until: there is no time between them")

// validate refuses flags that make no sense for any ledger.
func (q *usageQuery) validate() error {
	if _, ok := report.CommandLineColumns(usage.Grouping(q.by)); !ok {
		return fmt.Errorf("--by: want one of %s, got %q", strings.Join(report.CommandLineGroupings(), ", "), q.by)
	}
	if q.flags.Changed("since") && q.flags.Changed("until") && !q.since.value.Before(q.until.value) {
		return errNoTime
	}
	return nil
}

// filter resolves the account and the key of the flags. An empty --account or --key is an error and not the absence of
// a filter: a script whose variable is empty must not get the usage of all accounts.
func (q *usageQuery) filter(ctx context.Context, store *identity.Store) (usage.Filter, error) {
	f := usage.Filter{Since: q.since.value, Until: q.until.value}
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
	filter, err := q.filter(ctx, storeOf(db))
	if err != nil {
		return err
	}
	names, err := readNames(ctx, db)
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
func readNames(ctx context.Context, db *database.DB) (names report.Names, err error) {
	keys, err := listKeys(ctx, db)
	if err != nil {
		return names, err
	}
	accounts, err := listAccounts(ctx, db)
	if err != nil {
		return names, err
	}
	known := map[string]identity.Principal{}
	for _, k := range keys {
		known[k.ID] = identity.Principal{KeyName: k.Name, KeyPrefix: k.Prefix}
	}
	names.Keys = func(id string) (identity.Principal, bool) {
		p, ok := known[id]
		return p, ok
	}
	emails := map[string]string{}
	for _, a := range accounts {
		emails[a.ID] = a.Email
	}
	names.Email = func(account string) string { return emails[account] }
	return names, nil
}
