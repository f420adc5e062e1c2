package mockvllm

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"
)

// Options configure a Server. The zero value is the newest vLLM with one model, "mock-model".
type Options struct {
	Models      []string      // served names; responses carry the first as "model"
	MaxModelLen int           // context length in tokens; 0 means 8192
	MaxLogprobs int           // 0 means 20, -1 the whole vocabulary
	TokenDelay  time.Duration // between two tokens of an output
	FirstDelay  time.Duration // before the first token
	APIKey      string        // required on the paths under /v1, as in vLLM; empty means none
	// ChatTemplate is one of TemplateChatML and TemplateLlama; TemplateNone means that the models do not chat.
	ChatTemplate string
	Reasoning    bool   // chat completions begin with reasoning, unless enable_thinking is false
	Version      string // the vLLM version to imitate; empty means the newest known
	RustFrontend bool   // the version's Rust frontend: one prompt and one output per request
	// EnableLoRA serves the endpoints that load and unload adapters, as vLLM does with --enable-lora and
	// VLLM_ALLOW_RUNTIME_LORA_UPDATING=1. An adapter prefers one token, which depends on its weights.
	EnableLoRA bool
	Instant    bool // constant responses without the model, to measure proxies; completions are not recorded

	TokenizerInfo   bool // serves /tokenizer_info, as --enable-tokenizer-info-endpoint does
	SoundLogprobIDs bool // logprob_token_ids does not spoil the log-probabilities of other requests, as it does in vLLM so far

	MaxNumSeqs        int           // sequences that run at once, others wait; 0 means any number
	SchedulingPolicy  string        // PolicyFCFS or PolicyPriority; empty means PolicyFCFS
	PrefixCacheBlocks int           // blocks of 16 tokens in the prefix cache; 0 means no cache
	PrefillDelay      time.Duration // before the first token, for each prompt token that is not in the prefix cache

	PromptTokensDetails bool // responses report cached tokens, as with --enable-prompt-tokens-details
	PerRequestMetrics   bool // responses of one output report the engine's times, as with --enable-per-request-metrics since 0.25
}

// Values of Options.SchedulingPolicy.
const (
	PolicyFCFS     = "fcfs"     // first come, first served
	PolicyPriority = "priority" // by the field priority, lower first, then first come, first served
)

// versionPattern matches a version as vLLM names them, such as 0.6.6.post1.
var versionPattern = regexp.MustCompile(`^v?\d+\.\d+(\.\d+)?(\.?(post|rc|dev)\d+)?$`)

// Validate returns an error that names the invalid option, if any.
func (o Options) Validate() error {
	seen := make(map[string]bool)
	for _, name := range o.Models {
		if name == "" {
			return errors.New("a model name must not be empty")
		}
		if seen[name] {
			return fmt.Errorf("the model name %q is given twice", name)
		}
		seen[name] = true
	}
	version := cmp.Or(o.Version, newestVersion)
	newest, r := parseRelease(newestVersion), parseRelease(version)
	switch {
	case !versionPattern.MatchString(version) || r.before(versions().Forms[0].Since) || slices.Compare(r[:2], newest[:2]) > 0:
		return fmt.Errorf("unknown vLLM version %q: known are 0.6.0 to %s", version, newestVersion) // patch releases are like the newest
	case o.RustFrontend && r.before(release{0, 33, 0}):
		return fmt.Errorf("the Rust frontend is imitated for 0.33.0 only, got version %q", version)
	case o.ChatTemplate != TemplateNone && templates.Lookup(o.ChatTemplate+".tmpl") == nil:
		return fmt.Errorf("the chat template must be chatml or llama, got %q", o.ChatTemplate)
	case o.MaxModelLen < 0:
		return fmt.Errorf("the context length must be at least 1, got %d", o.MaxModelLen)
	case !slices.Contains([]string{"", PolicyFCFS, PolicyPriority}, o.SchedulingPolicy):
		return fmt.Errorf("the scheduling policy must be %s or %s, got %q", PolicyFCFS, PolicyPriority, o.SchedulingPolicy)
	}
	for _, number := range []struct {
		name     string
		negative bool
		value    any
	}{
		{"delay between tokens", o.TokenDelay < 0, o.TokenDelay},
		{"delay of the first token", o.FirstDelay < 0, o.FirstDelay},
		{"delay of a prompt token", o.PrefillDelay < 0, o.PrefillDelay},
		{"number of sequences", o.MaxNumSeqs < 0, o.MaxNumSeqs},
		{"number of cached blocks", o.PrefixCacheBlocks < 0, o.PrefixCacheBlocks},
	} {
		if number.negative {
			return fmt.Errorf("the %s must not be negative, got %v", number.name, number.value)
		}
	}
	return nil
}
