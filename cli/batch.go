package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"basegate/batch"
	"basegate/database"
	apierr "basegate/errors"
	"basegate/gateway"
	"basegate/gateway/config"
	"basegate/proxy"
)

func newBatch() *cobra.Command {
	return newGroup("batch", "Create, watch, cancel and check batches",
		newBatchCreate(), newBatchList(), newBatchShow(), newBatchCancel(), newBatchWait(), newBatchCheck())
}

// withBatches opens the database and the files for one operation. A gateway may be running on them.
func withBatches(cmd *cobra.Command, operation func(context.Context, *config.Config, *batch.Service, *database.DB) error) error {
	return withConfig(cmd, func(ctx context.Context, cfg *config.Config, db *database.DB) (err error) {
		service, closeFiles, err := gateway.NewBatches(cfg, db)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, closeFiles()) }()
		return explained(operation(ctx, cfg, service, db))
	})
}

var errNoObject = errors.New("no such batch or file")

// explained returns an error of the API with its message in place of its code.
func explained(err error) error {
	e, ok := errors.AsType[*apierr.Error](err)
	switch {
	case !ok:
		return err
	case e.Code == apierr.NotFound: // its message is about one account
		return fmt.Errorf("%s%w", strings.TrimSuffix(err.Error(), e.Error()), errNoObject)
	}
	return fmt.Errorf("%s%s", strings.TrimSuffix(err.Error(), e.Error()), e.Message)
}

// newBatchesCommand returns a command that works on the batches and their files.
func newBatchesCommand(
	use, short string, operation func(ctx context.Context, cmd *cobra.Command, s *batch.Service, args []string) error,
) *cobra.Command {
	return newCommand(use, short, "", func(cmd *cobra.Command, args []string) error {
		return withBatches(cmd, func(ctx context.Context, _ *config.Config, s *batch.Service, _ *database.DB) error {
			return operation(ctx, cmd, s, args)
		})
	})
}

func newBatchCreate() *cobra.Command {
	var key, window, model string
	cmd := newCommand("create FILE --key ID", "Create a batch of a file's lines in the name of a key, and print its id",
		"Create a batch of a file's lines in the name of a key, which pays for it, and print its id. The lines are\n"+
			"checked first, as by basegate batch check, which says what a line may hold; the running gateway runs them. The\n"+
			"batch's endpoint is that of the first line.",
		func(cmd *cobra.Command, args []string) error {
			file, err := os.Open(args[0])
			if err != nil {
				return err
			}
			defer file.Close()
			return withBatches(cmd, func(ctx context.Context, cfg *config.Config, s *batch.Service, db *database.DB) error {
				k, err := storeOf(db).Keys.Find(ctx, key)
				if err != nil {
					return err
				}
				read := func() io.Reader {
					if model == "" {
						return file
					}
					return batch.WithModel(file, model, cfg.Server.MaxBodyBytes)
				}
				if _, err := file.Seek(0, io.SeekStart); err == nil { // a pipe is read once, and checked by the gateway alone
					if _, err := checkLines(cmd, cfg, read(), "", cmd.ErrOrStderr()); err != nil {
						return fmt.Errorf("%w; nothing was created", err)
					}
					if _, err := file.Seek(0, io.SeekStart); err != nil {
						return err
					}
				}
				source := read()
				b, err := s.Create(ctx, k.AccountID, k.ID, filepath.Base(args[0]), window, source)
				if err != nil {
					return fmt.Errorf("create the batch: %w", err)
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "the batch of %s (%s) waits for the gateway; watch it with: basegate batch wait %s\n", k.Prefix+"…", k.Email, b.ID)
				fmt.Fprintln(cmd.OutOrStdout(), b.ID)
				return nil
			})
		})
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if names := batch.Windows(); !slices.Contains(names, window) {
			return fmt.Errorf("--window: want one of %s, got %q", strings.Join(names, ", "), window)
		}
		return nil
	}
	cmd.Flags().StringVar(&key, "key", "", "the key that pays: its `ID`, prefix or name")
	cmd.Flags().StringVar(&window, "window", "24h", "the completion window: "+strings.Join(batch.Windows(), ", "))
	cmd.Flags().StringVar(&model, "model", "", "the model of lines whose body names none")
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("window", cobra.FixedCompletions(batch.Windows(), cobra.ShellCompDirectiveNoFileComp)))
	requireFlags(cmd, "key")
	return cmd
}

// maxListed limits what lists print.
const maxListed = 1000

