package config

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
)

// This file lists every key and its allowed values.

func (c *Config) fields() []field {
	return []field{
		key("server", func(v value) { v.section(c.Server.fields()...) }),
		key("gateway", func(v value) { v.section(key("name", text(&c.Gateway.Name, checkGatewayName))) }),
		key("database", func(v value) {
			v.section(
				key("path", nonEmptyPath(&c.Database.Path)),
				key("url", databaseURL(&c.Database.URL)),
				key("migrate", boolean(&c.Database.Migrate)),
				key("flush", flush(&c.Database.Flush)),
				key("keep_requests", keepRequests(&c.Database.KeepRequests)),
			)
		}),
		key("limits", func(v value) {
			c.Limits.ConcurrencyPerAccount = 0
			v.section(
				key("concurrency_per_key", integer(&c.Limits.ConcurrencyPerKey, 1, math.MaxInt32)),
				key("concurrency_per_account", integer(&c.Limits.ConcurrencyPerAccount, 1, math.MaxInt32)),
				key("keys_per_account", integer(&c.Limits.KeysPerAccount, 1, math.MaxInt32)),
				key("key_lifetime", duration(&c.Limits.KeyLifetime, 0)),
				key("sequences_per_request", integer(&c.Limits.SequencesPerRequest, 1, math.MaxInt32)),
				key("unfinished_batches_per_account", integer(&c.Limits.UnfinishedBatchesPerAccount, 1, math.MaxInt32)),
			)
			if c.Limits.ConcurrencyPerAccount == 0 {
				c.Limits.ConcurrencyPerAccount = min(keysWorth*c.Limits.ConcurrencyPerKey, math.MaxInt32)
			}
		}),
		key("files", func(v value) {
			v.section(
				key("url", filesURL(&c.Files.URL)),
				key("shared", boolean(&c.Files.Shared)),
				key("max_bytes", size(&c.Files.MaxBytes)),
				key("max_bytes_per_account", size(&c.Files.MaxBytesPerAccount)),
				key("max_per_account", integer(&c.Files.MaxPerAccount, 1, math.MaxInt32)),
				key("keep", days(&c.Files.Keep, time.Hour)),
			)
		}),
		key("batches", func(v value) {
			v.section(
				key("per_backend", integer(&c.Batches.PerBackend, 1, math.MaxInt32)),
				key("attempts", integer(&c.Batches.Attempts, 1, 1000)),
				key("start_models", boolean(&c.Batches.StartModels)),
			)
		}),
		key("receipts", func(v value) {
			v.section(key("enabled", boolean(&c.Receipts.Enabled)), key("key", optionalPath(&c.Receipts.Key)), key("publish", fileOrWebhook(&c.Receipts.Publish)))
		}),
		key("upstream", func(v value) { v.section(c.Upstream.fields()...) }),
		key("breaker", func(v value) { v.section(c.Breaker.fields()...) }),
		key("probe", func(v value) { v.section(c.Probe.fields()...) }),
		key("log", func(v value) { v.section(c.Log.fields()...) }),
		key("console", func(v value) { v.section(c.Console.fields()...) }),
		key("dialects", func(v value) {
			v.section(key("lamini", boolean(&c.Dialects.Lamini)), key("eternalai", boolean(&c.Dialects.Eternalai)))
		}),
		key("notifications", func(v value) { v.section(key("webhook", webhook(&c.Notifications.Webhook))) }),
		key("mail", func(v value) { v.section(c.Mail.fields()...) }),
		required("models", nonEmptyList(&c.Models, model)),
	}
}

func (s *Server) fields() []field {
	return []field{
		key("listen", address(&s.Listen)),
		key("admin_listen", address(&s.AdminListen)),
		key("admin_hosts", list(&s.AdminHosts, hostName)),
		key("public_url", publicURL(&s.PublicURL)),
		key("tls", func(v value) {
			v.section(key("cert", optionalPath(&s.TLS.Cert)), key("key", optionalPath(&s.TLS.Key)))
		}),
		key("max_body_bytes", size(&s.MaxBodyBytes)),
		key("max_buffered_bytes", size(&s.MaxBufferedBytes)),
		key("read_header_timeout", duration(&s.ReadHeaderTimeout, minPositive)),
		key("idle_timeout", duration(&s.IdleTimeout, minPositive)),
		key("drain_timeout", duration(&s.DrainTimeout, 0)),
		key("trusted_proxies", list(&s.TrustedProxies, network)),
		key("cors_origins", list(&s.CORSOrigins, origin)),
		key("fast_path", boolean(&s.FastPath)),
	}
}

