package cli

import (
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"text/template"
	"time"

	"github.com/spf13/cobra"

	"basegate/database"
	"basegate/gateway"
	"basegate/gateway/config"
	"basegate/identity"
	"basegate/mockvllm"
)

// demoModels are the models of the demo: those of config.yaml, and one that chats.
var demoModels = []struct {
	ID, Checkpoint, GPU string
	Template            string // of a model that chats
}{
	{"llama-8b", "meta-llama/Llama-3.1-8B", "mock-8b", mockvllm.TemplateNone},
	{"llama-405b", "meta-llama/Llama-3.1-405B", "mock-405b", mockvllm.TemplateNone},
	{"trinity-base", "arcee-ai/Trinity-Large-TrueBase", "mock-trinity", mockvllm.TemplateNone},
	{"llama-8b-instruct", "meta-llama/Llama-3.1-8B-Instruct", "mock-8b", mockvllm.TemplateLlama},
}

const demoEmail = "demo@example.org"

// demoOptions are the flags of the demo.
type demoOptions struct {
	listen      string
	dir         string // empty: a temporary folder
	databaseURL string // of PostgreSQL; empty: SQLite in the folder
}

func newDemo() *cobra.Command {
	var o demoOptions
	cmd := newCommand("demo", "Run the gateway with mock models, an account and a key: no GPU, no Docker", "",
		func(cmd *cobra.Command, _ []string) error { return demo(cmd, o) })
	cmd.PreRunE = func(*cobra.Command, []string) error { return checkListen(o.listen) }
	cmd.Flags().StringVar(&o.listen, "listen", "127.0.0.1:8080", "host:port to listen on")
	cmd.Flags().StringVar(&o.dir, "data", "",
		"the folder for configuration, database and files; empty: a temporary one, removed when the demo ends")
	cmd.Flags().StringVar(&o.databaseURL, "database-url", "",
		"postgres://…, an empty database to use in place of SQLite; it is not emptied when the demo ends")
	return cmd
}

func demo(cmd *cobra.Command, o demoOptions) (err error) {
	signals, endSignals := catchSignals()
	defer endSignals()
	temporary := o.dir == ""
	if temporary {
		if o.dir, err = os.MkdirTemp("", "basegate-demo-"); err != nil {
			return fmt.Errorf("make folder: %w", err)
		}
		defer func() { err = errors.Join(err, os.RemoveAll(o.dir)) }()
	} else if err := os.MkdirAll(o.dir, 0o700); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	mocks, err := startMocks(cmd.Context())
	if err != nil {
		return err
	}
	defer func() {
		for _, m := range mocks {
			err = errors.Join(err, m.Close())
		}
	}()
	path := filepath.Join(o.dir, "config.yaml")
	if err := cmd.Flags().Set("config", path); err != nil { // a reload reads it
		return fmt.Errorf("set flag: %w", err)
	}
	cfg, err := writeDemoConfig(path, o, "", mocks)
	if err != nil {
		return err
	}
	credentials, err := createDemoAccount(cmd.Context(), &cfg.Database)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(o.dir, demoKeyFile), []byte(credentials.Secret+"\n"), 0o600); err != nil {
		return fmt.Errorf("write key: %w", err)
	}
	logFile, err := os.OpenFile(filepath.Join(o.dir, demoLogFile), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	defer logFile.Close()
	log, writer := newLogger(cfg.Log, logFile)
	defer writer.Close(logFlushTimeout)
	g, err := gateway.New(cmd.Context(), cfg, versionText(), log, writer)
	if err == nil {
		err = g.Start(cmd.Context())
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		err = fmt.Errorf("%w: choose another address, for example with --listen 127.0.0.1:8090, or make demo LISTEN=127.0.0.1:8090", err)
	}
	if err != nil {
		return err
	}
	address := dialAddress(g.Addr())
	if cfg, err = writeDemoConfig(path, o, address, mocks); err == nil { // the public URL needs the bound port
		g.Reload(cfg)
		err = printWelcome(cmd, address, o.dir, temporary, credentials)
	}
	if err != nil {
		return errors.Join(err, g.Stop(cmd.Context()))
	}
	return serveUntilSignal(cmd, g, cfg.Server.DrainTimeout, signals)
}

// startMocks starts a mock vLLM for each model, slow enough to watch a stream.
func startMocks(ctx context.Context) (mocks []*mockvllm.Process, err error) {
	for _, m := range demoModels {
		process, err := mockvllm.Start(ctx, "127.0.0.1:0", mockvllm.Options{
			Models: []string{m.Checkpoint}, FirstDelay: 50 * time.Millisecond, TokenDelay: 15 * time.Millisecond, ChatTemplate: m.Template,
			TokenizerInfo: true,
		})
		if err != nil {
			for _, started := range mocks {
				err = errors.Join(err, started.Close())
			}
			return nil, fmt.Errorf("start mock: %w", err)
		}
		mocks = append(mocks, process)
	}
	return mocks, nil
}

