package cli

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
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
	if o.dir == "" {
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
	log, writer := newLogger(cfg.Log, cmd.ErrOrStderr())
	defer writer.Close(logFlushTimeout)
	g, err := gateway.New(cmd.Context(), cfg, versionText(), log, writer)
	if err != nil {
		return err
	}
	if err := g.Start(cmd.Context()); err != nil {
		return err
	}
	address := dialAddress(g.Addr())
	if cfg, err = writeDemoConfig(path, o, address, mocks); err == nil { // the public URL needs the bound port
		g.Reload(cfg)
		err = printWelcome(cmd, address, path, credentials)
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
		if _, c.Secret, err = store.Keys.Create(ctx, identity.Key{Email: demoEmail, Name: "demo"}); err != nil {
			return fmt.Errorf("create key: %w", err)
		}
		return nil
	})
	return c, err
}

// demoPasswordLength is the length of the demo's password, in characters of 5 random bits each.
const demoPasswordLength = 16

var demoWelcome = template.Must(template.New("welcome").Parse(`Basegate is up: three mock base models and one that chats, an account and a key.

  address   {{.URL}}
  base URL  {{.URL}}/v1
  key       {{.Secret}}
  console   {{.URL}}/
  sign in   {{.Email}}  {{.Password}}

Try a completion:

  curl -s {{.URL}}/v1/completions -H "Authorization: Bearer {{.Secret}}" -d '{"model": "llama-8b", "prompt": "The capital of France is", "max_tokens": 16}'

Watch a stream:

  curl -sN {{.URL}}/v1/completions -H "Authorization: Bearer {{.Secret}}" -d '{"model": "llama-8b", "prompt": "Once upon a time", "max_tokens": 64, "stream": true}'

Any OpenAI client works with:

  export OPENAI_BASE_URL={{.URL}}/v1 OPENAI_API_KEY={{.Secret}}

The other commands work on it too, for example: {{.Program}} key list --config {{.Config}}
Ctrl-C ends the demo.
`))

func printWelcome(cmd *cobra.Command, address, config string, c demoCredentials) error {
	err := demoWelcome.Execute(cmd.OutOrStdout(), struct {
		demoCredentials
		URL, Config, Program string
	}{c, "http://" + address, config, os.Args[0]})
	if err != nil {
		return fmt.Errorf("print welcome: %w", err)
	}
	return nil
}
