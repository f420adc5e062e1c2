// Package config parses and validates config.yaml, and reports every error with its line.
//
// A Config returned by Load or Parse needs no further validation: defaults are filled in, durations, sizes, addresses
// and time zones are parsed, and contradictory values are rejected. sections.go lists all keys with their allowed
// values. The packages that receive the values decide what they do; config does not check whether a backend responds at
// its address.
package config

import (
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"os"
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
	Receipts      Receipts
	Upstream      Upstream
	Breaker       Breaker
	Probe         Probe
	Log           Log
	Console       Console
	Dialects      Dialects
	Mail          Mail
	Notifications Notifications
	Models        []Model // at least one, in the order of the file

	// HoldsSecrets says that a secret is written in the file itself and does not come from a variable.
	HoldsSecrets bool

	// Warnings lists what is valid but probably unintended, such as a variable that is not set.
	Warnings []Diagnostic
}

// Server holds the listen addresses and the limits on requests. Sizes are in bytes.
type Server struct {
	Listen            string   // host:port of the API and the console
	AdminListen       string   // host:port of health, metrics and profiles
	AdminHosts        []string // names by which clients address AdminListen, besides those that need no listing
	PublicURL         *url.URL // the gateway's address for clients and browsers, without a trailing slash
	TLS               TLS
	MaxBodyBytes      int64 // limit on one request body
	MaxBufferedBytes  int64 // limit on the memory of all requests together
	ReadHeaderTimeout time.Duration
	IdleTimeout       time.Duration  // between two requests of a connection
	DrainTimeout      time.Duration  // 0: shutdown does not wait for running requests
	TrustedProxies    []netip.Prefix // networks whose X-Forwarded-For is trusted
	CORSOrigins       []string       // origins whose scripts browsers may let call the API
	FastPath          bool           // false: net/http serves every request
}

// TLS holds the paths of a PEM certificate and its key; both are empty if the API is served without TLS.
type TLS struct {
	Cert string
	Key  string
}

// Gateway holds what distinguishes the gateways on one PostgreSQL database.
type Gateway struct {
	Name string // unique among those that run, and the same after a restart; empty: of the host and the listen address
}

// Database holds where accounts, keys and usage are: in a SQLite file, or in a PostgreSQL database if URL is set.
type Database struct {
	Path    string
	URL     Secret        // postgres://…; it may hold a password
	Migrate bool          // of PostgreSQL: the gateway migrates the schema at its start; SQLite's is always migrated
	Flush   time.Duration // of SQLite: between two flushes of the commits; 0: each commit is flushed

	KeepRequests time.Duration // of PostgreSQL: how long rows of requests are kept, by whole months; 0: for ever
}

// Limits holds the default limits of an API key, and those of an account and of a request.
type Limits struct {
	ConcurrencyPerKey     int           // concurrent requests
	ConcurrencyPerAccount int           // concurrent requests of all keys; by default keysWorth times those of a key
	KeysPerAccount        int           // that are neither revoked nor expired
	KeyLifetime           time.Duration // after which a new key expires unless its creator chooses otherwise; 0: never
	SequencesPerRequest   int           // completions that one request may ask for: prompts × max(n, best_of)

	UnfinishedBatchesPerAccount int
}

// keysWorth is how many times the concurrent requests of a key an account has by default.
const keysWorth = 4

// Files holds where files are kept, and their limits. Sizes are in bytes.
type Files struct {
	URL                *url.URL // file:// and the path of a folder, or s3:// (see Bucket); nil: beside the SQLite database
	Shared             bool     // the folder of URL is the same for all gateways
	MaxBytes           int64    // of one file
	MaxBytesPerAccount int64
	MaxPerAccount      int           // files, those of results included
	Keep               time.Duration // how long a file is kept unless its creator chooses otherwise
}