func (u *Upstream) fields() []field {
	return []field{
		key("connect_timeout", duration(&u.ConnectTimeout, minPositive)),
		key("first_byte_timeout", duration(&u.FirstByteTimeout, minPositive)),
		key("idle_timeout", duration(&u.IdleTimeout, minPositive)),
		key("attempts", integer(&u.Attempts, 1, 10)),
		key("max_answer_bytes", size(&u.MaxAnswerBytes)),
	}
}

func (b *Breaker) fields() []field {
	return []field{
		key("consecutive_failures", integer(&b.ConsecutiveFailures, 1, math.MaxInt32)),
		key("open_for", duration(&b.OpenFor, minPositive)),
		key("half_open_requests", integer(&b.HalfOpenRequests, 1, math.MaxInt32)),
	}
}

func (p *Probe) fields() []field {
	return []field{
		key("interval", duration(&p.Interval, minPositive)),
		key("timeout", duration(&p.Timeout, minPositive)),
	}
}

func (l *Log) fields() []field {
	return []field{
		key("level", oneOf(&l.Level, "debug", "info", "warn", "error")),
		key("format", oneOf(&l.Format, "json", "console")),
	}
}

func (c *Console) fields() []field {
	return []field{
		key("feedback_webhook", webhook(&c.FeedbackWebhook)),
		key("access_requests", boolean(&c.AccessRequests)),
		key("saved_prompts", func(v value) { v.section(key("max_bytes_per_account", size(&c.SavedPrompts.MaxBytesPerAccount))) }),
		key("oidc", func(v value) { v.section(c.OIDC.fields()...) }),
	}
}

func (m *Mail) fields() []field {
	return []field{
		key("smtp", smtpServer(&m.SMTP)),
		key("username", text(&m.Username, checkLabel)),
		key("password", secret(&m.Password)),
		key("from", sender(&m.From)),
		key("helo", helo(&m.Helo)),
		key("alerts", boolean(&m.Alerts)),
	}
}

func (o *OIDC) fields() []field {
	return []field{
		key("issuer", issuer(&o.Issuer)),
		key("name", text(&o.Name, checkLabel)),
		key("client_id", text(&o.ClientID, checkLabel)),
		key("client_secret", secret(&o.ClientSecret)),
		key("allowed_domains", list(&o.AllowedDomains, hostName)),
		key("allowed_groups", list(&o.AllowedGroups, group)),
		key("groups_claim", text(&o.GroupsClaim, checkName)),
		key("admin_group", text(&o.AdminGroup, checkLabel)),
		key("trust_email", boolean(&o.TrustEmail)),
	}
}

// group decodes the name of a group at an identity provider.
func group(to *string) decodeFunc {
	return text(to, func(s string) error {
		if s == "" {
			return errGroup
		}
		return checkLabel(s)
	})
}

func model(m *Model) decodeFunc {
	*m = defaultModel()
	return func(v value) {
		v.section(
			required("id", text(&m.ID, checkIdentifier)),
			key("aliases", list(&m.Aliases, alias)),
			required("checkpoint", text(&m.Checkpoint, checkName)),
			key("root", text(&m.Root, checkLabel)),
			key("precision", text(&m.Precision, checkLabel)),
			key("max_model_len", integer(&m.MaxModelLen, 0, math.MaxInt64)),
			key("max_logprobs", integer(&m.MaxLogprobs, 0, math.MaxInt32)),
			key("max_scored_prompt_tokens", integer(&m.MaxScoredPromptTokens, 0, math.MaxInt64)),
			key("xargs", list(&m.Xargs, func(to *string) decodeFunc { return text(to, checkName) })),
			key("chat", boolean(&m.Chat)),
			key("completions", boolean(&m.Completions)),
			key("chat_default_max_tokens", integer(&m.ChatDefaultMaxTokens, 1, math.MaxInt32)),
			key("cold_wait", duration(&m.ColdWait, 0)),
			key("balance", oneOf(&m.Balance, BalanceLeastInFlight, BalancePrefix)),
			required("backends", nonEmptyList(&m.Backends, backend)),
			key("warm_windows", list(&m.WarmWindows, window)),
		)
		m.check(v)
	}
}

