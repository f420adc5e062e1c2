package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"basegate/budget/receipt"
	"basegate/database"
	"basegate/gateway"
	"basegate/gateway/config"
)

func newReceipt() *cobra.Command {
	return newGroup("receipt", "Verify receipts of answers, and check the log that they are in",
		newReceiptVerify(), newReceiptKey(),
		newGroup("log", "Check the receipt log, or begin a new one", newReceiptLogCheck(), newReceiptLogNew()),
	)
}

// receiptFiles are the files that receipt verify reads.
type receiptFiles struct{ request, answer, receipt string }

func newReceiptVerify() *cobra.Command {
	var files receiptFiles
	var key string
	cmd := newCommand("verify --request FILE --answer FILE --receipt FILE [--key VKEY]",
		"Check, offline, that a receipt proves that a request got an answer",
		"Check that a receipt proves that a request got an answer. It needs these files alone: no network, no\n"+
			"configuration and no gateway. The exit code is 1 if the receipt does not prove the answer.\n"+
			"The request is the body that was sent. The answer is the body that was received; of a stream, all of it, or the\n"+
			"payloads of its events joined by line feeds. The receipt is that of GET /receipts/{leaf hash}?nonce=1, or of the\n"+
			"comment at the end of a stream. Without --key, the key that the receipt itself names is trusted. One of the files may\n"+
			"be -, for stdin.",
		func(cmd *cobra.Command, _ []string) error { return verifyReceipt(cmd, files, key) })
	cmd.PreRunE = func(*cobra.Command, []string) error { return files.checkStreams() }
	flags := cmd.Flags()
	flags.StringVar(&files.request, "request", "", "the body of the request")
	flags.StringVar(&files.answer, "answer", "", "the answer")
	flags.StringVar(&files.receipt, "receipt", "", "the receipt")
	flags.StringVar(&key, "key", "", "the verifier key of the log, as its operator tells it")
	requireFlags(cmd, "request", "answer", "receipt")
	return cmd
}

func verifyReceipt(cmd *cobra.Command, files receiptFiles, key string) error {
	request, err := readInput(cmd, files.request, maxContent)
	if err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	answer, err := readInput(cmd, files.answer, maxContent)
	if err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	text, err := readInput(cmd, files.receipt, maxReceipt)
	if err != nil {
		return fmt.Errorf("read receipt: %w", err)
	}
	r, err := receipt.Parse(text)
	if err == nil {
		err = r.Verify(request, answer, key)
	}
	if err != nil {
		return fmt.Errorf("not verified: %w", err)
	}
	e := r.Entry
	fmt.Fprintf(cmd.OutOrStdout(), "verified: %s %s\n", e.Backend(), provedBy(e.Kind))
	fmt.Fprintf(cmd.OutOrStdout(), "request %s, ended %s, %d prompt and %d completion tokens, entry %d of the log\n",
		e.RequestID, e.Time, e.Usage.PromptTokens, e.Usage.CompletionTokens, *r.LeafIndex)
	if key == "" {
		fmt.Fprintf(cmd.ErrOrStderr(), "basegate: the log's key is taken from the receipt itself; compare it with the one that the operator tells: %s\n", r.Log)
	}
	return nil
}

// provedBy says what a receipt of a kind proves. A client of the tokenizer chooses the text of the answer itself.
func provedBy(kind string) string {
	switch kind {
	case receipt.Tokenization, receipt.Detokenization:
		return "answered this request to its tokenizer with this answer, and generated nothing"
	default:
		return "answered this request with this answer"
	}
}

const (
	// maxContent limits a request and an answer, and maxReceipt a receipt and a tree head, in bytes.
	maxContent = 1 << 30
	maxReceipt = 1 << 20
)

var errTwoStdins = errors.New("stdin (-) can be one of the three files only")

// checkStreams returns an error if several of the files are stdin.
func (f *receiptFiles) checkStreams() error {
	isStream := func(path string) bool { return path == standardStream }
	all := []string{f.request, f.answer, f.receipt}
	if len(all)-len(slices.DeleteFunc(all, isStream)) > 1 {
		return errTwoStdins
	}
	return nil
}

// readInput reads a file, or stdin, of at most limit bytes.
func readInput(cmd *cobra.Command, path string, limit int64) ([]byte, error) {
	from := cmd.InOrStdin()
	if path != standardStream {
		file, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		from = file
	}
	content, err := io.ReadAll(io.LimitReader(from, limit+1))
	if err == nil && int64(len(content)) > limit {
		err = fmt.Errorf("%s: %w %d bytes", path, errTooLong, limit)
	}
	return content, err
}

var errTooLong = errors.New("it is longer than")

func newReceiptKey() *cobra.Command {
	return newCommand("key", "Print the verifier key of the receipt log, which everybody may know", "", func(cmd *cobra.Command, _ []string) error {
		cfg, err := loadConfig(cmd)
		if err != nil {
			return err
		}
		key, err := receipt.VerifierKey(gateway.ReceiptSettings(cfg))
		if err != nil {
			return err
		}
		fmt.Fprintln(cmd.OutOrStdout(), key)
		return nil
	})
}

// remoteLogTimeout limits one request to a log elsewhere.
const remoteLogTimeout = 30 * time.Second

var errRemoteKey = errors.New("--url needs --key, since nothing else says whose log it is, and a tree head OLD")

