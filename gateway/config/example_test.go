package config_test

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"basegate/gateway/config"
)

// example returns config.yaml, which lists every key with its default, as git has it: README tells users to edit the file.
func example(tb testing.TB) []byte {
	tb.Helper()
	text, err := os.ReadFile("../../config.yaml")
	if err != nil {
		tb.Fatal(err)
	}
	if staged, err := exec.CommandContext(tb.Context(), "git", "show", ":config.yaml").Output(); err == nil {
		return staged
	}
	return text
}

var commentedOut = regexp.MustCompile(`(?m)^( +)# ( *(?:- )?[a-z_]+:)`)

// wholeExample returns the example with the sections that are commented out.
func wholeExample(tb testing.TB) []byte {
	tb.Helper()
	return commentedOut.ReplaceAll(example(tb), []byte("$1$2"))
}

// README tells users to put the addresses of their own servers into the example.
func TestExampleLeavesServersAlone(t *testing.T) {
	for name, text := range map[string][]byte{"as it is": example(t), "whole": wholeExample(t)} {
		got, err := config.Parse("config.yaml", text, noVariables)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for i := range got.Models {
			if m := &got.Models[i]; m.Managed() != (name == "whole") {
				t.Errorf("%s: the gateway starts or stops %s: got %t", name, m.ID, m.Managed())
			}
			if len(got.Models[i].WarmWindows) > 0 && name != "whole" {
				t.Errorf("%s: %s has warm windows", name, got.Models[i].ID)
			}
		}
	}
}

func TestExampleHasTheDefaultValues(t *testing.T) {
	got, err := config.Parse("config.yaml", example(t), noVariables)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range got.Warnings {
		if !strings.Contains(w.Text, "VLLM_API_KEY") {
			t.Errorf("unexpected warning: %v", w)
		}
	}
	want := config.Default()
	want.Models, want.Warnings = got.Models, got.Warnings
	if diff := cmp.Diff(want, got, cmp.Comparer(sameLocation)); diff != "" {
		t.Errorf("the file differs from the defaults (-default +file):\n%s", diff)
	}
	var ids []string
	for i := range got.Models {
		ids = append(ids, got.Models[i].ID)
	}
	if diff := cmp.Diff([]string{"llama-8b", "llama-405b", "trinity-base"}, ids); diff != "" {
		t.Errorf("the models (-want +got):\n%s", diff)
	}
}

func TestExampleModelHasTheDefaultValues(t *testing.T) {
	written, err := config.Parse("config.yaml", wholeExample(t), noVariables)
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
          start: [docker, compose, up, -d, llama-8b]
          stop: [docker, compose, stop, llama-8b]
        replicas: {max: 1}
        sleep: {}
    warm_windows:
      - {days: mon-fri, from: "09:00", to: "18:00", timezone: Europe/Prague}
`), noVariables)
	if err != nil {
		t.Fatal(err)
	}
	written.Models[0].Backends[0].APIKey = config.Secret{} // from the environment
	if diff := cmp.Diff(bare.Models[0], written.Models[0], cmp.Comparer(sameLocation)); diff != "" {
		t.Errorf("the file differs from the defaults (-default +file):\n%s", diff)
	}
}

// The other tests would pass with an example, or with a file of theirs, that lacks a key.
func TestExampleHasEveryKey(t *testing.T) {
	everything, err := os.ReadFile("testdata/good/everything.yaml")
	if err != nil {
		t.Fatal(err)
	}
	names := config.Keys()
	if len(names) < 40 {
		t.Fatalf("found %d keys in the code, want at least 40", len(names))
	}
	example := wholeExample(t)
	for _, name := range names {
		if !regexp.MustCompile(`(?m)^[ -]*` + name + `:`).Match(example) {
			t.Errorf("the example lacks the key %s", name)
		}
		if !regexp.MustCompile(`(?m)(^[ -]*|[{ ])"?` + name + `"?:`).Match(everything) {
			t.Errorf("everything.yaml lacks the key %s", name)
		}
	}
}
