// Package config parses and validates config.yaml, and reports every error with its line.
//
// A Config returned by Load or Parse needs no further validation: defaults are filled in, durations, sizes, addresses
// and time zones are parsed, and contradictory values are rejected. The packages that receive the values decide what they
// do; config does not check whether a backend responds at its address.
//
// The types of config.go are the schema of the file. A field is a key: its name in snake case, or the tag key. Further
// tags are:
//
//	as        the kind of the values, in kinds.go; if absent, the type of the field decides
//	of        the texts that are allowed
//	min, max  the bounds of a number
//	default   the value of a key that is absent, as it would stand in the file
//	required  the key cannot be absent; a list has at least one item
//	restart   a reload does not apply the key, or those below it
//
// What no single value shows is in check.go.
package config

import (
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"os"
	"reflect"
	"time"
)

// Config is a whole configuration.
type Config struct {
	Server        Server
	Gateway       Gateway
	Database      Database
	Limits        Limits
	Files         Files
	Batches       Batches
	Receipts      Receipts `restart:"true"`
	Replay        Replay
	Telemetry     Telemetry `restart:"true"`
	Upstream      Upstream
	Breaker       Breaker
	Probe         Probe
	Log           Log `restart:"true"`
	Console       Console
	Dialects      Dialects
	Notifications Notifications
	Mail          Mail
	Models        []Model `required:"true"` // in the order of the file

	// HoldsSecrets says that a secret is written in the file itself and does not come from a variable.
	HoldsSecrets bool `key:"-"`

	// Warnings lists what is valid but probably unintended, such as a variable that is not set.
	Warnings []Diagnostic `key:"-"`
}

// Server holds the listen addresses and the limits on requests. Sizes are in bytes.
type Server struct {
	Listen            string   `as:"address" default:"127.0.0.1:8080" restart:"true"` // host:port of the API and the console
	AdminListen       string   `as:"address" default:"127.0.0.1:9090" restart:"true"` // host:port of health, metrics and profiles
	AdminHosts        []string `as:"host" restart:"true"`                             // names by which clients address AdminListen, besides those that need no listing
	PublicURL         *url.URL `as:"public_url" default:"http://127.0.0.1:8080"`      // the gateway's address for clients and browsers, without a trailing slash
	TLS               TLS
	MaxBodyBytes      int64          `as:"size" default:"16MiB"` // limit on one request body
	MaxBufferedBytes  int64          `as:"size" default:"1GiB"`  // limit on the memory of all requests together
	ReadHeaderTimeout time.Duration  `as:"positive" default:"10s" restart:"true"`
	IdleTimeout       time.Duration  `as:"positive" default:"620s" restart:"true"` // between two requests of a connection
	DrainTimeout      time.Duration  `default:"10m"`                               // 0: shutdown does not wait for running requests
	TrustedProxies    []netip.Prefix `as:"network"`                                // networks whose X-Forwarded-For is trusted
	CORSOrigins       []string       `as:"origin"`                                 // origins whose scripts browsers may let call the API
	FastPath          bool           `default:"true" restart:"true"`               // false: net/http serves every request
}

// TLS holds the paths of a PEM certificate and its key; both are empty if the API is served without TLS.
type TLS struct {
	Cert string `as:"optional_path"`
	Key  string `as:"optional_path"`
}

// Gateway holds what distinguishes the gateways on one PostgreSQL database.
type Gateway struct {
	Name string `as:"gateway" restart:"true"` // unique among those that run, and the same after a restart; empty: of the host and the listen address
}

// Database holds where accounts, keys and usage are: in a SQLite file, or in a PostgreSQL database if URL is set.
type Database struct {
	Path    string        `as:"path" default:"basegate.db" restart:"true"`
	URL     Secret        `as:"database" restart:"true"`  // postgres://…; it may hold a password
	Migrate bool          `default:"true" restart:"true"` // of PostgreSQL: the gateway migrates the schema at its start; SQLite's is always migrated
	Flush   time.Duration `as:"flush" restart:"true"`     // of SQLite: between two flushes of the commits; 0: each commit is flushed

	KeepRequests time.Duration `as:"keep_requests" restart:"true"` // of PostgreSQL: how long rows of requests are kept, by whole months; 0: for ever
}

