package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"basegate/budget/quota"
	"basegate/e2e/parity"
	"basegate/gateway/config"
	"basegate/identity"
)

const (
	// verifyKeyVariable is the environment variable with the key that verify uses.
	verifyKeyVariable = "BASEGATE_KEY"
	// verifyEmail is the account of the temporary keys of verify. Nobody can sign in to it.
	verifyEmail = "verify@basegate.invalid"
	// verifyBudget is the default of --budget, in tokens: about twice what the matrix can use at most with one backend.
	verifyBudget = 100_000
	// keyTimeout limits the wait until the running gateway accepts a new key.
	keyTimeout = 5 * time.Second
)

var (
	errDifferent    = errors.New("responses differ, see the report")
	errNothing      = errors.New("the budget allows no comparison; raise --budget")
	errVerifyBudget = errors.New("--budget: want a number of tokens over 0")
)

type verifyFlags struct {
	budget          *parsedFlag[quota.Cap]
	asJSON          bool
	asMarkdown      bool
	gatewayURL, key string
}

const verifyHelp = `Compare the responses of the running gateway with those of the model's backends.

Each request of a built-in matrix is sent to every backend directly and through the gateway, plain and streamed, and the
responses are compared byte for byte; only id and created are left out. The verdicts are:
  identical         the same bytes
  as documented     different as the API reference says, for example an error in the gateway's form
  nondeterministic  the backend's own responses to the request differ
  different         different otherwise; the exit code is 1
  skipped           the budget does not allow the request

The worst case of every request is reserved before it is sent, so that no more than --budget tokens are used, direct
requests included. The prompts are built in; the report names them and shows no text.

The gateway is expected at server.listen on this machine, or at server.public_url if the port is 0. Without a key, a
temporary one of the account ` + verifyEmail + ` is created, with --budget as its cap, and revoked at the end.`

func newVerify() *cobra.Command {
	f := verifyFlags{budget: newCapFlag(quota.Limit(verifyBudget))}
	cmd := newCommand("verify MODEL", "Compare the gateway's responses with those of its backends", verifyHelp,
		func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			cmd.SetContext(ctx)
			return verify(cmd, f, args[0])
		})
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if tokens, bounded := f.budget.value.Tokens(); !bounded || tokens == 0 {
			return errVerifyBudget
		}
		if f.gatewayURL == "" {
			return nil
		}
		return checkServerFlag("--gateway", f.gatewayURL)
	}
	cmd.Flags().Var(f.budget, "budget", "the most tokens to use, such as 100k, direct requests included")
	addJSONFlag(cmd, &f.asJSON)
	cmd.Flags().BoolVar(&f.asMarkdown, "markdown", false, "as Markdown")
	excludeFlags(cmd, "json", "markdown")
	cmd.Flags().StringVar(&f.gatewayURL, "gateway", "", "the gateway's `URL`, without /v1 (default: server.listen on this machine)")
	cmd.Flags().StringVar(&f.key, "key", "", "an API `key`; better in the variable "+verifyKeyVariable+" (default: a temporary key)")
	return cmd
}

func verify(cmd *cobra.Command, f verifyFlags, model string) error {
	cfg, err := loadConfig(cmd)
	if err != nil {
		return err
	}
	settings, err := verifySettings(cfg, f, model)
	if err != nil {
		return err
	}
	settings.Transport = newLocalTransport()
	progress := progressOf(cmd)
	settings.Progress = func(done, of int) { fmt.Fprintf(progress, "\r%d of %d cases", done, of) }
	report, err := runWithKey(cmd, settings)
	fmt.Fprintln(progress)
	if err != nil {
		return err
	}
	return printParity(cmd, f, report)
}

