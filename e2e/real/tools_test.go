//go:build real

package real_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// tool returns a command of the venv with lm-eval and guidellm, which may not use the network.
func tool(t *testing.T, key, name string, args ...string) *exec.Cmd {
	t.Helper()
	if tools == "" {
		t.Skip("BASEGATE_REAL_TOOLS is not set")
	}
	return offline(t, key, filepath.Join(tools, "bin", name), args...)
}

func offline(t *testing.T, key, program string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "HF_HOME="+t.TempDir(), "HF_HUB_OFFLINE=1", "HF_DATASETS_OFFLINE=1", "TRANSFORMERS_OFFLINE=1",
		"VLLM_NO_USAGE_STATS=1", "OPENAI_API_KEY="+key)
	return cmd
}

func runTool(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	output, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", filepath.Base(cmd.Path), err, output[max(0, len(output)-6000):])
	}
	return string(output)
}

// TestLMEval runs a task of log-likelihoods and one of generation directly and through the gateway: the responses that
// lm-eval logs, and its results, must be equal.
func TestLMEval(t *testing.T) {
	server := backends(t)[0]
	g := startGateway(t, "", server)
	direct := evaluate(t, server.url, checkpoint, "none")
	through := evaluate(t, g.url, modelID, g.secret)
	if diff := cmp.Diff(direct, through); diff != "" {
		t.Errorf("lm-eval (-directly +through the gateway):\n%s", diff)
	}
	if len(direct) != 12 {
		t.Errorf("lm-eval logged %d samples, want 12", len(direct))
	}
}

// evaluate runs lm-eval's tasks against a server and returns what it logged for each sample.
func evaluate(t *testing.T, url, name, key string) (samples []string) {
	t.Helper()
	questions, err := filepath.Abs("lmeval/questions.jsonl")
	must(t, err)
	tasks, out := t.TempDir(), t.TempDir()
	for _, task := range []string{"choices.yaml", "texts.yaml"} {
		text, err := os.ReadFile(filepath.Join("lmeval", task))
		must(t, err)
		must(t, os.WriteFile(filepath.Join(tasks, task), []byte(strings.ReplaceAll(string(text), "QUESTIONS", questions)), 0o600))
	}
	runTool(t, tool(t, key, "lm_eval", "run", "--model", "local-completions",
		"--model_args", fmt.Sprintf("model=%s,base_url=%s/v1/completions,tokenizer=%s,tokenizer_backend=huggingface,num_concurrent=1,max_retries=1", name, url, model),
		"--tasks", "parity_choices,parity_texts", "--include_path", tasks, "--log_samples", "--output_path", out, "--batch_size", "1"))
	must(t, filepath.WalkDir(out, func(path string, _ os.DirEntry, err error) error {
		if err != nil || !strings.HasPrefix(filepath.Base(path), "samples_") {
			return err
		}
		text, err := os.ReadFile(path)
		must(t, err)
		for line := range strings.Lines(string(text)) {
			var sample struct {
				Document   int    `json:"doc_id"`
				Hash       string `json:"doc_hash"`
				Responses  any    `json:"resps"`
				Filtered   any    `json:"filtered_resps"`
				Acc        any    `json:"acc"`
				ExactMatch any    `json:"exact_match"`
			}
			must(t, json.Unmarshal([]byte(line), &sample))
			samples = append(samples, fmt.Sprintf("%+v", sample))
		}
		return nil
	}))
	return samples
}

// benchRequests is the number of requests of vLLM's load generators.
const benchRequests = 16

// TestVLLMBenchServe runs vLLM's own load generator with a dataset of our own, and with its random one, for which it sends
// ignore_eos.
func TestVLLMBenchServe(t *testing.T) {
	if testing.Short() {
		t.Skip("starts vLLM's program twice")
	}
	g := startGateway(t, "", backends(t)...)
	prompts := filepath.Join(t.TempDir(), "prompts.jsonl")
	must(t, os.WriteFile(prompts, []byte(strings.Repeat(`{"prompt": "Once upon a time"}`+"\n", benchRequests)), 0o600))
	program := filepath.Join(venv, "bin", "vllm")
	t.Run("custom", func(t *testing.T) {
		g.bench(t, program, "/v1/completions", "--backend", "openai", "--dataset-name", "custom", "--dataset-path", prompts, "--custom-output-len", "16", "--skip-chat-template")
	})
	t.Run("random", func(t *testing.T) {
		g.bench(t, program, "/v1/completions", "--backend", "openai", "--dataset-name", "random", "--random-input-len", "32", "--random-output-len", "16")
	})
}

// TestVLLMRustBenchServe runs the load generator of vLLM's Rust program with texts, token ids and messages.
func TestVLLMRustBenchServe(t *testing.T) {
	program := rustProgram(t)
	g, _ := startChatGateway(t)
	for name, args := range map[string][]string{
		"texts":     {"/v1/completions", "--backend", "openai", "--logprobs", "1", "--ignore-eos"},
		"token ids": {"/v1/completions", "--backend", "vllm", "--prompt-token-ids"},
		"messages":  {chatPath, "--backend", "openai-chat"},
	} {
		t.Run(name, func(t *testing.T) {
			g.bench(t, program, append(args, "--random-input-len", "32", "--random-output-len", "16")...)
		})
	}
}

// rustProgram returns vLLM's Rust program, which releases before 0.33 do not have.
func rustProgram(t *testing.T) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(venv, "lib", "python*", "site-packages", "vllm", "vllm-rs"))
	must(t, err)
	if len(found) == 0 {
		t.Skipf("vLLM %s has no vllm-rs", installedVersion(t))
	}
	return found[0]
}

// bench runs a load generator with the path of the endpoint and further arguments.
func (g *gateway) bench(t *testing.T, program string, args ...string) {
	t.Helper()
	output := runTool(t, offline(t, g.secret, program, append([]string{
		"bench", "serve", "--base-url", g.url, "--model", modelID, "--tokenizer", model,
		"--num-prompts", strconv.Itoa(benchRequests), "--max-concurrency", "4", "--endpoint",
	}, args...)...))
	if n := fieldsOf(output, "Successful requests:"); n != strconv.Itoa(benchRequests) {
		t.Errorf("%s successful requests, want %d:\n%s", n, benchRequests, output)
	}
}

// fieldsOf returns what follows a label in a tool's output.
func fieldsOf(output, label string) string {
	_, rest, _ := strings.Cut(output, label)
	line, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(line)
}

// TestGuideLLM runs guidellm, which sends ignore_eos and continuous_usage_stats.
func TestGuideLLM(t *testing.T) {
	if testing.Short() {
		t.Skip("imports for a minute")
	}
	g := startGateway(t, "", backends(t)...)
	before := len(g.ledger())
	output := runTool(t, tool(t, g.secret, "guidellm", "run", "--disable-console-interactive",
		"--backend", fmt.Sprintf("kind=openai_http,target=%s,model=%s,request_format=/v1/completions,api_key=%s", g.url, modelID, g.secret),
		"--profile", "kind=concurrent,streams=4", "--constraint", "kind=max_requests,count=16",
		"--tokenizer", "kind=huggingface_auto,model="+model, "--data", "kind=synthetic_text,prompt_tokens=32,output_tokens=16",
		"--output", "kind=json,path="+filepath.Join(t.TempDir(), "out.json")))
	if n := len(g.ledger()) - before; n < 16 {
		t.Errorf("%d requests on the ledger, want 16:\n%s", n, output)
	}
}
