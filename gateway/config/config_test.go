package config_test

import (
	"bytes"
	"errors"
	"flag"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"basegate/gateway/config"
)

var update = flag.Bool("update", false, "rewrite the diagnostics in testdata")

func noVariables(string) (string, bool) { return "", false }

// variables returns a lookup of NAME=value lines.
func variables(text []byte) func(string) (string, bool) {
	values := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimRight(line, "\n"), "=")
		values[name] = value
	}
	return func(name string) (string, bool) {
		value, set := values[name]
		return value, set
	}
}

func section(archive *txtar.Archive, name string) *txtar.File {
	for i := range archive.Files {
		if archive.Files[i].Name == name {
			return &archive.Files[i]
		}
	}
	return &txtar.File{}
}

func TestEveryErrorIsReportedWithItsLine(t *testing.T) {
	paths, err := filepath.Glob("testdata/bad/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			c, err := config.Parse("config.yaml", section(archive, "config.yaml").Data, variables(section(archive, "env").Data))
			if err == nil || c != nil {
				t.Fatalf("got %v, %v; want nil and an error", c, err)
			}
			got, want := err.Error()+"\n", section(archive, "diagnostics")
			if *update {
				want.Data = []byte(got)
				if err := os.WriteFile(path, txtar.Format(archive), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(string(want.Data), got); diff != "" {
				t.Errorf("diagnostics (-want +got):\n%s", diff)
			}
			if strings.Contains(got, "hunter2") || strings.Contains(got, "letmein") {
				t.Error("a diagnostic shows a secret")
			}
		})
	}
}

func TestInvalidErrorHoldsTheDiagnostics(t *testing.T) {
	_, err := config.Parse("my.yaml", []byte("models: []\nlimits: {concurrency_per_key: 0}\n"), noVariables)
	var invalid *config.InvalidError
	if !errors.As(err, &invalid) {
		t.Fatalf("got %T, want *config.InvalidError", err)
	}
	want := []config.Diagnostic{
		{File: "my.yaml", Line: 1, Key: "models", Text: "want at least one item, got an empty list"},
		{File: "my.yaml", Line: 2, Key: "limits.concurrency_per_key", Text: "want a whole number of at least 1, got the number 0"},
	}
	if diff := cmp.Diff(want, invalid.Diagnostics); diff != "" {
		t.Errorf("diagnostics (-want +got):\n%s", diff)
	}
}