// alias decodes a further id of a model. It may have a slash, as names of checkpoints do.
func alias(to *string) decodeFunc { return text(to, checkAlias) }

func backend(b *Backend) decodeFunc {
	*b = Backend{SchedulingPolicy: "fcfs"}
	return func(v value) {
		v.section(
			key("name", text(&b.Name, checkName)),
			required("url", serverURL(&b.URL)),
			key("gpu", text(&b.GPU, checkLabel)),
			key("api_key", secret(&b.APIKey)),
			key("scheduling_policy", oneOf(&b.SchedulingPolicy, "fcfs", "priority")),
			key("launch", launch(&b.Launch)),
			key("sleep", sleep(&b.Sleep)),
		)
		if b.Name == "" && b.URL != nil {
			b.Name = b.URL.Host
		}
	}
}

func launch(to **Launch) decodeFunc {
	return func(v value) {
		l := defaultLaunch()
		v.section(
			required("start", nonEmptyList(&l.Start, argument)),
			required("stop", nonEmptyList(&l.Stop, argument)),
			key("idle_after", duration(&l.IdleAfter, 0)),
			key("boot_estimate", duration(&l.BootEstimate, minPositive)),
			key("boot_timeout", duration(&l.BootTimeout, minPositive)),
		)
		l.check(v)
		*to = &l
	}
}

func sleep(to **Sleep) decodeFunc {
	return func(v value) {
		s := defaultSleep()
		v.section(
			key("level", integer(&s.Level, 1, 2)),
			key("idle_after", duration(&s.IdleAfter, 0)),
		)
		*to = &s
	}
}

func window(w *Window) decodeFunc {
	*w = defaultWindow()
	return func(v value) {
		w.From, w.To = -1, -1
		v.section(
			required("days", parsed(&w.Days, ParseDays)),
			required("from", parsed(&w.From, parseStartClock)),
			required("to", parsed(&w.To, ParseClock)),
			key("timezone", parsed(&w.Location, parseLocation)),
		)
		if w.From >= 0 && w.From == w.To {
			v.child("to").errorf("the window ends when it begins; for the whole day write from 00:00 to 24:00")
		}
	}
}

const (
	maxIdentifier = 64
	maxAlias      = 200

	maxGatewayName = 200
)

var (
	errIdentifier = fmt.Errorf("1 to %d of the characters A-Z a-z 0-9 . _ -", maxIdentifier)
	errWord       = errors.New("printable ASCII without spaces, not empty")
	errAlias      = fmt.Errorf("1 to %d characters of printable ASCII without spaces and commas", maxAlias)
	errGateway    = fmt.Errorf("at most %d characters of printable ASCII without spaces, or nothing", maxGatewayName)
	errLabel      = errors.New("printable ASCII")
	errGroup      = errors.New("the name of a group in printable ASCII, not empty")

	errSender = errors.New("an e-mail address such as basegate@example.org or Basegate <basegate@example.org>, or nothing")
	errHelo   = errors.New("the name of a host such as gateway.example.org, an address such as [192.0.2.1] or [IPv6:2001:db8::1], or nothing")
)

// checkIdentifier checks a name that is used in URLs and JSON.
func checkIdentifier(s string) error {
	if s == "" || len(s) > maxIdentifier {
		return errIdentifier
	}
	for _, c := range []byte(s) {
		switch {
		case 'A' <= c && c <= 'Z', 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
		default:
			return errIdentifier
		}
	}
	return nil
}

// checkName checks a name that is used in headers and log lines.
func checkName(s string) error {
	if s == "" || !isPrintable(s) {
		return errWord
	}
	return nil
}

// checkAlias checks a further id of a model. Lists of models separate ids by commas.
func checkAlias(s string) error {
	if s == "" || len(s) > maxAlias || !isPrintable(s) || strings.Contains(s, ",") {
		return errAlias
	}
	return nil
}

// checkGatewayName checks a name of a gateway; it may be empty.
func checkGatewayName(s string) error {
	if len(s) > maxGatewayName || !isPrintable(s) {
		return errGateway
	}
	return nil
}

// checkLabel checks a description that is used in headers; it may be empty.
func checkLabel(s string) error {
	for _, c := range []byte(s) {
		if c < ' ' || c > '~' {
			return errLabel
		}
	}
	return nil
}

// isPrintable reports whether every byte is visible ASCII.
func isPrintable(s string) bool {
	for _, c := range []byte(s) {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return true
}
