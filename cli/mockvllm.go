package cli

import (
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"

	"basegate/mockvllm"
)

// defaultMockModel is the checkpoint that config.yaml expects at the mock's default address.
const defaultMockModel = "meta-llama/Llama-3.1-8B"

func newMock() *cobra.Command {
	var o mockvllm.Options
	var listen string
	cmd := newCommand("mockvllm", "Run a mock of vLLM with a tiny language model", "", func(cmd *cobra.Command, _ []string) error {
		ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		process, err := mockvllm.Start(ctx, listen, o)
		if err != nil {
			return fmt.Errorf("start mock: %w", err)
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "mock vLLM on %s\n", process.URL())
		<-ctx.Done()
		if err := process.Close(); err != nil {
			return fmt.Errorf("stop mock: %w", err)
		}
		return nil
	})
	maxModelLen := &parsedFlag[int64]{8192, "TOKENS", parseTokens, func(n int64) string { return strconv.FormatInt(n, 10) }}
	cmd.PreRunE = func(*cobra.Command, []string) error { // an error here is one of the arguments
		if len(o.Models) == 0 {
			o.Models = []string{defaultMockModel}
		}
		if o.MaxModelLen = int(maxModelLen.value); o.MaxModelLen < 1 {
			return fmt.Errorf("--max-model-len: want at least 1, got %d", o.MaxModelLen)
		}
		if err := checkListen(listen); err != nil {
			return err
		}
		return o.Validate()
	}
	f := cmd.Flags()
	f.StringVar(&listen, "listen", "127.0.0.1:8001", "host:port to listen on")
	f.StringArrayVar(&o.Models, "model", nil,
		"a model name to serve; may be repeated; responses carry the first (default "+defaultMockModel+")")
	f.Var(maxModelLen, "max-model-len", "the context in tokens")
	f.DurationVar(&o.TokenDelay, "token-delay", 0, "time between two tokens")
	f.DurationVar(&o.FirstDelay, "first-delay", 0, "time before the first token")
	f.StringVar(&o.APIKey, "api-key", "", "the bearer token that /v1 requires; empty: none")
	f.StringVar(&o.Version, "vllm-version", "", "the vLLM version to behave like (0.6.0 to the newest)")
	f.BoolVar(&o.RustFrontend, "rust-frontend", false, "behave like the Rust frontend of vLLM 0.33")
	f.StringVar(&o.ChatTemplate, "chat-template", "", "the template of chat completions: chatml or llama; empty: the models do not chat")
	f.BoolVar(&o.Reasoning, "reasoning", false, "chat completions begin with reasoning")
	f.BoolVar(&o.TokenizerInfo, "tokenizer-info", false, "serve /tokenizer_info, as vLLM does with --enable-tokenizer-info-endpoint")
	f.BoolVar(&o.SoundLogprobIDs, "sound-logprob-token-ids", false,
		"logprob_token_ids does not spoil the log-probabilities of other requests, as it does in vLLM")
	f.BoolVar(&o.EnableLoRA, "enable-lora", false, "load LoRA adapters at run time; each prefers one token, by its weights")
	f.BoolVar(&o.Instant, "instant", false, "constant responses as fast as possible, to measure proxies")
	f.IntVar(&o.MaxNumSeqs, "max-num-seqs", 0, "sequences that run at once, while others wait; 0: any number")
	f.StringVar(&o.SchedulingPolicy, "scheduling-policy", mockvllm.PolicyFCFS,
		"the order in which requests leave the queue: fcfs, or priority by the field of that name")
	f.IntVar(&o.PrefixCacheBlocks, "prefix-cache-blocks", 0, "blocks of 16 tokens in the prefix cache; 0: no cache")
	f.DurationVar(&o.PrefillDelay, "prefill-delay", 0, "time before the first token for each prompt token that is not cached")
	f.BoolVar(&o.PromptTokensDetails, "enable-prompt-tokens-details", false, "report the cached tokens of prompts, as vLLM's flag does")
	f.BoolVar(&o.PerRequestMetrics, "enable-per-request-metrics", false, "report the engine's times, as vLLM's flag does since 0.25")
	return cmd
}
