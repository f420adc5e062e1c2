package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"regexp"
	"strings"
	"syscall"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"
	"github.com/tidwall/gjson"

	"basegate/gateway/config"
)

// smallConfig is the file that init writes, and that commands prefer to config.yaml.
const smallConfig = "basegate.yaml"

// vllmKeyVariable is the environment variable from which vLLM itself reads its API key.
const vllmKeyVariable = "VLLM_API_KEY"

const smallConfigHead = "# Written by basegate init. Every other setting has its default; the project's config.yaml lists them all.\n"

// smallModel is a model of the written configuration.
type smallModel struct {
	ID         string         `yaml:"id"`
	Checkpoint string         `yaml:"checkpoint"`
	Backends   []smallBackend `yaml:"backends"`
}

type smallBackend struct {
	URL    string `yaml:"url"`
	APIKey string `yaml:"api_key,omitempty"`
}

func newInit() *cobra.Command {
	var model, address string
	cmd := newCommand("init", "Write a small configuration for a vLLM server",
		"Ask a vLLM server what it serves, write "+smallConfig+" (or the file of --config) for it, and print what to run next. A file\n"+
			"that exists is not overwritten. If the server requires a key, it is taken from the environment variable "+vllmKeyVariable+".",
		func(cmd *cobra.Command, _ []string) error { return writeSmallConfig(cmd, model, address) })
	cmd.PreRunE = func(*cobra.Command, []string) error {
		return checkServerFlag("--url", address)
	}
	cmd.Flags().StringVar(&address, "url", "http://127.0.0.1:8001", "`URL` at which vLLM listens")
	cmd.Flags().StringVar(&model, "model", "", "`NAME` in vLLM of one of its models, or the id for clients if it has only one;\n"+
		"needed if the server does not run yet")
	return cmd
}

func checkServerFlag(flag, address string) error {
	if u, err := url.Parse(address); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("%s: want http://HOST:PORT, got %q", flag, address)
	}
	return nil
}

func writeSmallConfig(cmd *cobra.Command, model, address string) error {
	file := smallConfig
	if cmd.Flag("config").Changed || os.Getenv(configVariable) != "" {
		file = configPath(cmd)
	}
	if _, err := os.Lstat(file); err == nil {
		return fmt.Errorf("%s exists and is not overwritten: edit it, or write another file with --config", file)
	}
	address = strings.TrimSuffix(strings.TrimRight(address, "/"), "/v1")
	s, err := askServer(cmd.Context(), address)
	m := smallModel{ID: modelID(model), Checkpoint: model, Backends: []smallBackend{{URL: address}}}
	_, silent := errors.AsType[*noAnswerError](err)
	switch {
	case silent && model != "":
		fmt.Fprintf(cmd.ErrOrStderr(), "basegate: %v, so %s is taken for the model's name in vLLM: correct checkpoint in %s if it is another\n",
			err, model, file)
	case silent:
		return fmt.Errorf("%w: start vLLM there, for example with\n"+
			"  vllm serve meta-llama/Llama-3.1-8B --generation-config vllm --port 8001\n"+
			"or correct --url; with --model CHECKPOINT the file is written without an answer", err)
	case err != nil:
		return err
	default:
		if m.ID, m.Checkpoint, err = s.choose(model); err != nil {
			return err
		}
		if s.needsKey {
			m.Backends[0].APIKey = "${" + vllmKeyVariable + "}"
		}
		fmt.Fprintln(cmd.OutOrStdout(), s.describe(m.Checkpoint))
	}
	if err := writeNew(file, m); err != nil {
		return err
	}
	return printNextCommands(cmd, file, m)
}

// writeNew writes the configuration of a model to a file that must not exist.
func writeNew(file string, m smallModel) error {
	text, err := yaml.MarshalWithOptions(map[string]any{"models": []smallModel{m}}, yaml.IndentSequence(true))
	if err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	text = append([]byte(smallConfigHead), text...)
	if _, err := config.Parse(file, text, os.LookupEnv); err != nil {
		return fmt.Errorf("the configuration would be invalid: %w", err)
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	return nil
}

func printNextCommands(cmd *cobra.Command, file string, m smallModel) error {
	program, option := os.Args[0], ""
	if cmd.Flag("config").Changed {
		option = " --config " + file
	}
	need := ""
	if m.Backends[0].APIKey != "" {
		need = "; it needs " + vllmKeyVariable
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), `Wrote %[1]s: clients call the model %[2]s. Next:

  %[3]s account create you@example.org --admin%[4]s
  %[3]s key create --account you@example.org --name laptop%[4]s   # prints the key, once
  %[3]s serve%[4]s   # at http://127.0.0.1:8080%[5]s
`, file, m.ID, program, option, need)
	return err
}

// server is what a server says about itself.
type server struct {
	address  string
	models   []gjson.Result // of /v1/models, not empty
	version  string         // of vLLM; empty: it reports none
	needsKey bool
}

// noAnswerError says that nothing answers at an address.
type noAnswerError struct {
	address string
	error
}

