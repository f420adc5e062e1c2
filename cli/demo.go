package cli

import (
	"context"
	"errors"
	"fmt"
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
	"basegate/keys"
	"basegate/mockvllm"
)

// demoModels are the models of the demo, those of config.yaml.
var demoModels = []struct {
	ID, Checkpoint, GPU string
}{
	{"llama-8b", "meta-llama/Llama-3.1-8B", "mock-8b"},
	{"llama-405b", "meta-llama/Llama-3.1-405B", "mock-405b"},
	{"trinity-base", "arcee-ai/Trinity-Large-TrueBase", "mock-trinity"},
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
	cmd.Flags().StringVar(&dir, "data", "", "the folder for configuration and database; empty: a fresh one that goes with the demo")
	return cmd
}

func demo(cmd *cobra.Command, listen, dir string) (err error) {
	signals, end := catchSignals()
	defer end()
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
	cfg, err := writeDemoConfig(path, listen, mocks)
	if err != nil {
		return err
	}
	secret, err := demoKey(cmd.Context(), cfg.Database.Path)
	if err != nil {
		return err
	}
	log := newLogger(cfg.Log, cmd.ErrOrStderr())
	g, err := gateway.New(cmd.Context(), cfg, log)
	if err != nil {
		return err
	}
	if err := g.Start(cmd.Context()); err != nil {
		return err
	}
	if err := welcome(cmd, g, path, secret); err != nil {
		return errors.Join(err, g.Stop(cmd.Context()))
	}
	return attend(cmd, g, cfg.Server.DrainTimeout, signals, log)
}

// startMocks starts a mock vLLM for each model, slow enough that a stream can be watched.
func startMocks(ctx context.Context) (mocks []*mockvllm.Process, err error) {
	for _, m := range demoModels {
		process, err := mockvllm.Start(ctx, "127.0.0.1:0", mockvllm.Options{
			Models: []string{m.Checkpoint}, FirstDelay: 50 * time.Millisecond, TokenDelay: 15 * time.Millisecond,
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

// demoConfig is written out, so that the other commands work on the demo too.
var demoConfig = template.Must(template.New("config.yaml").Parse(`# Written by basegate demo.
server: {listen: "{{.Listen}}", admin_listen: "127.0.0.1:0", drain_timeout: 5s}
database: {path: {{printf "%q" .Database}}}
log: {level: info, format: console}
models:
{{- range .Models}}
  - id: {{.ID}}
    checkpoint: {{.Checkpoint}}
    precision: bf16
    backends: [{name: mock, url: "{{.URL}}", gpu: {{.GPU}}}]
{{- end}}
`))

func writeDemoConfig(path, listen string, mocks []*mockvllm.Process) (*config.Config, error) {
	type model struct{ ID, Checkpoint, GPU, URL string }
	values := struct {
		Listen, Database string
		Models           []model
	}{Listen: listen, Database: filepath.Join(filepath.Dir(path), "basegate.db")}
	for i, m := range demoModels {
		values.Models = append(values.Models, model{m.ID, m.Checkpoint, m.GPU, mocks[i].URL()})
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

// demoKey makes a key of the demo's account, and the account where there is none yet.
func demoKey(ctx context.Context, path string) (secret string, err error) {
	db, err := database.Open(ctx, database.Settings{Path: path, LockWait: commandLockWait}, zap.NewNop())
	if err != nil {
		return "", fmt.Errorf("open database: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	d := keys.New(db, zap.NewNop(), keys.Settings{})
	_, err = d.CreateAccount(ctx, keys.NewAccount{Email: demoEmail, Name: "Demo", Admin: true})
	if err != nil && !errors.Is(err, keys.ErrEmailTaken) {
		return "", fmt.Errorf("create account: %w", err)
	}
	_, secret, err = d.CreateKey(ctx, keys.NewKey{Email: demoEmail, Name: "demo"})
	if err != nil {
		return "", fmt.Errorf("create key: %w", err)
	}
	return secret, nil
}

var demoWelcome = template.Must(template.New("welcome").Parse(`Basegate is up: three mock base models, an account ({{.Email}}) and a key.

  address   {{.URL}}
  base URL  {{.URL}}/v1
  key       {{.Secret}}

Try a completion:

  curl -s {{.URL}}/v1/completions -H "Authorization: Bearer {{.Secret}}" -d '{"model": "llama-8b", "prompt": "The capital of France is", "max_tokens": 16}'

Watch a stream:

  curl -sN {{.URL}}/v1/completions -H "Authorization: Bearer {{.Secret}}" -d '{"model": "llama-8b", "prompt": "Once upon a time", "max_tokens": 64, "stream": true}'

Any OpenAI client works with:

  export OPENAI_BASE_URL={{.URL}}/v1 OPENAI_API_KEY={{.Secret}}

The other commands work on it too, for example: basegate key list --config {{.Config}}
Ctrl-C ends the demo.
`))

func welcome(cmd *cobra.Command, g *gateway.Gateway, config, secret string) error {
	err := demoWelcome.Execute(cmd.OutOrStdout(), map[string]string{
		"Email": demoEmail, "URL": "http://" + g.Addr().String(), "Secret": secret, "Config": config,
	})
	if err != nil {
		return fmt.Errorf("print welcome: %w", err)
	}
	return nil
}
