//go:build e2e

package e2e_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"basegate/internal/loopback"
	"basegate/internal/poll"
	"basegate/mockvllm"
)

// brokenConfiguration is not YAML but for its section of the database, which %s stands for.
const brokenConfiguration = "server: {listen: \"127.0.0.1:0\"\n%s\nmodels: [\n"

// page requests a page of the console and returns its HTML.
func (g *gateway) page(browser *http.Client, path string) string {
	g.t.Helper()
	resp, err := browser.Get(g.url + path)
	must(g.t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	must(g.t, err)
	if resp.StatusCode != http.StatusOK {
		g.t.Fatalf("%s: got %d", path, resp.StatusCode)
	}
	return string(text)
}

// sample returns the value of a metric without labels.
func (g *gateway) sample(name string) string {
	g.t.Helper()
	match := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindStringSubmatch(g.get(g.admin, "/metrics").body)
	if match == nil {
		g.t.Fatalf("there is no metric %s", name)
	}
	return match[1]
}

// A leaked key must be paused at once, also while the configuration has a mistake.
func TestKeyIsPausedDespiteMistakesInTheConfiguration(t *testing.T) {
	g, _ := startGateway(t, settings{}, mockvllm.Options{})
	prefix := g.secret[:12]
	database, _ := g.databaseConfig(settings{})
	writeFile(t, g.config, fmt.Sprintf(brokenConfiguration, database))
	for _, command := range [][]string{
		{"key", "list"},
		{"account", "list"},
		{"usage"},
		{"database", "check"},
		{"key", "set", prefix, "--concurrency", "3"},
		{"key", "pause", prefix},
	} {
		_, stderr, code := runCommand(t, append(command, "--config", g.config)...)
		if code != 0 || !strings.Contains(stderr, "the configuration has mistakes, which basegate check lists") {
			t.Errorf("%s: exit code %d: %s", command, code, stderr)
		}
	}
	poll.Until(t, "the paused key is refused", func() bool { return g.complete(smallRequest).status == http.StatusUnauthorized })
	if _, stderr, code := runCommand(t, "check", "--config", g.config); code != 1 || !strings.Contains(stderr, g.config+":") {
		t.Errorf("check: exit code %d: %s", code, stderr)
	}
	if _, stderr, code := runCommand(t, "key", "resume", prefix, "--config", g.config); code != 0 {
		t.Fatalf("resume: exit code %d: %s", code, stderr)
	}
	poll.Until(t, "the resumed key is accepted", func() bool { return g.complete(smallRequest).status == http.StatusOK })
}

func TestRefusedReloadIsReported(t *testing.T) {
	var s settings
	if onPostgres { // the database does not tell a command where the gateway listens
		s.adminListen = loopback.Address(t)
	}
	g, mock := startGateway(t, s, mockvllm.Options{})
	const successful, timestamp = "basegate_config_last_reload_successful", "basegate_config_last_reload_success_timestamp_seconds"
	if got := g.sample(successful); got != "1" {
		t.Errorf("after the start: got %s, want 1", got)
	}
	before := g.sample(timestamp)
	g.run("account", "create", "root@example.org", "--admin")
	root := g.signInAs("root@example.org")
	refused := s
	refused.extra = "nonsense: 1"
	g.writeConfig(refused, mock.URL())
	g.signal(syscall.SIGHUP)
	g.waitForOutput(g.stderr, `reload refused`)
	if got, at := g.sample(successful), g.sample(timestamp); got != "0" || at != before {
		t.Errorf("after a refused reload: got %s at %s, want 0 at %s", got, at, before)
	}
	if got := g.complete(smallRequest); got.status != http.StatusOK {
		t.Errorf("a completion by the old configuration: got %d %s, want 200", got.status, got.body)
	}
	if got := g.get(g.admin, "/readyz"); got.status != http.StatusOK || !strings.Contains(got.body, "note: the configuration has mistakes") {
		t.Errorf("/readyz: got %d %s", got.status, got.body)
	}
	if page := g.page(root, "/admin/models"); !strings.Contains(page, "The new configuration was refused at") || !strings.Contains(page, "nonsense: unknown key") {
		t.Errorf("the operator's page does not say so:\n%s", page)
	}
	awaitCommand(t, "gateway status says that the configuration was refused", func(stdout, stderr string, code int) bool {
		return code == 1 && regexp.MustCompile(`\n +REFUSED at .* UTC:\n.*nonsense: unknown key`).MatchString(stdout) && strings.Contains(stderr, "was refused")
	}, "gateway", "status", "--config", g.config)
	g.writeConfig(s, mock.URL())
	g.signal(syscall.SIGHUP)
	g.waitForOutput(g.stderr, `configuration reloaded`)
	awaitCommand(t, "gateway status says so no more", func(stdout, _ string, code int) bool {
		return code == 0 && !strings.Contains(stdout, "REFUSED")
	}, "gateway", "status", "--config", g.config)
	if got, at := g.sample(successful), g.sample(timestamp); got != "1" || at == before {
		t.Errorf("after a reload: got %s at %s, want 1 and another time", got, at)
	}
	if page := g.page(root, "/admin/models"); strings.Contains(page, "was refused") {
		t.Error("the operator's page still says that the configuration was refused")
	}
}

// The output of a launch command names hosts, paths and images of the operator. It is for the log and for administrators.
func TestOutputOfALaunchCommandStaysWithTheOperator(t *testing.T) {
	const secret = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock"
	start := filepath.Join(t.TempDir(), "compose-up")
	must(t, os.WriteFile(start, []byte("#!/bin/sh\necho '"+secret+"' >&2\nexit 17\n"), 0o700))
	model := fmt.Sprintf(`{id: m, checkpoint: c, cold_wait: 10s, backends: [{name: b, url: "http://127.0.0.1:1", launch: {start: [%q], stop: ["true"]}}]}`, start)
	g := newEnvironment(t, settings{models: model}).serve()
	g.run("account", "create", "root@example.org", "--admin")
	user, root := g.signInAs(g.email), g.signInAs("root@example.org")
	answers := map[string]string{"completion": g.complete(smallRequest).body}
	g.waitForOutput(g.stderr, secret)
	g.waitForOutput(g.stderr, `"to":"failed"`)
	answers["in the cooldown"] = g.complete(smallRequest).body
	answers["stream"] = g.complete(`{"model": "m", "prompt": "x", "stream": true}`).body
	kept := g.request(t.Context(), http.MethodPost, g.url+"/v1/completions", `{"model": "m", "prompt": "x", "stream": true}`)
	kept.Header.Set("X-Acs-Keepalive", "5")
	answers["stream that is kept alive"] = g.do(kept).body
	for _, path := range []string{"/v1/models", "/v1/models/m", "/v1/key", "/readyz"} {
		answers[path] = g.get(g.url, path).body
	}
	for _, path := range []string{"/dashboard", "/workbench", "/usage/requests"} {
		answers[path] = g.page(user, path)
	}
	for _, browser := range []*http.Client{user, root} {
		resp, err := browser.Post(g.url+"/models/m/warm", "application/x-www-form-urlencoded", nil)
		must(t, err)
		text, err := io.ReadAll(resp.Body)
		must(t, err)
		resp.Body.Close()
		answers[fmt.Sprintf("warm %p", browser)] = string(text)
	}
	for what, text := range answers {
		for _, word := range []string{"Docker daemon", "docker.sock", "compose-up", "exit status"} {
			if strings.Contains(text, word) {
				t.Errorf("%s: contains %q: %s", what, word, text)
			}
		}
	}
	if !strings.Contains(g.page(root, "/admin/models"), "Cannot connect to the Docker daemon") {
		t.Error("the operator's page does not show the reason")
	}
	// It fails again if the requests above take longer than the half minute in which it is not tried.
	if !regexp.MustCompile(`basegate_backend_boot_failures_total\{backend="b",model="m"\} [1-9]`).MatchString(g.get(g.admin, "/metrics").body) {
		t.Error("the failed launch is not counted")
	}
}