func (e *noAnswerError) Error() string {
	if errors.Is(e.error, syscall.ECONNREFUSED) {
		return "no server listens at " + e.address
	}
	return fmt.Sprintf("no server answers at %s (%v)", e.address, e.error)
}

func (e *noAnswerError) Unwrap() error { return e.error }

// askServer asks the server at an address what it serves. The error is a noAnswerError if it does not answer.
func askServer(ctx context.Context, address string) (s server, err error) {
	s.address = address
	status, body, err := s.get(ctx, "/v1/models")
	if status == http.StatusUnauthorized {
		s.needsKey = true
		status, body, err = s.get(ctx, "/v1/models")
	}
	models := gjson.GetBytes(body, "data.#.id").Array()
	switch {
	case err != nil:
		return s, err
	case status == http.StatusUnauthorized:
		return s, fmt.Errorf("the server at %s requires a key: set the environment variable %s to its --api-key, and try again", address, vllmKeyVariable)
	case status != http.StatusOK || len(models) == 0:
		return s, fmt.Errorf("the server at %s is not vLLM: GET /v1/models got status %d and lists no model; correct --url", address, status)
	}
	s.models = gjson.GetBytes(body, "data").Array()
	if status, body, err = s.get(ctx, "/version"); err == nil && status == http.StatusOK {
		s.version = gjson.GetBytes(body, "version").Str
	}
	return s, nil
}

// get requests a path, with the key of the environment if the server needs one.
func (s *server) get(ctx context.Context, path string) (status int, body []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.address+path, http.NoBody)
	if err != nil {
		return 0, nil, fmt.Errorf("request %s: %w", path, err)
	}
	if s.needsKey {
		request.Header.Set("Authorization", "Bearer "+os.Getenv(vllmKeyVariable))
	}
	response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request) // without a proxy, as the gateway connects
	if err != nil {
		return 0, nil, &noAnswerError{s.address, err}
	}
	defer response.Body.Close()
	if body, err = io.ReadAll(io.LimitReader(response.Body, 1<<20)); err != nil {
		return 0, nil, &noAnswerError{s.address, err}
	}
	return response.StatusCode, body, nil
}

// names returns the names by which the server knows its models. vLLM lists the base model before its adapters.
func (s *server) names() []string {
	var names []string
	for _, m := range s.models {
		names = append(names, m.Get("id").Str)
	}
	return names
}

// choose returns the id and the checkpoint of the model to configure. wanted is a name that the server knows, or an id for the
// only one, or empty for the first.
func (s *server) choose(wanted string) (id, checkpoint string, err error) {
	names := s.names()
	for _, name := range names {
		if name == wanted || wanted == "" {
			return modelID(name), name, nil
		}
	}
	if len(names) == 1 && modelID(wanted) == wanted {
		return wanted, names[0], nil
	}
	return "", "", fmt.Errorf("the server at %s serves %s and not %s: correct --model, or start vLLM with --served-model-name %[3]s",
		s.address, strings.Join(names, ", "), wanted)
}

// describe says what the server serves.
func (s *server) describe(checkpoint string) string {
	var length string
	var others []string
	for _, m := range s.models {
		switch tokens := m.Get("max_model_len").Int(); {
		case m.Get("id").Str != checkpoint:
			others = append(others, m.Get("id").Str)
		case tokens > 0:
			length = fmt.Sprintf(" with a context of %d tokens", tokens)
		}
	}
	text := fmt.Sprintf("%s serves %s%s", s.address, checkpoint, length)
	if s.version != "" {
		text += ", by vLLM " + s.version
	} else {
		text += ", and reports no version of vLLM: basegate check says what another server lacks"
	}
	if len(others) > 0 {
		text += "; also " + strings.Join(others, ", ") + ", which --model chooses"
	}
	return text + "."
}

var notOfIDs = regexp.MustCompile(`[^a-z0-9._-]+`)

// modelID derives an id for clients from a checkpoint's name: llama-3.1-8b from meta-llama/Llama-3.1-8B.
func modelID(checkpoint string) string {
	id := notOfIDs.ReplaceAllString(strings.ToLower(path.Base(checkpoint)), "-")
	return id[:min(len(id), 64)]
}

// packagedConfig is the file that the deb and the rpm install for the service.
const packagedConfig = "/etc/basegate/config.yaml"

// defaultConfig returns the file that commands read without --config: the first of those in the working directory and of
// the packaged one that is there. One that cannot be accessed is there too, so that the error is about that one.
func defaultConfig(packaged string) string {
	const usual = "config.yaml"
	for _, file := range []string{smallConfig, usual, packaged} {
		if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
			return file
		}
	}
	return usual
}

// adviseInit says how to make a configuration, if the error is that there is none and none was named.
func adviseInit(cmd *cobra.Command, err error) error {
	if errors.Is(err, fs.ErrNotExist) && !cmd.Flag("config").Changed && os.Getenv(configVariable) == "" {
		return fmt.Errorf("%w; basegate init writes %s, and --config names another file", err, smallConfig)
	}
	return err
}
