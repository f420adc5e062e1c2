package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"basegate/budget/quota"
	"basegate/budget/usage"
	"basegate/budget/usage/report"
	"basegate/database"
	"basegate/identity"
	"basegate/proxy"
)

// runHelp explains what a run is.
const runHelp = "A run is an experiment: the keys that were made for it with POST /v1/keys, and the requests that name it in\n" +
	"X-Acs-Run. NAME is a run of one account; --account says which if several accounts have one."

func newRun() *cobra.Command {
	return newGroup("run", "List, show, stop and resume the runs of experiments",
		newRunList(),
		newRunShow(),
		newRunCommand("stop NAME", "Stop a run: its keys are paused, what waits is refused, and what runs is ended", "stopped", (*identity.Keys).StopRun),
		newRunCommand("resume NAME", "Resume a run that was stopped", "resumed", (*identity.Keys).ResumeRun),
	)
}

// runJSON is a run as JSON lists have it.
type runJSON struct {
	Run              string    `json:"run"`
	Account          string    `json:"account"`
	State            string    `json:"state"`
	Keys             int       `json:"keys"`
	Requests         int64     `json:"requests"`
	Errors           int64     `json:"errors"`
	PromptTokens     int64     `json:"prompt_tokens"`
	CompletionTokens int64     `json:"completion_tokens"`
	TotalTokens      int64     `json:"total_tokens"`
	Budget           quota.Cap `json:"budget"` // of all keys together; null: none has one
}

func newRunJSON(r *report.Run, names report.Names) runJSON {
	return runJSON{
		Run: r.Name, Account: names.Email(r.AccountID), State: r.State(), Keys: len(r.Keys), Requests: r.Usage.Requests,
		Errors: r.Usage.Errors, PromptTokens: r.Usage.PromptTokens, CompletionTokens: r.Usage.CompletionTokens,
		TotalTokens: r.Tokens(), Budget: r.Budget(),
	}
}

// foundRuns are runs with the names of their accounts and keys.
type foundRuns struct {
	runs  []*report.Run
	names report.Names
	usage *usage.Store
}

// findRuns reads the runs with a name, or all if it is empty, of one account, or of all if email is empty.
func findRuns(ctx context.Context, db *database.DB, email, name string) (f foundRuns, err error) {
	store, filter := storeOf(db), usage.Filter{Run: name}
	if email != "" {
		a, err := store.Accounts.Find(ctx, email)
		if err != nil {
			return f, fmt.Errorf("find account: %w", err)
		}
		filter.Account = a.ID
	}
	keys, err := store.Keys.Run(ctx, filter.Account, name)
	if err != nil {
		return f, fmt.Errorf("list keys: %w", err)
	}
	f.usage = usage.New(db, zap.NewNop())
	groups, err := f.usage.Groups(ctx, filter, usage.ByRun)
	if err == nil {
		f.runs = report.Runs(keys, groups[0])
		f.names, err = readNames(ctx, db)
	}
	return f, err
}

func newRunList() *cobra.Command {
	return newList("List the runs", "List the runs, the newest first.\n"+runHelp, func(cmd *cobra.Command) (l list, _ error) {
		found, err := fromDatabase(cmd, func(ctx context.Context, db *database.DB) (foundRuns, error) { return findRuns(ctx, db, "", "") })
		if err != nil {
			return l, err
		}
		l.headings = []string{"RUN", "ACCOUNT", "STATE", "KEYS", "REQUESTS", "ERRORS", "TOKENS", "BUDGET"}
		for _, r := range found.runs {
			o := newRunJSON(r, found.names)
			l.add(o, o.Run, o.Account, o.State, strconv.Itoa(o.Keys), strconv.FormatInt(o.Requests, 10), strconv.FormatInt(o.Errors, 10),
				strconv.FormatInt(o.TotalTokens, 10), budgetCell(o.Budget))
		}
		return l, nil
	})
}

var (
	errNoRun     = errors.New("there is no such run")
	errSomeRuns  = errors.New("several accounts have a run of this name: choose one with --account")
	errRunsLabel = errors.New("no key is part of this run, so there is nothing to stop: its name is a label of requests")
)

// findRun returns the one run with a name, whose account a flag may name.
func findRun(ctx context.Context, db *database.DB, email, name string) (found foundRuns, err error) {
	if err := identity.CheckRun(name); err != nil {
		return found, err
	}
	found, err = findRuns(ctx, db, email, name)
	switch {
	case err != nil:
		return found, err
	case len(found.runs) == 0:
		return found, fmt.Errorf("%w: %s", errNoRun, name)
	case len(found.runs) > 1:
		var emails []string
		for _, r := range found.runs {
			emails = append(emails, found.names.Email(r.AccountID))
		}
		return found, fmt.Errorf("%w: %s", errSomeRuns, strings.Join(emails, ", "))
	}
	return found, nil
}