// Limits holds the default limits of an API key, and those of an account and of a request.
type Limits struct {
	ConcurrencyPerKey     int           `min:"1" default:"8"`   // concurrent requests
	ConcurrencyPerAccount int           `min:"1" default:"32"`  // concurrent requests of all keys; by default keysWorth times those of a key
	KeysPerAccount        int           `min:"1" default:"100"` // that are neither revoked nor expired
	ChildrenPerKey        int           `min:"1" default:"100"` // keys that one key has made, likewise
	Children              bool          // whether a key may make keys unless it is told otherwise
	KeyLifetime           time.Duration // after which a new key expires unless its creator chooses otherwise; 0: never
	SequencesPerRequest   int           `min:"1" default:"1024"` // completions that one request may ask for: prompts × max(n, best_of)

	UnfinishedBatchesPerAccount int `min:"1" default:"100"`
}

// keysWorth is how many times the concurrent requests of a key an account has by default.
const keysWorth = 4

// Files holds where files are kept, and their limits. Sizes are in bytes.
type Files struct {
	URL                *url.URL      `as:"files" restart:"true"` // file:// and the path of a folder, or s3:// (see Bucket); nil: beside the SQLite database
	Shared             bool          // the folder of URL is the same for all gateways
	MaxBytes           int64         `as:"size" default:"6GiB"` // of one file
	MaxBytesPerAccount int64         `as:"size" default:"100GiB"`
	MaxPerAccount      int           `min:"1" default:"10000"` // files, those of results included
	Keep               time.Duration `as:"age" default:"30d"`  // how long a file is kept unless its creator chooses otherwise
}

// Batches holds how batches run.
type Batches struct {
	PerBackend  int  `min:"1" default:"64"`            // lines that run at a backend at a time
	Attempts    int  `min:"1" max:"1000" default:"10"` // of a line whose failures may pass
	StartModels bool `default:"true"`                  // batches start cold models; false: their lines wait for a warm window or a live request
}

// Receipts holds whether requests can ask for receipts, and where the tree heads of the receipt log are published.
type Receipts struct {
	Enabled bool
	Key     string `as:"optional_path"` // the file of the signing key; empty: beside a SQLite database, or else in the working directory
	Publish string `as:"target"`        // a file, or the URL of a webhook; empty: nowhere
}

// Replay holds whether responses are kept for requests that ask for the same one again, and their limits. Sizes are in bytes.
type Replay struct {
	Enabled            bool
	MaxBytes           int64         `as:"size" default:"10GiB"` // of all responses
	MaxBytesPerAccount int64         `as:"size" default:"2GiB"`
	Keep               time.Duration `as:"age" default:"30d"` // how long a response is kept
	Across             []string      `of:"gpu"`               // what backends that share responses may differ in
}

// Telemetry holds where the traces of requests are sent.
type Telemetry struct {
	OTLP   *url.URL `as:"collector"`              // http, https, grpc or grpcs; nil: nowhere
	Sample float64  `as:"fraction" default:"0.1"` // of the requests without traceparent
}

// Upstream holds the timeouts of an attempt at a backend and the number of attempts per request.
type Upstream struct {
	ConnectTimeout   time.Duration `as:"positive" default:"5s" restart:"true"`
	FirstByteTimeout time.Duration `as:"positive" default:"15m"`  // not streamed: the whole response; streamed: up to the first event
	IdleTimeout      time.Duration `as:"positive" default:"5m"`   // between two events of a stream
	Attempts         int           `min:"1" max:"10" default:"3"` // per request
	MaxAnswerBytes   int64         `as:"size" default:"256MiB"`   // limit on a plain response, and on one event of a stream
}

// Breaker holds the settings of the circuit breaker that each backend has.
type Breaker struct {
	ConsecutiveFailures int           `min:"1" default:"5"`         // this many consecutive failures open the breaker
	OpenFor             time.Duration `as:"positive" default:"30s"` // how long the breaker stays open
	HalfOpenRequests    int           `min:"1" default:"1"`         // concurrent trial requests while half-open
}

// Probe holds the settings of the health checks of backends.
type Probe struct {
	Interval time.Duration `as:"positive" default:"5s"`
	Timeout  time.Duration `as:"positive" default:"2s"`
}

// Log holds the level and the format of the log on stderr.
type Log struct {
	Level  string `of:"debug, info, warn, error" default:"info"`
	Format string `of:"json, console" default:"json"`
}

