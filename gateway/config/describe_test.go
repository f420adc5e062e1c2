package config_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"basegate/gateway/config"
)

// settingsOf returns the settings of a configuration by their keys.
func settingsOf(t *testing.T, c *config.Config) map[string]config.Setting {
	t.Helper()
	all := map[string]config.Setting{}
	for _, s := range c.Describe() {
		if _, twice := all[s.Key]; twice {
			t.Errorf("the key %s is described twice", s.Key)
		}
		all[s.Key] = s
	}
	return all
}

// A key that is added to the file is on the settings page too, under its own name.
func TestEveryKeyIsDescribedByItsName(t *testing.T) {
	keys := map[string]bool{}
	for _, name := range config.Keys() {
		keys[name] = true
	}
	for _, inWindow := range []string{"days", "to", "timezone"} { // a window is one value
		delete(keys, inWindow)
	}
	// Of mail, "from" is a key of its own.
	seen := map[string]bool{}
	for key := range settingsOf(t, everything(t)) {
		for part := range strings.SplitSeq(regexp.MustCompile(`\[\d+\]`).ReplaceAllString(key, ""), ".") {
			seen[part] = true
			if !keys[part] {
				t.Errorf("%s: there is no key %q", key, part)
			}
		}
	}
	for key := range keys {
		if !seen[key] {
			t.Errorf("the key %s is not described", key)
		}
	}
}

func TestDescriptionSaysWhatDiffersFromTheDefault(t *testing.T) {
	for _, s := range config.Default().Describe() {
		if s.Changed {
			t.Errorf("%s of the default configuration is changed: %+v", s.Key, s)
		}
	}
	got := settingsOf(t, everything(t))
	for key, want := range map[string]config.Setting{
		"breaker.open_for":                            {Value: "1s", Default: "30s", Changed: true},
		"breaker.half_open_requests":                  {Value: "2", Default: "1", Changed: true},
		"models[0].backends[0].launch.boot_timeout":   {Value: "10m0s", Default: "15m0s", Changed: true},
		"models[1].backends[0].launch.boot_timeout":   {Value: "15m0s"},
		"models[1].max_logprobs":                      {Value: "20"},
		"models[1].backends[0].scheduling_policy":     {Value: "fcfs"},
		"server.trusted_proxies":                      {Value: "10.0.0.0/8, fd00::/8", Changed: true},
		"mail.smtp":                                   {Value: "smtps://mail.example.org:465", Changed: true},
		"models[0].id":                                {Value: "Llama_8b.v1-x", Changed: true},
		"console.feedback_webhook":                    {Value: "https://chat.example.org/***", Changed: true},
		"models[0].backends[0].launch.start":          {Value: "run (arguments: 7)", Changed: true},
		"console.saved_prompts.max_bytes_per_account": {Value: "5000000", Default: "104857600", Changed: true},
	} {
		want.Key = key
		if got[key] != want {
			t.Errorf("got %+v, want %+v", got[key], want)
		}
	}
}

func TestDescriptionMasksSecrets(t *testing.T) {
	text := `
console:
  feedback_webhook: https://chat.example.org/hook-LETMEIN?key=LETMEIN
  oidc: {issuer: "https://login.example.org", client_id: x, client_secret: LETMEIN}
notifications: {webhook: "https://user:LETMEIN@hooks.example.org/LETMEIN"}
mail: {smtp: "smtp://mail.example.org", from: a@example.org, username: u, password: LETMEIN}
models:
  - id: a
    checkpoint: a
    backends: [{url: "http://127.0.0.1:1", api_key: LETMEIN, launch: {start: [docker, -e, TOKEN=LETMEIN], stop: [docker, LETMEIN]}}]
`
	c, err := config.Parse("config.yaml", []byte(text), noVariables)
	if err != nil {
		t.Fatal(err)
	}
	described := fmt.Sprint(c.Describe())
	if strings.Contains(described, "LETMEIN") {
		t.Errorf("the description has a secret: %s", described)
	}
	for _, key := range []string{"mail.password", "console.oidc.client_secret", "models[0].backends[0].api_key"} {
		if s := settingsOf(t, c)[key]; s.Value != "***" || !s.Changed {
			t.Errorf("%s: got %+v, want it masked and changed", key, s)
		}
	}
}
