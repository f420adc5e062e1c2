package config_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"basegate/config"
)

// example is the file that lists every key with its default.
const example = "../config.yaml"

func TestExampleIsTheDefaults(t *testing.T) {
	text, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	got, err := config.Parse("config.yaml", text, noVariables)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range got.Warnings {
		if !strings.Contains(w.Text, "VLLM_API_KEY") {
			t.Errorf("it warns: %v", w)
		}
	}
	want := config.Default()
	want.Server.TrustedProxies = got.Server.TrustedProxies // empty, but written
	want.Models, want.Warnings = got.Models, got.Warnings
	if diff := cmp.Diff(want, got, cmp.Comparer(sameLocation)); diff != "" {
		t.Errorf("what is written is not the default (-default +written):\n%s", diff)
	}
}

func TestExamplesFirstModelHasTheDefaults(t *testing.T) {
	written, err := config.Load(example)
	if err != nil {
		t.Fatal(err)
	}
	bare, err := config.Parse("config.yaml", []byte(`
models:
  - id: llama-8b
    checkpoint: meta-llama/Llama-3.1-8B
    precision: bf16
    backends:
      - name: gpu1
        url: http://127.0.0.1:8001
        gpu: H100-80GB
        launch:
          start: [docker, compose, -f, vllm-compose.yml, up, -d, llama-8b]
          stop: [docker, compose, -f, vllm-compose.yml, stop, llama-8b]
        sleep: {}
    warm_windows:
      - {days: mon-fri, from: "09:00", to: "18:00", timezone: Europe/Prague}
`), noVariables)
	if err != nil {
		t.Fatal(err)
	}
	written.Models[0].Backends[0].APIKey = config.Secret{} // the environment's, whatever that is
	if diff := cmp.Diff(bare.Models[0], written.Models[0], cmp.Comparer(sameLocation)); diff != "" {
		t.Errorf("what is written is not the default (-default +written):\n%s", diff)
	}
}

// Every key that the code knows stands in the example; an example that leaves one out would pass the other tests.
func TestExampleHasEveryKey(t *testing.T) {
	code, err := os.ReadFile("sections.go")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`(?:key|required)\("([a-z_]+)"`).FindAllStringSubmatch(string(code), -1)
	if len(names) < 40 {
		t.Fatalf("found %d keys in the code", len(names))
	}
	for _, name := range names {
		if !regexp.MustCompile(`(?m)^[ -]*` + name[1] + `:`).Match(text) {
			t.Errorf("%s is missing", name[1])
		}
	}
}
