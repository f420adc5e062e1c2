package mockvllm

import (
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/goccy/go-yaml"
)

// newestVersion is the version imitated by default.
const newestVersion = "0.33.0"

// release is a vLLM version number in comparable form: 0.10.1 is {0, 10, 1}.
type release [3]int

// rustFrontend stands for the newest version's Rust frontend: it is newer than any version.
var rustFrontend = release{1}

// parseRelease parses as much of a version as it can: "0.6.6.post1" is 0.6.6, and text without a number is the newest.
func parseRelease(version string) release {
	var r release
	for i, part := range strings.SplitN(strings.TrimPrefix(version, "v"), ".", 4) {
		number, err := strconv.Atoi(part)
		if err != nil && i == 0 {
			return parseRelease(newestVersion)
		}
		if err != nil || i == len(r) {
			break
		}
		r[i] = number
	}
	return r
}

func (r release) before(other release) bool { return slices.Compare(r[:], other[:]) < 0 }

// versionSpec describes how the servers of a version differ from those of others. versions.yaml explains its fields.
type versionSpec struct {
	Since release `yaml:"since"`

	Rust           bool   `yaml:"rust"`
	V0             bool   `yaml:"v0"`
	Nested         bool   `yaml:"nested"`
	NamesParams    bool   `yaml:"names_params"`
	Clamps         bool   `yaml:"clamps"`
	PromptRequired bool   `yaml:"prompt_required"`
	TokenizesTools bool   `yaml:"tokenizes_tools"`
	TokenStrings   bool   `yaml:"token_strings"`
	Fingerprint    bool   `yaml:"fingerprint"`
	VaryOrigin     bool   `yaml:"vary_origin"`
	ValidationType string `yaml:"validation_type"`
	NoPrompt       string `yaml:"no_prompt"`
	NoPromptParam  string `yaml:"no_prompt_param"`
	WrongPrompt    string `yaml:"wrong_prompt"`
	Suffix         string `yaml:"suffix"`
	Aliases        string `yaml:"aliases"`
	Dead           string `yaml:"dead"`
	DeadInStream   string `yaml:"dead_in_stream"`
	StreamStatus   int    `yaml:"stream_status"`
	DeadHealth     int    `yaml:"dead_health"`
	BusyType       string `yaml:"busy_type"`
	RandomBytes    int    `yaml:"random_bytes"`
	TokenLatency   string `yaml:"token_latency"`
	CacheGauge     string `yaml:"cache_gauge"`

	Completion      form `yaml:"completion"`
	Choice          form `yaml:"choice"`
	Event           form `yaml:"event"`
	EventChoice     form `yaml:"event_choice"`
	LastEvent       form `yaml:"last_event"`
	Chat            form `yaml:"chat"`
	ChatChoice      form `yaml:"chat_choice"`
	Message         form `yaml:"message"`
	RoleEvent       form `yaml:"role_event"`
	ChatEvent       form `yaml:"chat_event"`
	ChatEventChoice form `yaml:"chat_event_choice"`
	Delta           form `yaml:"delta"`
	Logprobs        form `yaml:"logprobs"`
	Usage           form `yaml:"usage"`
	RunningUsage    form `yaml:"running_usage"`
	ChatRunning     form `yaml:"chat_running"`
	LastUsage       form `yaml:"last_usage"`
	PromptDetails   form `yaml:"prompt_details"`

	completionFields, chatFields []string // names of the fields of requests; others are ignored
}

// versionTable is versions.yaml.
type versionTable struct {
	Forms  []versionSpec `yaml:"forms"`
	Fields []struct {
		Since      release `yaml:"since"`
		Both       string  `yaml:"both"`
		Completion string  `yaml:"completion"`
		Chat       string  `yaml:"chat"`
		Gone       string  `yaml:"gone"`
	} `yaml:"fields"`
	ContextMessages []string `yaml:"context_messages"`
}

//go:embed versions.yaml
var versionsYAML []byte

var versions = sync.OnceValue(func() *versionTable {
	table := new(versionTable)
	if err := yaml.UnmarshalWithOptions(versionsYAML, table, yaml.DisallowUnknownField(), yaml.AllowDuplicateMapKey()); err != nil {
		panic(err) // cannot fail: the file is embedded
	}
	return table
})

// specOf returns what a version, or the Rust frontend of the newest one, is like.
func specOf(version release, rust bool) *versionSpec {
	row := version
	if rust {
		row = rustFrontend
	}
	found := versions().Forms[0]
	for _, spec := range versions().Forms {
		if !row.before(spec.Since) {
			found = spec
		}
	}
	for _, change := range versions().Fields {
		if version.before(change.Since) {
			break
		}
		gone := strings.Fields(change.Gone)
		isGone := func(name string) bool { return slices.Contains(gone, name) }
		found.completionFields = append(slices.DeleteFunc(found.completionFields, isGone), strings.Fields(change.Both+" "+change.Completion)...)
		found.chatFields = append(slices.DeleteFunc(found.chatFields, isGone), strings.Fields(change.Both+" "+change.Chat)...)
	}
	return &found
}

// serveOpenAPI handles GET /openapi.json: the names of the fields, without their types and the other paths.
func (s *Server) serveOpenAPI(x *exchange) {
	schema := func(title string, fields []string) string {
		return fmt.Sprintf(`"%s":{"properties":{"%s":{}},"additionalProperties":true,"type":"object","title":"%[1]s"}`,
			title, strings.Join(fields, `":{},"`))
	}
	x.writeJSON(fmt.Appendf(nil, `{"openapi":"3.1.0","info":{"title":"FastAPI","version":"0.1.0"},"paths":{},"components":{"schemas":{%s,%s}}}`,
		schema("CompletionRequest", s.spec.completionFields), schema("ChatCompletionRequest", s.spec.chatFields)))
}