func addAccountFlag(cmd *cobra.Command, email *string) {
	cmd.Flags().StringVar(email, "account", "", "the account with the address `EMAIL`")
}

type runKeyJSON struct {
	ID        string     `json:"id"`
	Name      string     `json:"name"`
	Prefix    string     `json:"prefix"`
	State     string     `json:"state"`
	ExpiresAt *time.Time `json:"expires_at"`
	Budget    quota.Cap  `json:"budget"` // null: none
	Used      int64      `json:"used"`   // tokens
}

func newRunShow() *cobra.Command {
	var email string
	var asJSON bool
	const short = "Show the usage, the keys and the models of a run"
	cmd := newCommand("show NAME", short, short+".\n"+runHelp, func(cmd *cobra.Command, args []string) error {
		return withDatabase(cmd, func(ctx context.Context, db *database.DB) error {
			found, err := findRun(ctx, db, email, args[0])
			if err != nil {
				return err
			}
			r := found.runs[0]
			groups, err := found.usage.Groups(ctx, usage.Filter{Account: r.AccountID, Run: r.Name}, usage.ByKey, usage.ByModel)
			if err != nil {
				return err
			}
			return printRun(cmd, asJSON, newRunJSON(r, found.names), runKeys(r, groups[0], found.names), groups[1])
		})
	})
	addAccountFlag(cmd, &email)
	addJSONFlag(cmd, &asJSON)
	return cmd
}

// runKeys returns the keys that are part of a run, and then those of requests that name it.
func runKeys(r *report.Run, used []usage.Row, names report.Names) []runKeyJSON {
	tokens := map[string]int64{}
	for _, row := range used {
		tokens[row.KeyID] = row.Tokens()
	}
	keys := []runKeyJSON{}
	for _, k := range r.Keys {
		keys = append(keys, runKeyJSON{k.ID, k.Name, k.Prefix, stateCell(k), proxy.OrNull(k.ExpiresAt), k.Caps[quota.LifeTotal], tokens[k.ID]})
		delete(tokens, k.ID)
	}
	for _, row := range used {
		if n, others := tokens[row.KeyID]; others {
			p, _ := names.Keys(row.KeyID)
			keys = append(keys, runKeyJSON{ID: row.KeyID, Name: p.KeyName, Prefix: p.KeyPrefix, State: report.Label, Used: n})
		}
	}
	return keys
}

func printRun(cmd *cobra.Command, asJSON bool, run runJSON, keys []runKeyJSON, models []usage.Row) error {
	if asJSON {
		byModel := map[string]int64{}
		for _, row := range models {
			byModel[row.Model] = row.Tokens()
		}
		return printJSON(cmd, struct {
			runJSON
			Keys    []runKeyJSON     `json:"of_keys"`
			ByModel map[string]int64 `json:"tokens_by_model"`
		}{run, keys, byModel})
	}
	out := cmd.OutOrStdout()
	fmt.Fprintf(out, "run %s of %s, %s: %s (%s), %d of %s tokens\n", run.Run, run.Account, run.State,
		count(run.Requests, "request"), count(run.Errors, "error"), run.TotalTokens, run.Budget)
	for _, row := range models {
		fmt.Fprintf(out, "model %s: %d tokens\n", row.Model, row.Tokens())
	}
	var rows [][]string
	for _, k := range keys {
		expires := never
		if k.ExpiresAt != nil {
			expires = formatTime(*k.ExpiresAt)
		}
		rows = append(rows, []string{k.Prefix + "…", k.Name, k.State, strconv.FormatInt(k.Used, 10), budgetCell(k.Budget), expires, k.ID})
	}
	return printTable(cmd, []string{"KEY", "NAME", "STATE", "TOKENS", "BUDGET", "EXPIRES", "ID"}, rows)
}

// newRunCommand returns a command that changes the keys of a run.
func newRunCommand(
	use, short, done string, change func(k *identity.Keys, ctx context.Context, account, run string) ([]identity.Key, error),
) *cobra.Command {
	var email string
	cmd := newCommand(use, short, short+".\n"+runHelp+"\nEvery gateway obeys within a second.", func(cmd *cobra.Command, args []string) error {
		return withDatabase(cmd, func(ctx context.Context, db *database.DB) error {
			found, err := findRun(ctx, db, email, args[0])
			if err != nil {
				return err
			}
			r := found.runs[0]
			if len(r.Keys) == 0 {
				return fmt.Errorf("%w: %s", errRunsLabel, r.Name)
			}
			keys, err := change(storeOf(db).Keys, ctx, r.AccountID, r.Name)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "run %s of %s is %s: %s\n", r.Name, keys[0].Email, done, count(int64(len(keys)), "key"))
			return nil
		})
	})
	addAccountFlag(cmd, &email)
	return cmd
}