// Console holds the settings of the web pages.
type Console struct {
	FeedbackWebhook *url.URL `as:"webhook"`   // receives all feedback; nil: feedback is not sent
	AccessRequests  bool     `default:"true"` // users without an account can request one
	NewAccounts     NewAccounts
	SavedPrompts    SavedPrompts
	OIDC            OIDC
}

// NewAccounts holds the budgets that the forms for new accounts propose, and that the identity provider's users get. 0 is no limit.
type NewAccounts struct {
	TokensPerMonth int64
	TokensPerDay   int64
}

// SavedPrompts holds the limits of prompts that are saved in the workbench.
type SavedPrompts struct {
	MaxBytesPerAccount int64 `as:"size" default:"100MiB"`
}

// OIDC holds the identity provider with which users can sign in beside passwords.
type OIDC struct {
	Issuer         *url.URL `as:"issuer"`                         // nil: there is none
	Name           string   `as:"label" default:"single sign-on"` // of the provider, on the button of the sign-in page
	ClientID       string   `as:"label"`
	ClientSecret   Secret
	AllowedDomains []string `as:"host"`                  // of e-mail addresses for which an account is created at the first sign-in
	AllowedGroups  []string `as:"group"`                 // whose members get an account at the first sign-in
	GroupsClaim    string   `as:"word" default:"groups"` // the claim that lists the user's groups, or the path to it
	AdminGroup     string   `as:"label"`                 // whose members are administrators; empty: the provider does not decide
	TrustEmail     bool     // accepts addresses about which the provider does not say whether they are verified
}

// Dialects says which other APIs' forms of completions are served.
type Dialects struct {
	Lamini    bool // below /lamini
	Eternalai bool // EternalAI, below /eternalai; needs receipts
}

// Notifications holds where operators are notified.
type Notifications struct {
	Webhook *url.URL `as:"webhook"` // receives every notification as JSON; nil: none
}

// Mail holds the mail server.
type Mail struct {
	SMTP     *url.URL `as:"smtp"`  // smtp:// by STARTTLS or smtps:// with a port; nil: the gateway sends no mail
	Username string   `as:"label"` // empty: without authentication
	Password Secret
	From     string `as:"sender"`    // address of the sender, with or without a name; empty: basegate at Helo
	Helo     string `as:"helo"`      // what the gateway calls itself to the server; empty: the name or the address of this machine
	Alerts   bool   `default:"true"` // administrators get notifications by mail
}

// Model is one model with the backends that serve it.
type Model struct {
	ID                    string        `as:"identifier" required:"true"` // the name that clients use
	Aliases               []string      `as:"alias"`                      // further names that clients may use
	Checkpoint            string        `as:"word" required:"true"`       // the name that vLLM serves it under
	Root                  string        `as:"label"`                      // the model that vLLM has loaded, as it reports it; empty: not compared strictly
	Precision             string        `as:"label"`                      // a label for clients; may be empty
	MaxModelLen           int64         // tokens; 0: as reported by the backend
	MaxLogprobs           int           `default:"20"`
	MaxScoredPromptTokens int64         // 0: no limit
	Xargs                 []string      `as:"word"` // names that vllm_xargs of a request may have
	Chat                  bool          // the model has a chat template: it serves chat completions
	Completions           bool          `default:"true"`                          // it serves completions
	ChatDefaultMaxTokens  int64         `min:"1" max:"2147483647" default:"4096"` // of a chat completion that does not limit its tokens
	ColdWait              time.Duration // how long a request waits for a boot; 0: it does not wait
	Balance               string        `of:"least_inflight, prefix" default:"prefix"`
	Backends              []Backend     `required:"true"`
	WarmWindows           []Window

	Adapters    []Adapter // LoRA adapters that clients use as models, in addition to those that are added at run time
	AdaptersDir string    `as:"adapters_dir"`    // where keys with the right may add adapters from; empty: nowhere
	MaxAdapters int       `min:"1" default:"32"` // those of Adapters included
}

// Adapter is a LoRA adapter of a model.
type Adapter struct {
	ID   string `as:"alias" required:"true"` // the name that clients use
	Path string `as:"path" required:"true"`  // a folder or a repository, as the backends see it
}

// The values of Model.Balance.
const (
	BalanceLeastInFlight = "least_inflight" // the backend with the fewest requests in flight
	BalancePrefix        = "prefix"         // the backend whose prefix cache has most of the prompt, unless it has too many
)