func newBatchList() *cobra.Command {
	columns := []string{"ID", "STATUS", "LINES", "FAILED", "TOKENS", "KEY", "CREATED", "EXPIRES", "WAITS FOR"}
	return newBatchesList("List the batches of all accounts, the newest first", columns, (*batch.Service).BatchesOf,
		func(b *batch.Batch, prefixes map[string]string) []string {
			return []string{
				b.ID, string(b.Status), fmt.Sprintf("%d of %d", b.Completed+b.Failed, b.Total), fmt.Sprint(b.Failed),
				fmt.Sprint(b.InputTokens + b.OutputTokens), dash(prefixes[b.Key]), formatTime(time.Unix(b.CreatedAt, 0)), formatTime(time.Unix(b.ExpiresAt, 0)),
				dash(waitsFor(b)),
			}
		})
}

// waitsFor returns the reason why no line of a batch can start; empty if there is none.
func waitsFor(b *batch.Batch) string {
	if w := b.WaitsFor(); w != nil {
		return string(w.Reason)
	}
	return ""
}

// newBatchesList returns the command that prints batches or files. row returns the columns of one; prefixes are what lists
// show of each key, by its id.
func newBatchesList[T any](
	short string, columns []string,
	read func(s *batch.Service, ctx context.Context, account, after string, limit int) ([]T, bool, error),
	row func(one *T, prefixes map[string]string) []string,
) *cobra.Command {
	return newList(short, "", func(cmd *cobra.Command) (list, error) {
		l := list{headings: columns}
		err := withBatches(cmd, func(ctx context.Context, _ *config.Config, s *batch.Service, db *database.DB) error {
			all, _, err := read(s, ctx, "", "", maxListed)
			if err != nil {
				return err
			}
			keys, err := listKeys(ctx, db)
			if err != nil {
				return err
			}
			prefixes := map[string]string{}
			for _, k := range keys {
				prefixes[k.ID] = k.Prefix + "…"
			}
			for i := range all {
				l.add(&all[i], row(&all[i], prefixes)...)
			}
			return nil
		})
		return l, err
	})
}

// batchForm is the help of the commands that print one batch.
const batchForm = ", for people if stdout is a terminal, or else as JSON"

func newBatchShow() *cobra.Command {
	var asJSON bool
	cmd := newBatchesCommand("show ID", "Print a batch"+batchForm,
		func(ctx context.Context, cmd *cobra.Command, s *batch.Service, args []string) error {
			b, err := findBatch(ctx, s, args[0])
			if err != nil {
				return err
			}
			return printBatch(cmd, &b, asJSON)
		})
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON on a terminal too")
	return cmd
}

// findBatch returns a batch of any account.
func findBatch(ctx context.Context, s *batch.Service, id string) (batch.Batch, error) {
	b, err := s.BatchOf(ctx, "", id)
	if err != nil {
		return b, fmt.Errorf("%s: %w", id, err)
	}
	return b, nil
}

// printBatch prints a batch for people if stdout is a terminal, or else as JSON.
func printBatch(cmd *cobra.Command, b *batch.Batch, asJSON bool) error {
	if asJSON || !isTerminal(cmd.OutOrStdout()) {
		return printJSON(cmd, b)
	}
	state := string(b.Status)
	if reason := waitsFor(b); reason != "" {
		state += ", waits for " + reason
	}
	rows := [][]string{
		{"state", state},
		{"lines", fmt.Sprintf("%d of %d have ended, %d of them with an error", b.Completed+b.Failed, b.Total, b.Failed)},
		{"tokens", fmt.Sprintf("%d of prompts, %d of completions", b.InputTokens, b.OutputTokens)},
		{"endpoint", b.Endpoint},
		{"model", cmp.Or(b.Model(), strings.Join(b.Models, ", "), "-")},
		{"key", b.Key},
		{"created", formatTime(time.Unix(b.CreatedAt, 0)) + " UTC"},
		{"expires", formatTime(time.Unix(b.ExpiresAt, 0)) + " UTC"},
		{"input", b.InputFile},
		{"results", dash(b.OutputFile)},
		{"errors", dash(b.ErrorFile)},
	}
	for _, e := range b.Errors {
		rows = append(rows, []string{"", describeLine(e)})
	}
	if err := printTable(cmd, []string{"batch", b.ID}, rows); err != nil {
		return err
	}
	for _, file := range []string{b.OutputFile, b.ErrorFile} {
		if file != "" {
			fmt.Fprintln(cmd.ErrOrStderr(), "print it with: basegate file download "+file)
		}
	}
	return nil
}