func verifySettings(cfg *config.Config, f verifyFlags, model string) (parity.Settings, error) {
	budget, _ := f.budget.value.Tokens()
	m, err := findModel(cfg, model)
	if err != nil {
		return parity.Settings{}, err
	}
	s := parity.Settings{Model: m.ID, Checkpoint: m.Checkpoint, MaxScored: m.MaxScoredPromptTokens, Budget: budget, Version: versionText()}
	for _, b := range m.Backends {
		s.Backends = append(s.Backends, parity.Endpoint{Name: b.Name, URL: b.URL.String(), Key: b.APIKey.Reveal()})
	}
	s.Gateway = parity.Endpoint{Name: "gateway", URL: f.gatewayURL, Key: cmp.Or(f.key, os.Getenv(verifyKeyVariable))}
	if s.Gateway.URL != "" {
		return s, nil
	}
	local, err := localURL(cfg.Server.Listen, cfg.Server.TLS.Cert != "")
	if errors.Is(err, errPortZero) {
		local, err = cfg.Server.PublicURL.String(), nil
	}
	s.Gateway.URL = local
	return s, err
}

// runWithKey runs the comparison, with a temporary key if none is given.
func runWithKey(cmd *cobra.Command, s parity.Settings) (report *parity.Report, err error) {
	if s.Gateway.Key != "" {
		return parity.Run(cmd.Context(), s)
	}
	err = withStore(cmd, func(ctx context.Context, store *identity.Store) (err error) {
		key, secret, err := createVerifyKey(ctx, store, s)
		if err != nil {
			return err
		}
		defer func() {
			_, revokeErr := store.Keys.Revoke(context.WithoutCancel(ctx), key.ID)
			err = errors.Join(err, revokeErr)
		}()
		s.Gateway.Key, s.KeyWait = secret, keyTimeout
		report, err = parity.Run(ctx, s)
		return err
	})
	return report, err
}

// createVerifyKey creates a key that can use the budget at most, and its account unless it exists.
func createVerifyKey(ctx context.Context, store *identity.Store, s parity.Settings) (identity.Key, string, error) {
	_, err := store.Accounts.Create(ctx, identity.Account{Email: verifyEmail, Name: "basegate verify"})
	if err != nil && !errors.Is(err, identity.ErrEmailTaken) {
		return identity.Key{}, "", fmt.Errorf("create account: %w", err)
	}
	return store.Keys.Create(ctx, identity.Key{
		Email: verifyEmail, Name: "verify " + s.Model + " " + rand.Text()[:8], // a run that was killed has left its key
		Caps: quota.Caps{quota.MonthTotal: quota.Limit(s.Budget)},
	})
}

func printParity(cmd *cobra.Command, f verifyFlags, report *parity.Report) error {
	var err error
	switch {
	case f.asJSON:
		err = printJSON(cmd, report)
	case f.asMarkdown:
		err = report.WriteMarkdown(cmd.OutOrStdout())
	default:
		err = printParityTable(cmd, report)
	}
	skipped := report.Count(parity.Skipped)
	switch {
	case err != nil:
		return err
	case report.Count(parity.Different) > 0:
		return errDifferent
	case skipped > 0 && report.Count(parity.Identical, parity.Documented, parity.Nondeterministic) == 0:
		return errNothing
	case skipped > 0:
		fmt.Fprintf(cmd.ErrOrStderr(), "%d comparisons were skipped; raise --budget to make them\n", skipped)
	}
	return nil
}

func printParityTable(cmd *cobra.Command, report *parity.Report) error {
	columns := strings.Fields(strings.ToUpper(strings.Join(parity.Columns, " ")))
	rows := report.Table()
	for _, row := range rows {
		row[4] = dash(row[4])
	}
	if err := printTable(cmd, columns, rows); err != nil {
		return err
	}
	for _, b := range report.Backends {
		if b.Problem != "" {
			fmt.Fprintf(cmd.ErrOrStderr(), "backend %s is left out: %s\n", b.Name, b.Problem)
		}
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "\n%s; at most %d tokens used\n", report.Summary(), report.Spent)
	return err
}
