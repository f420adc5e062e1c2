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
	cfg, err := writeDemoConfig(path, listen, "", mocks)
	if err != nil {
		return err
	}
	entrance, err := demoAccount(cmd.Context(), cfg.Database.Path)
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
	address := reachable(g.Addr())
	if cfg, err = writeDemoConfig(path, listen, address, mocks); err == nil { // again, with the address now that it is known
		g.Reload(cfg)
		err = welcome(cmd, address, path, entrance)
	}
	if err != nil {
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
server: {listen: "{{.Listen}}", {{with .Public}}public_url: "http://{{.}}", {{end}}admin_listen: "127.0.0.1:0", drain_timeout: 5s}
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

// reachable is an address to connect to where one listens on every address.
func reachable(a net.Addr) string {
	host, port, err := net.SplitHostPort(a.String())
	if ip := net.ParseIP(host); err == nil && ip != nil && ip.IsUnspecified() {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return a.String()
}

func writeDemoConfig(path, listen, public string, mocks []*mockvllm.Process) (*config.Config, error) {
	type model struct{ ID, Checkpoint, GPU, URL string }
	values := struct {
		Listen, Public, Database string
		Models                   []model
	}{Listen: listen, Public: public, Database: filepath.Join(filepath.Dir(path), "basegate.db")}
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

// demoEntrance is how to get into the demo.
type demoEntrance struct {
	Email, Password string // of the console
	Secret          string // of the API
}

// demoAccount makes the demo's account where there is none yet, and gives it a new password and another key.
func demoAccount(ctx context.Context, path string) (e demoEntrance, err error) {
	db, err := database.Open(ctx, database.Settings{Path: path, LockWait: commandLockWait}, zap.NewNop())
	if err != nil {
		return e, fmt.Errorf("open database: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	store := identity.New(db, zap.NewNop(), identity.Settings{})
	_, err = store.Accounts.Create(ctx, identity.NewAccount{Email: demoEmail, Name: "Demo", Admin: true})
	if err != nil && !errors.Is(err, identity.ErrEmailTaken) {
		return e, fmt.Errorf("create account: %w", err)
	}
	e = demoEntrance{Email: demoEmail, Password: strings.ToLower(rand.Text()[:demoPassword])}
	if err := store.Sessions.SetPassword(ctx, demoEmail, e.Password); err != nil {
		return e, fmt.Errorf("set password: %w", err)
	}
	if _, e.Secret, err = store.Keys.Create(ctx, identity.NewKey{Email: demoEmail, Name: "demo"}); err != nil {
		return e, fmt.Errorf("create key: %w", err)
	}
	return e, nil
}

// demoPassword is the length of the demo's password: 80 bits.
const demoPassword = 16

var demoWelcome = template.Must(template.New("welcome").Parse(`Basegate is up: three mock base models, an account and a key.

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

func welcome(cmd *cobra.Command, address, config string, e demoEntrance) error {
	err := demoWelcome.Execute(cmd.OutOrStdout(), struct {
		demoEntrance
		URL, Config string
	}{e, "http://" + address, config})
	if err != nil {
		return fmt.Errorf("print welcome: %w", err)
	}
	return nil
}
