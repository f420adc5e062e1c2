package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"text/template"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"basegate/config"
	"basegate/database"
	"basegate/gateway"
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

func newDemo() *cobra.Command {
	var listen, dir string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run the gateway with mock models, an account and a key: no GPU, no Docker",
		Args:  cobra.NoArgs,
		RunE: run(func(cmd *cobra.Command, _ []string) error {
			return demo(cmd, listen, dir)
		}),
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:8080", "host:port to listen on")
	cmd.Flags().StringVar(&dir, "data", "",
		"the folder for configuration and database; empty: a temporary one, removed when the demo ends")
	return cmd
}

func demo(cmd *cobra.Command, listen, dir string) (err error) {
	signals, stopSignals := catchSignals()
	defer stopSignals()
	if dir == "" {
		if dir, err = os.MkdirTemp("", "basegate-demo-"); err != nil {
			return fmt.Errorf("make folder: %w", err)
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	} else if err := os.MkdirAll(dir, 0o700); err != nil {
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
	path := filepath.Join(dir, "config.yaml")
	if err := cmd.Flags().Set("config", path); err != nil { // a reload reads it
		return fmt.Errorf("set flag: %w", err)
	}
	cfg, err := writeDemoConfig(path, listen, "", mocks)
	if err != nil {
		return err
	}
	credentials, err := createDemoAccount(cmd.Context(), cfg.Database.Path)
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
	if cfg, err = writeDemoConfig(path, listen, address, mocks); err == nil { // the public URL needs the bound port
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
database: {path: {{printf "%q" .Database}}}
log: {level: info, format: console}
dialects: {lamini: true}
models:
{{- range .Models}}
  - id: {{.ID}}
    checkpoint: {{.Checkpoint}}
    precision: bf16
    chat: {{.Chat}}
    backends: [{name: mock, url: "{{.URL}}", gpu: {{.GPU}}}]
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

func writeDemoConfig(path, listen, public string, mocks []*mockvllm.Process) (*config.Config, error) {
	type model struct {
		ID, Checkpoint, GPU, URL string
		Chat                     bool
	}
	values := struct {
		Listen, Public, Database string
		Models                   []model
	}{Listen: listen, Public: public, Database: filepath.Join(filepath.Dir(path), "basegate.db")}
	for i, m := range demoModels {
		values.Models = append(values.Models, model{m.ID, m.Checkpoint, m.GPU, mocks[i].URL(), m.Template != mockvllm.TemplateNone})
	}
	var text strings.Builder
	if err := demoConfig.Execute(&text, values); err != nil {
		return nil, fmt.Errorf("write configuration: %w", err)
	}
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
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
func createDemoAccount(ctx context.Context, path string) (c demoCredentials, err error) {
	db, err := database.Open(ctx, database.Settings{Path: path, LockWait: commandLockWait}, zap.NewNop())
	if err != nil {
		return c, fmt.Errorf("open database: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	store := identity.New(db, zap.NewNop(), identity.Settings{})
	_, err = store.Accounts.Create(ctx, identity.NewAccount{Email: demoEmail, Name: "Demo", Admin: true})
	if err != nil && !errors.Is(err, identity.ErrEmailTaken) {
		return c, fmt.Errorf("create account: %w", err)
	}
	c = demoCredentials{Email: demoEmail, Password: strings.ToLower(rand.Text()[:demoPasswordLength])}
	if err := store.Sessions.SetPassword(ctx, demoEmail, c.Password); err != nil {
		return c, fmt.Errorf("set password: %w", err)
	}
	if _, c.Secret, err = store.Keys.Create(ctx, identity.NewKey{Email: demoEmail, Name: "demo"}); err != nil {
		return c, fmt.Errorf("create key: %w", err)
	}
	return c, nil
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

The other commands work on it too, for example: basegate key list --config {{.Config}}
Ctrl-C ends the demo.
`))

func printWelcome(cmd *cobra.Command, address, config string, c demoCredentials) error {
	err := demoWelcome.Execute(cmd.OutOrStdout(), struct {
		demoCredentials
		URL, Config string
	}{c, "http://" + address, config})
	if err != nil {
		return fmt.Errorf("print welcome: %w", err)
	}
	return nil
}