func newReceiptLogCheck() *cobra.Command {
	var url, key string
	cmd := newCommand("check [OLD [NEW]]", "Check the whole receipt log, or that one signed tree head extends another",
		"Without an argument, compute the hashes of the receipt log in the database anew, and compare them with its tiles and\n"+
			"with the tree heads that were given out. With the file of a tree head OLD, check that the log extends it; with NEW\n"+
			"too, that NEW extends OLD. With --url, the log is that of a gateway elsewhere, such as\n"+
			"https://base.example.org/receipts, and no configuration is needed. The exit code is 1 if something is wrong.",
		func(cmd *cobra.Command, args []string) error {
			if url != "" {
				remote := &receipt.Remote{URL: url, Client: &http.Client{Timeout: remoteLogTimeout}}
				return checkTreeHeads(cmd, args, key, remote.Checkpoint, remote.Tiles(cmd.Context()))
			}
			return withConfig(cmd, func(ctx context.Context, cfg *config.Config, db *database.DB) error {
				if len(args) == 0 {
					return checkReceiptLog(ctx, cmd, gateway.ReceiptSettings(cfg), db)
				}
				latest, vkey, err := receipt.Latest(ctx, db)
				if err != nil {
					return err
				}
				return checkTreeHeads(cmd, args, cmp.Or(key, vkey), func(context.Context) (string, error) { return latest, nil }, receipt.StoredTiles(ctx, db.Read()))
			})
		})
	cmd.PreRunE = func(_ *cobra.Command, args []string) error {
		if url != "" && (key == "" || len(args) == 0) {
			return errRemoteKey
		}
		return nil
	}
	cmd.Flags().StringVar(&url, "url", "", "the address of the log, instead of the configured database")
	cmd.Flags().StringVar(&key, "key", "", "the verifier key of the log; required with --url")
	return cmd
}

func checkReceiptLog(ctx context.Context, cmd *cobra.Command, s receipt.Settings, db *database.DB) error {
	found, err := receipt.Check(ctx, s, db, true)
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "the receipt log is whole: %s under the latest tree head\n", count(found.Size, "entry"))
	if found.Waiting > 0 {
		fmt.Fprintf(cmd.OutOrStdout(), "%s that no tree head covers yet; the running gateway adds them\n", count(found.Waiting, "entry"))
	}
	return nil
}

// checkTreeHeads checks that a tree head extends an older one, whose files are the arguments. Without the newer one it is the
// latest of the log.
func checkTreeHeads(cmd *cobra.Command, args []string, key string, latest func(context.Context) (string, error), tiles receipt.TileSource) error {
	older, err := readTreeHead(cmd, args[0], key)
	if err != nil {
		return err
	}
	var newer receipt.TreeHead
	if len(args) == 2 {
		newer, err = readTreeHead(cmd, args[1], key)
	} else {
		var signed string
		if signed, err = latest(cmd.Context()); err == nil {
			newer, err = receipt.OpenCheckpoint(signed, key)
		}
	}
	if err != nil {
		return err
	}
	if err := receipt.CheckConsistency(older, newer, tiles); err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "consistent: the tree head of %s extends that of %s\n", count(newer.Size, "entry"), count(older.Size, "entry"))
	return nil
}

func readTreeHead(cmd *cobra.Command, path, key string) (head receipt.TreeHead, err error) {
	text, err := readInput(cmd, path, maxReceipt)
	if err != nil {
		return head, fmt.Errorf("read tree head: %w", err)
	}
	if head, err = receipt.OpenCheckpoint(string(text), key); err != nil {
		return head, fmt.Errorf("%s: %w", path, err)
	}
	return head, nil
}

func newReceiptLogNew() *cobra.Command {
	return newCommand("new", "Begin a new receipt log, after a restore or the loss of its key; the gateway must be stopped",
		"Begin a new receipt log with a new key. Its entries are those that the database has. The key and the tree head of the\n"+
			"old log are set aside, and the receipts that it has given still verify with the old key. The gateway must be\n"+
			"stopped. It is needed after a backup of the database was restored, because the same key must not sign two different logs.\n"+
			"On PostgreSQL, copy the new key to all gateways of the database, and start them again.",
		func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			// PostgreSQL's gateways stop at a log with another key.
			return useAlone(cmd.Context(), &cfg.Database, func(ctx context.Context, db *database.DB) error {
				s := gateway.ReceiptSettings(cfg)
				key, suffix, err := receipt.NewLog(ctx, s, db, time.Now())
				if err != nil {
					return err
				}
				fmt.Fprintln(cmd.OutOrStdout(), key)
				fmt.Fprintf(cmd.ErrOrStderr(), "this is the verifier key of the new log; the files of the old one in %s are kept, with %s behind their names\n", filepath.Dir(s.Key), suffix)
				return nil
			})
		})
}

// checkReceipts checks the receipt log.
func checkReceipts(ctx context.Context, cfg *config.Config, db *database.DB) []finding {
	const part = "receipts"
	s := gateway.ReceiptSettings(cfg)
	findings := []finding{}
	switch found, err := receipt.Check(ctx, s, db, false); {
	case errors.Is(err, receipt.ErrNoLog):
		findings = append(findings, finding{part, checkOK, "the log begins at the first start"})
	case err != nil:
		findings = append(findings, finding{part, checkFailed, err.Error()})
	default:
		findings = append(findings, finding{part, checkOK, count(found.Size, "entry") + " in the log " + found.VerifierKey})
		if key, err := receipt.VerifierKey(s); err != nil || key != found.VerifierKey {
			findings = append(findings, finding{part, checkFailed, "the signing key " + s.Key + " is not that of the log: put it back from its backup, or run basegate receipt log new"})
		}
	}
	if cfg.Receipts.Publish == "" {
		findings = append(findings, finding{part, checkWarning, "receipts.publish is empty: nobody notices if the log is rewritten, unless somebody keeps its tree heads"})
	}
	return findings
}
