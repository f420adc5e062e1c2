//go:build real

package real_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/tidwall/gjson"
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

// TestLMEval runs a task of log-likelihoods and one of generation directly, through the gateway, and with the tokenizer of the
// gateway too: the responses that lm-eval logs, and its results, must be equal. The figures of the first task are those of
// POST /v1/loglikelihood.
func TestLMEval(t *testing.T) {
	server := backends(t)[0]
	g := startGateway(t, "", server)
	ofModel := ",tokenizer=" + model + ",tokenizer_backend=huggingface"
	direct := evaluate(t, server.url, checkpoint, "none", ofModel)
	for through, tokenizer := range map[string]string{"the gateway": ofModel, "the gateway and its tokenizer": ",tokenizer_backend=remote,auth_token=" + g.secret} {
		if diff := cmp.Diff(direct, evaluate(t, g.url, modelID, g.secret, tokenizer)); diff != "" {
			t.Errorf("lm-eval (-directly +through %s):\n%s", through, diff)
		}
	}
	if len(direct) != 12 {
		t.Errorf("lm-eval logged %d samples, want 12", len(direct))
	}
	var theirs, ours [2]float64 // acc and acc_norm
	text, err := os.ReadFile("lmeval/questions.jsonl")
	must(t, err)
	questions := 0
	for line := range strings.Lines(string(text)) {
		var q struct {
			Question string
			Choices  []string
			Answer   int
		}
		must(t, json.Unmarshal([]byte(line), &q))
		var continuations []string
		for _, c := range q.Choices {
			continuations = append(continuations, " "+c)
		}
		best, bestNorm := 0, 0
		answer := g.score(map[string]any{"context": q.Question, "continuations": continuations, "add_special_tokens": false})
		norm := func(i int) float64 { return answer.Data[i].Logprob / float64(utf8.RuneCountInString(q.Choices[i])) }
		for i := range q.Choices {
			if answer.Data[i].Logprob > answer.Data[best].Logprob {
				best = i
			}
			if norm(i) > norm(bestNorm) {
				bestNorm = i
			}
		}
		for i, choice := range []int{best, bestNorm} {
			if choice == q.Answer {
				ours[i]++
			}
		}
		questions++
	}
	for _, sample := range direct {
		theirs[0] += sample.Acc
		theirs[1] += sample.AccNorm
	}
	t.Logf("of %d questions, acc is %v by lm-eval and %v by /v1/loglikelihood, acc_norm %v and %v", questions, theirs[0], ours[0], theirs[1], ours[1])
	if theirs != ours {
		t.Errorf("acc and acc_norm are %v by lm-eval, and %v by /v1/loglikelihood", theirs, ours)
	}
}

// sample is what lm-eval logs of one.
type sample struct {
	Document   int     `json:"doc_id"`
	Hash       string  `json:"doc_hash"`
	Responses  any     `json:"resps"`
	Filtered   any     `json:"filtered_resps"`
	Acc        float64 `json:"acc"`
	AccNorm    float64 `json:"acc_norm"`
	ExactMatch any     `json:"exact_match"`
}

// evaluate runs lm-eval's tasks against a server and returns what it logged for each sample. tokenizer are arguments of its model.
func evaluate(t *testing.T, url, name, key, tokenizer string) (samples []sample) {
	t.Helper()
	out := t.TempDir()
	runTool(t, lmEval(t, url, name, key, tokenizer, "--log_samples", "--output_path", out))
	must(t, filepath.WalkDir(out, func(path string, _ os.DirEntry, err error) error {
		if err != nil || !strings.HasPrefix(filepath.Base(path), "samples_") {
			return err
		}
		text, err := os.ReadFile(path)
		must(t, err)
		for line := range strings.Lines(string(text)) {
			var s sample
			must(t, json.Unmarshal([]byte(line), &s))
			samples = append(samples, s)
		}
		return nil
	}))
	return samples
}

// lmEval returns the command that runs lm-eval's tasks.
func lmEval(t *testing.T, url, name, key, tokenizer string, options ...string) *exec.Cmd {
	t.Helper()
	questions, err := filepath.Abs("lmeval/questions.jsonl")
	must(t, err)
	tasks := t.TempDir()
	for _, task := range []string{"choices.yaml", "texts.yaml"} {
		text, err := os.ReadFile(filepath.Join("lmeval", task))
		must(t, err)
		must(t, os.WriteFile(filepath.Join(tasks, task), []byte(strings.ReplaceAll(string(text), "QUESTIONS", questions)), 0o600))
	}
	return tool(t, key, "lm_eval", append([]string{
		"run", "--model", "local-completions",
		"--model_args", fmt.Sprintf("model=%s,base_url=%s/v1/completions,num_concurrent=1,max_retries=1%s", name, url, tokenizer),
		"--tasks", "parity_choices,parity_texts", "--include_path", tasks, "--batch_size", "1",
	}, options...)...)
}

// TestLMEvalInAChildKeyRunsOutAndGoesOn gives lm-eval a key that runs out in the middle. When its budget is raised, lm-eval goes on:
// no request is sent again that has a response.
func TestLMEvalInAChildKeyRunsOutAndGoesOn(t *testing.T) {
	g := startGateway(t, "limits: {children: true}", backends(t)[0])
	made := gjson.Parse(g.post("/v1/keys", `{"name": "lm-eval", "run": "parity", "budget": {"total": 200}}`).body)
	id, secret := made.Get("id").Str, made.Get("secret").Str
	run := func() (output []byte, err error) {
		return lmEval(t, g.url, modelID, secret, ",tokenizer="+model+",tokenizer_backend=huggingface", "--use_cache", filepath.Join(filepath.Dir(g.config), "cache")).CombinedOutput()
	}
	succeeded := func() (requests int) {
		for _, row := range g.ledger() {
			if row.Status == http.StatusOK {
				requests++
			}
		}
		return requests
	}
	output, err := run()
	first := succeeded()
	if err == nil || !strings.Contains(string(output), "budget_exceeded") || first == 0 {
		t.Fatalf("%v after %d requests, want the end of the budget:\n%s", err, first, output[max(0, len(output)-3000):])
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPatch, g.url+"/v1/keys/"+id, strings.NewReader(`{"budget": {"total": 1000000}}`))
	must(t, err)
	request.Header.Set("Authorization", "Bearer "+g.secret)
	r, err := httpClient.Do(request)
	must(t, err)
	if raised := readAll(t, r); raised.status != http.StatusOK {
		t.Fatalf("raise: %d %s", raised.status, raised.body)
	}
	if output, err := run(); err != nil {
		t.Fatalf("after the budget was raised: %v\n%s", err, output[max(0, len(output)-3000):])
	}
	both := succeeded()
	g.evaluateAgain(t)
	if all := succeeded() - both; both != all || first >= all {
		t.Errorf("%d requests succeeded before the end of the budget and %d in both runs, want %d as in one run", first, both, all)
	}
	if spent := gjson.Get(g.run("run", "show", "parity", "--json"), "requests").Int(); spent < int64(both) {
		t.Errorf("the run has %d requests, want at least %d", spent, both)
	}
}

// evaluateAgain runs lm-eval's tasks with the account's own key and without a cache.
func (g *gateway) evaluateAgain(t *testing.T) {
	t.Helper()
	runTool(t, lmEval(t, g.url, modelID, g.secret, ",tokenizer="+model+",tokenizer_backend=huggingface"))
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
