package gateway

import (
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"basegate/batch"
	"basegate/breaker"
	"basegate/budget/quota"
	"basegate/console"
	"basegate/console/sso"
	"basegate/fleet"
	"basegate/gateway/config"
	"basegate/identity"
	"basegate/proxy"
	"basegate/proxy/dialect/eternalai"
	"basegate/proxy/dialect/lamini"
	"basegate/proxy/replay"
)

func fleetSettings(c *config.Config) fleet.Settings {
	return fleet.Settings{
		Breaker: breaker.Settings(c.Breaker), ProbeInterval: c.Probe.Interval, ProbeTimeout: c.Probe.Timeout,
	}
}

// proxySettings returns the settings of the API. receipts reports whether the receipt log is open, which a reload does not
// change.
func proxySettings(c *config.Config, receipts bool) proxy.Settings {
	return proxy.Settings{
		MaxBodyBytes:      c.Server.MaxBodyBytes,
		MaxAnswerBytes:    c.Upstream.MaxAnswerBytes,
		FirstByteTimeout:  c.Upstream.FirstByteTimeout,
		IdleTimeout:       c.Upstream.IdleTimeout,
		ConcurrencyPerKey: c.Limits.ConcurrencyPerKey,
		CORSOrigins:       c.Server.CORSOrigins,
		Dialects:          dialects(c, receipts),
		Attempts:          c.Upstream.Attempts,

		ConcurrencyPerAccount: c.Limits.ConcurrencyPerAccount,
		SequencesPerRequest:   int64(c.Limits.SequencesPerRequest),
		Replays:               c.Replay.Enabled,

		ClientAddress: clientAddress(c.Server.TrustedProxies),
	}
}

// dialects returns the dialects that are served.
func dialects(c *config.Config, receipts bool) []*proxy.Dialect {
	var served []*proxy.Dialect
	if c.Dialects.Lamini {
		served = append(served, lamini.Dialect)
	}
	if c.Dialects.Eternalai && receipts {
		served = append(served, eternalai.Dialect)
	}
	return served
}

func (g *Gateway) identitySettings(c *config.Config) identity.Settings {
	s := identity.Settings{
		ConcurrencyPerKey: c.Limits.ConcurrencyPerKey, KeysPerAccount: c.Limits.KeysPerAccount,
		ChildrenPerKey: c.Limits.ChildrenPerKey, Children: c.Limits.Children,
		Changed: func() {
			g.ledger.RefreshCaps()
			g.proxy.EndStopped()
		},
	}
	if g.db.Postgres() != nil {
		s.PollInterval, s.CatchUpInterval = clusterPollInterval, clusterCatchUpInterval
	}
	return s
}

// The intervals on PostgreSQL, which answers the reads of several gateways.
const (
	clusterPollInterval    = 250 * time.Millisecond
	clusterCatchUpInterval = 50 * time.Millisecond
)

func batchSettings(c *config.Config) batch.Settings {
	return batch.Settings{
		Models: c.ModelIDs(), Chat: slices.ContainsFunc(c.Models, func(m config.Model) bool { return m.Chat }),
		MaxFileBytes: c.Files.MaxBytes, MaxAccountBytes: c.Files.MaxBytesPerAccount, MaxAccountFiles: c.Files.MaxPerAccount, Keep: c.Files.Keep,
		MaxBodyBytes:  c.Server.MaxBodyBytes,
		MaxUnfinished: c.Limits.UnfinishedBatchesPerAccount,
		PerBackend:    c.Batches.PerBackend, Attempts: c.Batches.Attempts, StartModels: c.Batches.StartModels,
		Replay: c.Replay.Enabled,
	}
}

func replaySettings(c *config.Config) replay.Settings {
	return replay.Settings{
		MaxBytes: c.Replay.MaxBytes, MaxBytesPerAccount: c.Replay.MaxBytesPerAccount, Keep: c.Replay.Keep,
		AcrossGPUs: slices.Contains(c.Replay.Across, "gpu"),
	}
}

// consoleSettings returns the console's settings. booted is the configuration with which the gateway has started.
func consoleSettings(c, booted *config.Config) console.Settings {
	return console.Settings{
		PublicURL:      c.Server.PublicURL,
		ClientAddress:  clientAddress(c.Server.TrustedProxies),
		KeyLifetime:    c.Limits.KeyLifetime,
		AccessRequests: c.Console.AccessRequests,
		NewAccount:     newAccountCaps(c.Console.NewAccounts),
		Provider:       identityProvider(c),
		Configuration:  configValues(c, needsRestart(booted, c)),
	}
}

// newAccountCaps returns the budgets of new accounts.
func newAccountCaps(n config.NewAccounts) (caps quota.Caps) {
	for id, tokens := range map[quota.ID]int64{quota.MonthTotal: n.TokensPerMonth, quota.DayTotal: n.TokensPerDay} {
		if tokens > 0 {
			caps[id] = quota.Limit(tokens)
		}
	}
	return caps
}

// configValues returns the configuration for display. Settings below the keys of pending need a restart.
func configValues(c *config.Config, pending []string) []config.Setting {
	all := c.Describe()
	for i := range all {
		key := all[i].Key
		all[i].Pending = slices.ContainsFunc(pending, func(p string) bool { return key == p || strings.HasPrefix(key, p+".") })
	}
	return all
}

// identityProvider returns the configured identity provider, or nil.
func identityProvider(c *config.Config) *sso.Provider {
	if c.Console.OIDC.Issuer == nil {
		return nil
	}
	return sso.New(sso.Settings{OIDC: c.Console.OIDC, RedirectURL: c.Server.PublicURL.JoinPath("sign-in", "oidc", "callback").String()},
		&http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true})
}

// maxBufferedBytes limits the memory of all requests to half of GOMEMLIMIT, if one is set: the rest is for what is not
// counted, and for the garbage collector.
func maxBufferedBytes(c *config.Config) int64 {
	const fraction = 2
	return min(c.Server.MaxBufferedBytes, debug.SetMemoryLimit(-1)/fraction)
}

// needsRestart returns the names of the settings that differ and that are only read at the start. Of the certificate that is
// whether there is one.
func needsRestart(old, next *config.Config) []string {
	names := next.NeedsRestart(old)
	if (old.Server.TLS.Cert == "") != (next.Server.TLS.Cert == "") {
		names = append(names, "server.tls")
	}
	return names
}