func newBatchCancel() *cobra.Command {
	var asJSON bool
	cmd := newBatchesCommand("cancel ID", "Cancel a batch; what has ended stays, and is charged",
		func(ctx context.Context, cmd *cobra.Command, s *batch.Service, args []string) error {
			if _, err := s.CancelOf(ctx, "", args[0]); err != nil {
				return fmt.Errorf("cancel %s: %w", args[0], err)
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "%s is being cancelled; the running gateway ends its lines\n", args[0])
			if !asJSON {
				return nil
			}
			b, err := findBatch(ctx, s, args[0])
			if err != nil {
				return err
			}
			return printJSON(cmd, &b)
		})
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the batch as JSON")
	return cmd
}

// waitInterval is the time between two looks at a batch.
const waitInterval = time.Second

var errBatchFailed = errors.New("the batch did not complete")

func newBatchWait() *cobra.Command {
	var asJSON bool
	cmd := newBatchesCommand("wait ID", "Wait until a batch has ended, and print it"+batchForm+"; exit code 1 if it did not complete",
		func(ctx context.Context, cmd *cobra.Command, s *batch.Service, args []string) error {
			b, err := waitForBatch(ctx, cmd, s, args[0])
			if err != nil {
				return err
			}
			if err := printBatch(cmd, b, asJSON); err != nil {
				return err
			}
			if b.Status != batch.Completed {
				return fmt.Errorf("%w: it is %s", errBatchFailed, b.Status)
			}
			return nil
		})
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON on a terminal too")
	return cmd
}

// waitForBatch waits for the end of a batch. If stderr is a terminal, it shows the progress there.
func waitForBatch(ctx context.Context, cmd *cobra.Command, s *batch.Service, id string) (*batch.Batch, error) {
	progress := progressOf(cmd)
	defer fmt.Fprintln(progress)
	tick := time.NewTicker(waitInterval)
	defer tick.Stop()
	for {
		b, err := findBatch(ctx, s, id)
		if err != nil {
			return nil, err
		}
		ended, state := b.Completed+b.Failed, string(b.Status)
		if reason := waitsFor(&b); reason != "" {
			state += ", waits for " + reason
		}
		fmt.Fprintf(progress, "\r%s %s %d of %d\x1b[K", progressBar(ended, b.Total), state, ended, b.Total)
		if b.Status.Ended() {
			return &b, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// progressBar returns a bar of 30 characters.
func progressBar(done, total int64) string {
	const width = 30
	filled := 0
	if total > 0 {
		filled = int(done * width / total)
	}
	return "[" + strings.Repeat("#", filled) + strings.Repeat(".", width-filled) + "]"
}

var errWrongLines = errors.New("the file has errors")

func newBatchCheck() *cobra.Command {
	var endpoint string
	cmd := newCommand("check FILE", "Validate an input file as the gateway would, without a gateway",
		"Validate an input file as the gateway would, with the configured models. Each line of the file is\n"+
			`{"custom_id": "…", "method": "POST", "url": "/v1/completions", "body": {…}}`+", with the body of a completion\n"+
			"that is not streamed, or with "+proxy.ChatPath+" or "+proxy.LoglikelihoodPath+" and the body of one. All lines\n"+
			"have the same url. The versions and contexts of backends are not known to this command, unless they are configured.",
		func(cmd *cobra.Command, args []string) error {
			cfg, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			file, err := os.Open(args[0])
			if err != nil {
				return err
			}
			defer file.Close()
			lines, err := checkLines(cmd, cfg, file, endpoint, cmd.OutOrStdout())
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%d lines are valid\n", lines)
			return nil
		})
	cmd.Flags().StringVar(&endpoint, "endpoint", "", "the endpoint of the batch: "+proxy.CompletionsPath+", "+proxy.ChatPath+" or "+proxy.LoglikelihoodPath+" (default: that of the first line)")
	return cmd
}

// checkLines validates the lines of a batch, whose endpoint is that of the first line if it is empty, and prints what is
// wrong to out. It returns the number of lines; the error is errWrongLines if there is something wrong.
func checkLines(cmd *cobra.Command, cfg *config.Config, file io.Reader, endpoint string, out io.Writer) (int64, error) {
	url, whole := batch.EndpointOf(file, cfg.Server.MaxBodyBytes)
	checked, wrong, err := batch.Check(cmd.Context(), whole, cmp.Or(endpoint, url), cfg.Server.MaxBodyBytes, gateway.LineChecker(cmd.Context(), cfg))
	if err != nil {
		return 0, err
	}
	for _, e := range wrong {
		fmt.Fprintln(out, describeLine(e))
	}
	if len(wrong) > 0 {
		return 0, errWrongLines
	}
	return checked.Lines, nil
}

// describeLine describes an error of a batch's validation.
func describeLine(e batch.LineError) string {
	where := "file"
	if e.Line != nil {
		where = fmt.Sprintf("line %d", *e.Line)
	}
	return fmt.Sprintf("%s: %s: %s", where, e.Code, e.Message)
}