// Backend is one vLLM server.
type Backend struct {
	Name   string   `as:"word"`                   // unique within its model; by default the host and the port of URL
	URL    *url.URL `as:"server" required:"true"` // scheme, host and an optional path prefix, without a trailing slash
	GPU    string   `as:"label"`                  // a label for clients; may be empty
	APIKey Secret   // the bearer token that vLLM expects; empty: none

	MaxLoaded        int    `min:"1" default:"1"`                // adapters that are loaded at a time: vLLM's --max-cpu-loras
	SchedulingPolicy string `of:"fcfs, priority" default:"fcfs"` // vLLM's --scheduling-policy
	LogprobTokenIDs  bool   `key:"logprob_token_ids"`            // logprob_token_ids is sent to it, which must not spoil the log-probabilities of other requests

	Launch   *Launch   // nil: the gateway does not start or stop the backend
	Sleep    *Sleep    // nil: the gateway does not put the backend to sleep
	Replicas *Replicas // nil: the backend is one server

	Replica int    `key:"-"` // the number of the replica that the backend is, from 1; 0: it is none. Set by Expand
	First   string `key:"-"` // the name of the first replica
}

// Replicas says how many servers the launch section starts for one backend.
type Replicas struct {
	Min   int // that are kept running
	Max   int `min:"1" max:"64" required:"true"`
	Queue int `min:"1" default:"8"` // requests that may wait for each before another one is started
}

// Expand returns the backends that a backend with replicas stands for, the first of its own name, or the backend itself.
func (b *Backend) Expand() []Backend {
	if b.Replicas == nil {
		return []Backend{*b}
	}
	all := make([]Backend, b.Replicas.Max)
	for i := range all {
		all[i] = *b
		all[i].Replica, all[i].First = i+1, b.Name
		if i > 0 {
			all[i].Name = fmt.Sprintf("%s-%d", b.Name, i+1)
		}
	}
	return all
}

// Launch holds the commands that start and stop a backend, and their timeouts.
type Launch struct {
	Start        []string      `as:"argument" required:"true"` // a program and its arguments
	Stop         []string      `as:"argument" required:"true"`
	IdleAfter    time.Duration `default:"30m"` // 0: never stopped
	BootEstimate time.Duration `as:"positive" default:"3m"`
	BootTimeout  time.Duration `as:"positive" default:"15m"`
}

// Sleep configures vLLM's sleep mode, which is used instead of stopping.
type Sleep struct {
	Level     int           `min:"1" max:"2" default:"1"` // vLLM's sleep level
	IdleAfter time.Duration `default:"10m"`               // 0: never
}

// Window is a recurring time during which a model is kept warm: weekdays, a start and an end in the local time of
// Location.
//
// From and To are local times of day, as the duration since midnight. To may be 24h. If To is not after From, the
// window ends on the next day; it belongs to the day on which it begins.
type Window struct {
	Days     Days           `as:"weekdays" required:"true"`
	From     time.Duration  `as:"start" required:"true"`
	To       time.Duration  `as:"clock" required:"true"`
	Location *time.Location `as:"zone" key:"timezone" default:"UTC"`
}

// Default returns the configuration with every default and no models.
func Default() *Config {
	c := new(Config)
	setDefaults(reflect.ValueOf(c).Elem())
	return c
}

// maxFileBytes limits the size of the file, so that a wrong path cannot exhaust memory.
const maxFileBytes = 1 << 20

// Load reads and parses the file at path. ${NAME} refers to the process's environment. Diagnostics name the file as
// path; see Parse for the error.
func Load(path string) (*Config, error) {
	text, err := readFile(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, text, os.LookupEnv)
}

func readFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxFileBytes+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxFileBytes {
		return nil, fmt.Errorf("%s is over %d bytes", path, maxFileBytes)
	}
	return text, nil
}

// Parse parses and validates a configuration. name is the file name in diagnostics, and env looks up the variables for
// ${NAME}.
//
// The error is an *InvalidError with every problem found; if the text is not YAML, it holds the first syntax error
// only.
func Parse(name string, text []byte, env func(string) (string, bool)) (*Config, error) {
	doc := newDocument(name, env)
	c := Default()
	if root, ok := doc.parse(text); ok {
		root.section(reflect.ValueOf(c).Elem())
	}
	if len(doc.errs) > 0 {
		return nil, &InvalidError{Diagnostics: sortByLine(doc.errs)}
	}
	c.Warnings = sortByLine(doc.warnings)
	c.HoldsSecrets = doc.holdsSecrets
	return c, nil
}