// Batches holds how batches run.
type Batches struct {
	PerBackend  int  // lines that run at a backend at a time
	Attempts    int  // of a line whose failures may pass
	StartModels bool // batches start cold models; false: their lines wait for a warm window or a live request
}

// Receipts holds whether requests can ask for receipts, and where the tree heads of the receipt log are published.
type Receipts struct {
	Key     string // the file of the signing key; empty: beside a SQLite database, or else in the working directory
	Enabled bool
	Publish string // a file, or the URL of a webhook; empty: nowhere
}

// Upstream holds the timeouts of an attempt at a backend and the number of attempts per request.
type Upstream struct {
	ConnectTimeout   time.Duration
	FirstByteTimeout time.Duration // not streamed: the whole response; streamed: up to the first event
	IdleTimeout      time.Duration // between two events of a stream
	Attempts         int           // per request, 1 to 10
	MaxAnswerBytes   int64         // limit on a plain response, and on one event of a stream
}

// Breaker holds the settings of the circuit breaker that each backend has.
type Breaker struct {
	ConsecutiveFailures int           // this many consecutive failures open the breaker
	OpenFor             time.Duration // how long the breaker stays open
	HalfOpenRequests    int           // concurrent trial requests while half-open
}

// Probe holds the settings of the health checks of backends.
type Probe struct {
	Interval time.Duration
	Timeout  time.Duration
}

// Log holds the level and the format of the log on stderr.
type Log struct {
	Level  string // debug, info, warn or error
	Format string // json or console
}

// Console holds the settings of the web pages.
type Console struct {
	FeedbackWebhook *url.URL // receives all feedback; nil: feedback is not sent
	AccessRequests  bool     // users without an account can request one
	SavedPrompts    SavedPrompts
	OIDC            OIDC
}

// Dialects says which other APIs' forms of completions are served.
type Dialects struct {
	Lamini    bool // below /lamini
	Eternalai bool // EternalAI, below /eternalai; needs receipts
}

// SavedPrompts holds the limits of prompts that are saved in the workbench.
type SavedPrompts struct {
	MaxBytesPerAccount int64
}

// Model is one model with the backends that serve it.
type Model struct {
	ID                    string   // the name that clients use
	Aliases               []string // further names that clients may use
	Checkpoint            string   // the name that vLLM serves it under
	Root                  string   // the model that vLLM has loaded, as it reports it; empty: not compared strictly
	Precision             string   // a label for clients; may be empty
	MaxModelLen           int64    // tokens; 0: as reported by the backend
	MaxLogprobs           int
	MaxScoredPromptTokens int64         // 0: no limit
	Xargs                 []string      // names that vllm_xargs of a request may have
	Chat                  bool          // the model has a chat template: it serves chat completions
	Completions           bool          // it serves completions
	ChatDefaultMaxTokens  int64         // of a chat completion that does not limit its tokens
	ColdWait              time.Duration // how long a request waits for a boot; 0: it does not wait
	Balance               string        // BalanceLeastInFlight or BalancePrefix
	Backends              []Backend     // at least one
	WarmWindows           []Window
}

// The values of Model.Balance.
const (
	BalanceLeastInFlight = "least_inflight" // the backend with the fewest requests in flight
	BalancePrefix        = "prefix"         // the backend that has served the beginning of the prompt, unless it has too many
)

// Backend is one vLLM server.
type Backend struct {
	Name   string   // unique within its model
	URL    *url.URL // scheme, host and an optional path prefix, without a trailing slash
	GPU    string   // a label for clients; may be empty
	APIKey Secret   // the bearer token that vLLM expects; empty: none

	SchedulingPolicy string // vLLM's --scheduling-policy: fcfs or priority

	Launch *Launch // nil: the gateway does not start or stop the backend
	Sleep  *Sleep  // nil: the gateway does not put the backend to sleep
}

// Launch holds the commands that start and stop a backend, and their timeouts.
type Launch struct {
	Start        []string // a program and its arguments
	Stop         []string
	IdleAfter    time.Duration // 0: never stopped
	BootEstimate time.Duration
	BootTimeout  time.Duration
}