// demoConfig is written to a file, so that the other commands work on the demo too.
var demoConfig = template.Must(template.New("config.yaml").Parse(`# Written by basegate demo.
server: {listen: "{{.Listen}}", {{with .Public}}public_url: "http://{{.}}", {{end}}admin_listen: "127.0.0.1:0", drain_timeout: 5s}
{{- with .DatabaseURL}}
database: {url: {{printf "%q" .}}}
files: {url: {{printf "%q" $.Files}}, shared: true}
{{- else}}
database: {path: {{printf "%q" .Database}}}
{{- end}}
log: {level: info, format: console}
dialects: {lamini: true}
models:
{{- range $i, $model := .Models}}
  - id: {{.ID}}
    checkpoint: {{.Checkpoint}}
    precision: bf16
    chat: {{ne .Template ""}}
    backends: [{name: mock, url: "{{(index $.Mocks $i).URL}}", gpu: {{.GPU}}}]
{{- end}}
`))

// dialAddress returns an address that a client can connect to: loopback if a listens on every address.
func dialAddress(a net.Addr) string {
	host, port, err := net.SplitHostPort(a.String())
	if ip := net.ParseIP(host); err == nil && ip != nil && ip.IsUnspecified() {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return a.String()
}

func writeDemoConfig(path string, o demoOptions, public string, mocks []*mockvllm.Process) (*config.Config, error) {
	folder, err := filepath.Abs(o.dir) // a URL needs an absolute path
	if err != nil {
		return nil, fmt.Errorf("write configuration: %w", err)
	}
	files := url.URL{Scheme: "file", Path: filepath.Join(folder, "files")}
	var text bytes.Buffer
	err = demoConfig.Execute(&text, map[string]any{
		"Listen": o.listen, "Public": public, "Database": filepath.Join(o.dir, "basegate.db"), "DatabaseURL": o.databaseURL,
		"Files": files.String(), "Models": demoModels, "Mocks": mocks,
	})
	if err == nil {
		err = os.WriteFile(path, text.Bytes(), 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("write configuration: %w", err)
	}
	return config.Load(path)
}

// demoCredentials are those of the demo's account.
type demoCredentials struct {
	Email, Password string // for the console
	Secret          string // for the API
}

// createDemoAccount creates the demo's account unless it exists, and gives it a new password and another key.
func createDemoAccount(ctx context.Context, configured *config.Database) (c demoCredentials, err error) {
	err = useDatabase(ctx, configured, func(ctx context.Context, db *database.DB) error {
		store := storeOf(db)
		_, err := store.Accounts.Create(ctx, identity.Account{Email: demoEmail, Name: "Demo", Admin: true})
		if err != nil && !errors.Is(err, identity.ErrEmailTaken) {
			return fmt.Errorf("create account: %w", err)
		}
		c = demoCredentials{Email: demoEmail, Password: strings.ToLower(rand.Text()[:demoPasswordLength])}
		if err := store.Sessions.SetPassword(ctx, demoEmail, c.Password); err != nil {
			return fmt.Errorf("set password: %w", err)
		}
		key := identity.Key{Email: demoEmail, Name: "demo", Children: sql.NullBool{Bool: true, Valid: true}}
		_, c.Secret, err = store.Keys.Create(ctx, key)
		if errors.Is(err, identity.ErrNameTaken) { // by an earlier demo in this folder
			key.Name += time.Now().Format(" of " + time.DateTime)
			_, c.Secret, err = store.Keys.Create(ctx, key)
		}
		return err
	})
	return c, err
}

// demoPasswordLength is the length of the demo's password, in characters of 5 random bits each.
const demoPasswordLength = 16

// Files of the demo's folder, beside its configuration, database and files.
const (
	demoKeyFile = "key" // the secret of the key, so that commands work as they are printed without repeating it
	demoLogFile = "demo.log"
)

var demoWelcome = template.Must(template.New("welcome").Parse(`Basegate is up: three mock base models and one that chats, an account and a key.

  address   {{.URL}}
  base URL  {{.URL}}/v1
  key       {{.Secret}}
  console   {{.URL}}/
  sign in   {{.Email}}  {{.Password}}

Try a completion:

  curl -s {{.URL}}/v1/completions -H "Authorization: Bearer $(cat {{.Dir}}/key)" -d '{"model": "llama-8b", "prompt": "The capital of France is", "max_tokens": 16}'

Watch a stream:

  curl -sN {{.URL}}/v1/completions -H "Authorization: Bearer $(cat {{.Dir}}/key)" -d '{"model": "llama-8b", "prompt": "Once upon a time", "max_tokens": 64, "stream": true}'

Any OpenAI client works with:

  export OPENAI_BASE_URL={{.URL}}/v1 OPENAI_API_KEY=$(cat {{.Dir}}/key)

The other commands work on it too, for example: {{.Program}} key list --config {{.Dir}}/config.yaml
The log is in {{.Dir}}/demo.log.
{{if .Temporary}}Its folder is removed when the demo ends; {{.Program}} demo --data FOLDER keeps it.{{else}}The data stays in {{.Dir}}, from which the next demo with this --data continues.{{end}}
Ctrl-C ends the demo.
`))

func printWelcome(cmd *cobra.Command, address, dir string, temporary bool, c demoCredentials) error {
	err := demoWelcome.Execute(cmd.OutOrStdout(), struct {
		demoCredentials
		URL, Dir, Program string
		Temporary         bool
	}{c, "http://" + address, dir, os.Args[0], temporary})
	if err != nil {
		return fmt.Errorf("print welcome: %w", err)
	}
	return nil
}