func TestMinimalFileYieldsTheDefaults(t *testing.T) {
	got, err := config.Load("testdata/good/minimal.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want := config.Default()
	want.Models = []config.Model{{
		ID: "llama-8b", Checkpoint: "meta-llama/Llama-3.1-8B", MaxLogprobs: 20, Completions: true, ChatDefaultMaxTokens: 4096, Balance: config.BalancePrefix, MaxAdapters: 32,
		Backends: []config.Backend{{Name: "127.0.0.1:8001", URL: &url.URL{Scheme: "http", Host: "127.0.0.1:8001"}, SchedulingPolicy: "fcfs", MaxLoaded: 1}},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
}

func TestEveryKeyIsParsed(t *testing.T) {
	text, err := os.ReadFile("testdata/good/everything.yaml")
	if err != nil {
		t.Fatal(err)
	}
	env := variables([]byte("PORT=8443\nCONCURRENCY=12\nSCHEME=http\nVLLM_API_KEY=${PORT}\n"))
	got, err := config.Parse("config.yaml", text, env)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(everything(t), got, cmp.Comparer(sameLocation), cmp.Comparer(samePrefix)); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
}

func TestWindowsLineEndingsAndByteOrderMarkAreAccepted(t *testing.T) {
	text, err := os.ReadFile("testdata/good/minimal.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text = append([]byte("\uFEFF"), bytes.ReplaceAll(text, []byte("\n"), []byte("\r\n"))...)
	c, err := config.Parse("config.yaml", text, noVariables)
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Models[0].Backends[0].URL.String(); got != "http://127.0.0.1:8001" {
		t.Errorf("got url %q", got)
	}
}

func TestLoadNamesTheFileItCannotRead(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "none.yaml")
	if _, err := config.Load(missing); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), missing) {
		t.Errorf("missing file: got %v", err)
	}
	huge := filepath.Join(t.TempDir(), "huge.yaml")
	if err := os.WriteFile(huge, bytes.Repeat([]byte("#\n"), 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := config.Load(huge); err == nil || !strings.Contains(err.Error(), huge) {
		t.Errorf("huge file: got %v", err)
	}
}

func TestParseDays(t *testing.T) {
	for text, want := range map[string]string{
		"daily":       "SMTWTFS",
		"sun":         "S......",
		"mon-fri":     ".MTWTF.",
		"fri-mon":     "SM...FS",
		"mon,wed,fri": ".M.W.F.",
		"sat,sat-sun": "S.....S",
		"tue-mon":     "SMTWTFS",
	} {
		days, err := config.ParseDays(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
		}
		var got strings.Builder
		for day := time.Sunday; day <= time.Saturday; day++ {
			if days.Has(day) {
				got.WriteString(day.String()[:1])
			} else {
				got.WriteByte('.')
			}
		}
		if got.String() != want {
			t.Errorf("%s: got %s, want %s", text, got.String(), want)
		}
	}
}

func sameLocation(a, b *time.Location) bool { return a.String() == b.String() }

func samePrefix(a, b netip.Prefix) bool { return a == b }

// everything returns the configuration in testdata/good/everything.yaml.
func everything(t *testing.T) *config.Config {
	t.Helper()
	prague, err := time.LoadLocation("Europe/Prague")
	if err != nil {
		t.Fatal(err)
	}
	const weekend = 1<<time.Friday | 1<<time.Saturday | 1<<time.Sunday | 1<<time.Monday
	home := &url.URL{Scheme: "http", Host: "127.0.0.1:8001"}
	warning := func(line int, key, text string) config.Diagnostic {
		return config.Diagnostic{File: "config.yaml", Line: line, Key: key, Text: text}
	}
	return &config.Config{
		Server: config.Server{
			Listen: ":8443", AdminListen: "[::1]:0", AdminHosts: []string{"gateway.example.org", "metrics"},
			PublicURL:    &url.URL{Scheme: "https", Host: "models.example.org"},
			TLS:          config.TLS{Cert: "/etc/cert.pem", Key: "/etc/key.pem"},
			MaxBodyBytes: 65536, MaxBufferedBytes: 2_000_000_000, ReadHeaderTimeout: 90 * time.Second, IdleTimeout: 65 * time.Second,
			TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")},
			CORSOrigins:    []string{"https://lab.example.org", "http://127.0.0.1:3000"},
		},
		Gateway:  config.Gateway{Name: "gw-1"},
		Database: config.Database{Path: "/var/lib/basegate/base.db", Flush: 250 * time.Millisecond},
		Limits: config.Limits{
			ConcurrencyPerKey: 12, ConcurrencyPerAccount: 40, KeysPerAccount: 7, ChildrenPerKey: 5, Children: true, KeyLifetime: 2160 * time.Hour, SequencesPerRequest: 64,
			UnfinishedBatchesPerAccount: 5,
		},
		Files:     config.Files{URL: &url.URL{Scheme: "file", Path: "/var/lib/basegate/files"}, Shared: true, MaxBytes: 1 << 30, MaxBytesPerAccount: 2 << 30, MaxPerAccount: 50, Keep: 7 * 24 * time.Hour},
		Batches:   config.Batches{PerBackend: 8, Attempts: 3},
		Replay:    config.Replay{Enabled: true, MaxBytes: 1 << 30, MaxBytesPerAccount: 1 << 20, Keep: 7 * 24 * time.Hour, Across: []string{"gpu"}},
		Receipts:  config.Receipts{Key: "/etc/basegate/receipts.key", Enabled: true, Publish: "/var/lib/basegate/head"},
		Telemetry: config.Telemetry{OTLP: &url.URL{Scheme: "grpcs", Host: "collector.example.org:4317"}, Sample: 1},
		Dialects:  config.Dialects{Lamini: true, Eternalai: true},
		Upstream:  config.Upstream{ConnectTimeout: 500 * time.Millisecond, FirstByteTimeout: time.Hour, IdleTimeout: time.Minute, Attempts: 10, MaxAnswerBytes: 1 << 20},
		Breaker:   config.Breaker{ConsecutiveFailures: 1, OpenFor: time.Second, HalfOpenRequests: 2},
		Probe:     config.Probe{Interval: time.Second, Timeout: time.Second},
		Log:       config.Log{Level: "debug", Format: "console"},
		Console: config.Console{
			FeedbackWebhook: &url.URL{Scheme: "https", Host: "chat.example.org", Path: "/hook", RawQuery: "key=x"},
			NewAccounts:     config.NewAccounts{TokensPerMonth: 30_000_000, TokensPerDay: 2_000_000},
			SavedPrompts:    config.SavedPrompts{MaxBytesPerAccount: 5_000_000},
			OIDC: config.OIDC{
				Issuer: &url.URL{Scheme: "https", Host: "login.example.org", Path: "/realms/lab/"}, Name: "Lab", ClientID: "basegate",
				ClientSecret: config.NewSecret("12"), AllowedDomains: []string{"example.org"},
				AllowedGroups: []string{"ml team"}, GroupsClaim: "roles", AdminGroup: "ops", TrustEmail: true,
			},
		},
		Notifications: config.Notifications{Webhook: &url.URL{Scheme: "https", Host: "hooks.example.org", Path: "/T0/x"}},
		Mail: config.Mail{
			SMTP: &url.URL{Scheme: "smtps", Host: "mail.example.org:465"}, Username: "base",
			Password: config.NewSecret("8443"), From: "Base <base@example.org>", Helo: "[192.0.2.1]",
		},
		Models: []config.Model{{
			ID: "Llama_8b.v1-x", Aliases: []string{"llama", "meta-llama/Llama-3.1-8B"}, Checkpoint: "meta-llama/Llama-3.1-8B", Root: "meta-llama/Llama-3.1-8B@main", Precision: "fp8 (e4m3)",
			MaxModelLen: 131072, MaxScoredPromptTokens: 8192, Xargs: []string{"alpha", "beta_2"}, Chat: true, ChatDefaultMaxTokens: 1024, ColdWait: 30 * time.Second, Balance: config.BalanceLeastInFlight,
			Adapters: []config.Adapter{{ID: "sql-v3", Path: "/adapters/sql/v3"}, {ID: "hub", Path: "org/adapter"}}, AdaptersDir: "/adapters", MaxAdapters: 3,
			Backends: []config.Backend{{
				Name: "gpu1", URL: &url.URL{Scheme: "http", Host: "gpu1:8001", Path: "/vllm"},
				GPU: "H100-80GB", APIKey: config.NewSecret("${PORT}"), SchedulingPolicy: "priority", LogprobTokenIDs: true, MaxLoaded: 4,
				Launch: &config.Launch{
					Start: []string{"run", "--gpu-memory-utilization", "0.90", "-p", "8000:8000", "", "yes", "${HOME}"},
					Stop:  []string{"stop"}, BootEstimate: 20 * time.Minute, BootTimeout: 10 * time.Minute,
				},
				Sleep: &config.Sleep{Level: 2}, Replicas: &config.Replicas{Min: 1, Max: 3, Queue: 4},
			}, {
				Name: "[::1]", URL: &url.URL{Scheme: "http", Host: "[::1]"}, APIKey: config.NewSecret("-"), SchedulingPolicy: "fcfs", MaxLoaded: 1,
			}},
			WarmWindows: []config.Window{
				{Days: weekend, From: 22 * time.Hour, To: 6 * time.Hour, Location: prague},
				{Days: 1<<time.Tuesday | 1<<time.Thursday, To: 24 * time.Hour, Location: time.UTC},
			},
		}, {
			ID: "b", Checkpoint: "meta-llama/Llama-3.1-8B", MaxLogprobs: 20, Completions: true, ChatDefaultMaxTokens: 4096, Balance: config.BalancePrefix, MaxAdapters: 32,
			Backends: []config.Backend{{
				Name: "127.0.0.1:8001", URL: home, SchedulingPolicy: "fcfs", MaxLoaded: 1,
				Launch: &config.Launch{
					Start: []string{"a"}, Stop: []string{"b"},
					IdleAfter: 30 * time.Minute, BootEstimate: 3 * time.Minute, BootTimeout: 15 * time.Minute,
				},
				Sleep: &config.Sleep{Level: 1, IdleAfter: 10 * time.Minute},
			}},
			WarmWindows: []config.Window{{Days: 127, To: time.Minute, Location: time.UTC}},
		}, {
			ID: "c", Checkpoint: "c", MaxLogprobs: 20, Completions: true, ChatDefaultMaxTokens: 4096, Balance: config.BalancePrefix, MaxAdapters: 32,
			Backends:    []config.Backend{{Name: "127.0.0.1:8001", URL: home, SchedulingPolicy: "fcfs", MaxLoaded: 1}},
			WarmWindows: []config.Window{{Days: 127, To: time.Minute, Location: time.UTC}},
		}},
		HoldsSecrets: true,
		Warnings: []config.Diagnostic{
			warning(68, "models[0].backends[0].launch.boot_timeout", "a boot times out (10m0s) before it is expected to end (20m0s)"),
			warning(72, "models[0].backends[1].api_key", "the variable UNSET is not set and taken as empty"),
			warning(83, "models[2].warm_windows", "no backend of this model has launch or sleep, so nothing can be kept warm"),
		},
	}
}
