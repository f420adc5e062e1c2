// Package config turns config.yaml into a checked Config, and names every mistake in it with its line.
//
// A Config that Load or Parse returns needs no further checking: every default is filled in, every duration, size,
// address and time zone has been read, and what contradicts itself has been refused. The whole list of keys, with what
// each may be, stands in sections.go. What the values do is the business of the packages that they are handed to, and
// whether a backend answers at its address is not asked here.
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
	Server   Server
	Database Database
	Limits   Limits
	Upstream Upstream
	Breaker  Breaker
	Probe    Probe
	Log      Log
	Console  Console
	Models   []Model // at least one, in the order of the file

	// Warnings are what is allowed but looks unintended, such as a variable that is not set.
	Warnings []Diagnostic
}

// Server is where the gateway listens and what it accepts. Sizes are bytes.
type Server struct {
	Listen            string   // host:port of the API and the console
	AdminListen       string   // host:port of health, metrics and profiles
	PublicURL         *url.URL // what clients and browsers call the gateway, without a slash at the end
	TLS               TLS
	MaxBodyBytes      int64 // one request's body
	MaxBufferedBytes  int64 // the bodies of all waiting requests together
	ReadHeaderTimeout time.Duration
	DrainTimeout      time.Duration  // 0: a stop does not wait for running requests
	TrustedProxies    []netip.Prefix // whose X-Forwarded-For is believed
	FastPath          bool           // false: net/http serves every request
}

// TLS names the files of a certificate and its key, PEM; both are empty where the API is served in the clear.
type TLS struct {
	Cert string
	Key  string
}

// Database is where accounts, keys and usage are kept.
type Database struct {
	Path string
}

// Limits are the limits of a key for which nothing else was set.
type Limits struct {
	ConcurrencyPerKey int // requests at a time
}

// Upstream is how long a backend may take, and how often a request is tried.
type Upstream struct {
	ConnectTimeout   time.Duration
	FirstByteTimeout time.Duration // plain: the whole answer; stream: up to the first event
	IdleTimeout      time.Duration // between two events of a stream
	Attempts         int           // at one request, 1 to 10
}

// Breaker is when a failing backend is left alone, and for how long.
type Breaker struct {
	ConsecutiveFailures int
	OpenFor             time.Duration
	HalfOpenRequests    int
}

// Probe is how backends are watched.
type Probe struct {
	Interval time.Duration
	Timeout  time.Duration
}

// Log is what is logged on stderr, and in which form.
type Log struct {
	Level  string // debug, info, warn or error
	Format string // json or console
}

// Console is what the web pages do besides.
type Console struct {
	FeedbackWebhook *url.URL // told of all feedback; nil: nobody is
}

// Model is one model with the backends that serve it.
type Model struct {
	ID                    string // what clients call it
	Checkpoint            string // what vLLM calls it
	Precision             string // a label for clients; may be empty
	MaxModelLen           int64  // tokens; 0: what the backend says
	MaxLogprobs           int
	MaxScoredPromptTokens int64         // 0: no limit
	ColdWait              time.Duration // how long a request waits for a boot; 0: not at all
	Backends              []Backend     // at least one
	WarmWindows           []Window
}

// Backend is one vLLM server.
type Backend struct {
	Name   string   // unique within its model
	URL    *url.URL // scheme, host and perhaps a path prefix, without a slash at the end
	GPU    string   // a label for clients; may be empty
	APIKey Secret   // what vLLM wants as a bearer token; empty: nothing
	Launch *Launch  // nil: the backend is somebody else's to start
	Sleep  *Sleep   // nil: the backend is never put to sleep
}

// Launch is how a backend is started and stopped.
type Launch struct {
	Start        []string // a program and its arguments
	Stop         []string
	IdleAfter    time.Duration // 0: never stopped
	BootEstimate time.Duration
	BootTimeout  time.Duration
}

// Sleep is how vLLM's sleep mode is used in place of stopping.
type Sleep struct {
	Level     int           // 1 or 2, as vLLM numbers them
	IdleAfter time.Duration // 0: never
}

// Default is a configuration as it stands before any file is read: everything but models.
func Default() *Config {
	return &Config{
		Server: Server{
			Listen:            "127.0.0.1:8080",
			AdminListen:       "127.0.0.1:9090",
			PublicURL:         &url.URL{Scheme: "http", Host: "127.0.0.1:8080"},
			MaxBodyBytes:      16 << 20,
			MaxBufferedBytes:  1 << 30,
			ReadHeaderTimeout: 10 * time.Second,
			DrainTimeout:      10 * time.Minute,
			FastPath:          true,
		},
		Database: Database{Path: "basegate.db"},
		Limits:   Limits{ConcurrencyPerKey: 8},
		Upstream: Upstream{
			ConnectTimeout:   5 * time.Second,
			FirstByteTimeout: 15 * time.Minute,
			IdleTimeout:      5 * time.Minute,
			Attempts:         3,
		},
		Breaker: Breaker{ConsecutiveFailures: 5, OpenFor: 30 * time.Second, HalfOpenRequests: 1},
		Probe:   Probe{Interval: 5 * time.Second, Timeout: 2 * time.Second},
		Log:     Log{Level: "info", Format: "json"},
	}
}

func defaultModel() Model { return Model{MaxLogprobs: 20} }

func defaultLaunch() Launch {
	return Launch{IdleAfter: 30 * time.Minute, BootEstimate: 3 * time.Minute, BootTimeout: 15 * time.Minute}
}

func defaultSleep() Sleep { return Sleep{Level: 1, IdleAfter: 10 * time.Minute} }

func defaultWindow() Window { return Window{Location: time.UTC} }

// maxFileBytes is far above any sensible configuration and keeps a wrong path from filling the memory.
const maxFileBytes = 1 << 20

// Load reads the file at path, with the variables of the process's environment. Mistakes are named with path as it was
// given; see Parse for the error.
func Load(path string) (*Config, error) {
	file, err := os.Open(path) //nolint:gosec // the operator says where the configuration is
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxFileBytes+1)) //nolint:forbidigo // this is the bound
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	if len(text) > maxFileBytes {
		return nil, fmt.Errorf("read configuration: %s is over %d bytes", path, maxFileBytes)
	}
	return Parse(path, text, os.LookupEnv)
}

// Parse checks a configuration; name stands for the file in what it says, and env finds the variables for ${NAME}.
//
// The error is an *InvalidError with every mistake; only where the text is not YAML at all is the first mistake the only
// one.
func Parse(name string, text []byte, env func(string) (string, bool)) (*Config, error) {
	doc := &document{name: name, env: env}
	c := Default()
	if root, ok := doc.parse(text); ok {
		root.section(c.fields()...)
		c.check(root)
	}
	if len(doc.mistakes) > 0 {
		return nil, &InvalidError{Mistakes: sorted(doc.mistakes)}
	}
	c.Warnings = sorted(doc.warnings)
	return c, nil
}