// Sleep configures vLLM's sleep mode, which is used instead of stopping.
type Sleep struct {
	Level     int           // vLLM's sleep level, 1 or 2
	IdleAfter time.Duration // 0: never
}

// Default returns the configuration with every default and no models.
func Default() *Config {
	return &Config{
		Server: Server{
			Listen:            "127.0.0.1:8080",
			AdminListen:       "127.0.0.1:9090",
			PublicURL:         &url.URL{Scheme: "http", Host: "127.0.0.1:8080"},
			MaxBodyBytes:      16 << 20,
			MaxBufferedBytes:  1 << 30,
			ReadHeaderTimeout: 10 * time.Second,
			IdleTimeout:       620 * time.Second,
			DrainTimeout:      10 * time.Minute,
			FastPath:          true,
		},
		Database: Database{Path: "basegate.db", Migrate: true},
		Limits: Limits{
			ConcurrencyPerKey: 8, ConcurrencyPerAccount: keysWorth * 8, KeysPerAccount: 100, SequencesPerRequest: 1024,
			UnfinishedBatchesPerAccount: 100,
		},
		Files:   Files{MaxBytes: 6 << 30, MaxBytesPerAccount: 100 << 30, MaxPerAccount: 10_000, Keep: 30 * 24 * time.Hour},
		Batches: Batches{PerBackend: 64, Attempts: 10, StartModels: true},
		Upstream: Upstream{
			ConnectTimeout:   5 * time.Second,
			FirstByteTimeout: 15 * time.Minute,
			IdleTimeout:      5 * time.Minute,
			Attempts:         3,
			MaxAnswerBytes:   256 << 20,
		},
		Breaker: Breaker{ConsecutiveFailures: 5, OpenFor: 30 * time.Second, HalfOpenRequests: 1},
		Probe:   Probe{Interval: 5 * time.Second, Timeout: 2 * time.Second},
		Log:     Log{Level: "info", Format: "json"},
		Console: Console{AccessRequests: true, SavedPrompts: SavedPrompts{MaxBytesPerAccount: 100 << 20}, OIDC: OIDC{Name: "single sign-on", GroupsClaim: "groups"}},
		Mail:    Mail{Alerts: true},
	}
}

func defaultModel() Model {
	return Model{MaxLogprobs: 20, Completions: true, ChatDefaultMaxTokens: 4096, Balance: BalancePrefix}
}

func defaultLaunch() Launch {
	return Launch{IdleAfter: 30 * time.Minute, BootEstimate: 3 * time.Minute, BootTimeout: 15 * time.Minute}
}

func defaultSleep() Sleep { return Sleep{Level: 1, IdleAfter: 10 * time.Minute} }

func defaultWindow() Window { return Window{Location: time.UTC} }

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
	file, err := os.Open(path) //nolint:gosec // the operator chooses the path
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxFileBytes+1)) //nolint:forbidigo // bounded
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	if len(text) > maxFileBytes {
		return nil, fmt.Errorf("read configuration: %s is over %d bytes", path, maxFileBytes)
	}
	return text, nil
}

// Parse parses and validates a configuration. name is the file name in diagnostics, and env looks up the variables for
// ${NAME}.
//
// The error is an *InvalidError with every problem found; if the text is not YAML, it holds the first syntax error
// only.
func Parse(name string, text []byte, env func(string) (string, bool)) (*Config, error) {
	doc := &document{name: name, env: env}
	c := Default()
	if root, ok := doc.parse(text); ok {
		root.section(c.fields()...)
		c.check(root)
	}
	if len(doc.errs) > 0 {
		return nil, &InvalidError{Diagnostics: sortByLine(doc.errs)}
	}
	c.Warnings = sortByLine(doc.warnings)
	c.HoldsSecrets = doc.holdsSecrets
	return c, nil
}
