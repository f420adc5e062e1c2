//go:build e2e

package e2e_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"basegate/internal/postgrestest"
)

// demoArgs returns the arguments of a demo with its data in a folder and, on PostgreSQL, in a new empty database.
func demoArgs(t *testing.T, dir string) []string {
	t.Helper()
	args := []string{"demo", "--listen", "127.0.0.1:0", "--data", dir}
	if onPostgres {
		server := postgrestest.Shared(t)
		name := server.Create(t, "")
		t.Cleanup(func() { server.Exec(t, "postgres", "DROP DATABASE "+name+" WITH (FORCE)") })
		args = append(args, "--database-url", server.URL(name))
	}
	return args
}

// What the demo prints works: its commands, the key at its models, the password at its console.
func TestDemoDoesWhatItSays(t *testing.T) {
	dir := t.TempDir()
	p := startProcess(t, demoArgs(t, dir)...)
	p.waitForOutput(p.stdout, `Ctrl-C`)
	said := p.stdout.String()
	find := func(t *testing.T, pattern string) []string {
		t.Helper()
		found := regexp.MustCompile(pattern).FindStringSubmatch(said)
		if found == nil {
			t.Fatalf("it does not say %q:\n%s", pattern, said)
		}
		return found
	}

	t.Run("curl", func(t *testing.T) {
		if _, err := exec.LookPath("curl"); err != nil {
			t.Skip("curl is not installed")
		}
		lines := find(t, `(?m)^  (curl -s .*)$(?s:.*)^  (curl -sN .*)$`)
		out, err := exec.CommandContext(t.Context(), "sh", "-c", lines[1]).CombinedOutput()
		var got struct{ Choices []struct{ Text string } }
		if err != nil || json.Unmarshal(out, &got) != nil || len(got.Choices) != 1 || got.Choices[0].Text == "" {
			t.Errorf("%s\ngot %v: %s", lines[1], err, out)
		}
		out, err = exec.CommandContext(t.Context(), "sh", "-c", lines[2]).CombinedOutput()
		if err != nil || !strings.HasSuffix(string(out), "data: [DONE]\n\n") {
			t.Errorf("%s\ngot %v: %s", lines[2], err, out)
		}
	})

	t.Run("models of the documentation", func(t *testing.T) {
		found := find(t, `base URL +(\S+)\s+key +(\S+)`)
		g := &gateway{t: t, secret: found[2]}
		var models struct {
			Data []struct{ ID, Checkpoint, Status string }
		}
		must(t, json.Unmarshal([]byte(g.get(found[1], "/models").body), &models))
		want := map[string]string{
			"llama-8b":     "meta-llama/Llama-3.1-8B",
			"llama-405b":   "meta-llama/Llama-3.1-405B",
			"trinity-base": "arcee-ai/Trinity-Large-TrueBase",

			"llama-8b-instruct": "meta-llama/Llama-3.1-8B-Instruct",
		}
		for _, m := range models.Data {
			if want[m.ID] != m.Checkpoint || m.Status != "warm" {
				t.Errorf("wrong checkpoint or status: %+v", m)
			}
			delete(want, m.ID)
		}
		if len(want) > 0 {
			t.Errorf("missing models: %v", want)
		}
	})

	t.Run("other commands with its configuration", func(t *testing.T) {
		config := find(t, regexp.QuoteMeta(binary)+` key list --config (\S+)`)[1]
		if want := filepath.Join(dir, "config.yaml"); config != want {
			t.Errorf("configuration in %s, want %s", config, want)
		}
		if out, stderr, code := runCommand(t, "key", "list", "--config", config); code != 0 || !strings.Contains(out, "demo@example.org") {
			t.Errorf("key list: exit code %d\n%s%s", code, out, stderr)
		}
		if out, stderr, code := runCommand(t, "check", "--config", config); code != 0 {
			t.Errorf("check: exit code %d\n%s%s", code, out, stderr)
		}
	})

	t.Run("console", func(t *testing.T) {
		found := find(t, `console +(\S+)\n +sign in +(\S+) +(\S+)`)
		form := url.Values{"email": {found[2]}, "password": {found[3]}}
		jar, err := cookiejar.New(nil)
		must(t, err)
		browser := &http.Client{Jar: jar, Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := browser.PostForm(found[1]+"sign-in", form)
		must(t, err)
		defer resp.Body.Close()
		page, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(page), "<h1>Dashboard</h1>") {
			t.Errorf("want the dashboard, got %d, %v: %s", resp.StatusCode, err, page)
		}
	})
}

func TestDemoRestartsOnItsExistingData(t *testing.T) {
	args := demoArgs(t, t.TempDir())
	var secrets []string
	for _, stop := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		p := startProcess(t, args...)
		found := p.waitForOutput(p.stdout, `address +(\S+)(?s:.*?)key +(\S+)(?s:.*)Ctrl-C`)
		secrets = append(secrets, found[2])
		for _, secret := range secrets {
			got, err := post(found[1], secret, `{"model": "trinity-base", "prompt": "Once", "max_tokens": 1}`)
			if err != nil || got.status != http.StatusOK {
				t.Errorf("got %v, %d %s, want 200", err, got.status, got.body)
			}
		}
		p.signal(stop)
		if code := p.waitExit(); code != 0 {
			t.Errorf("%v: exit code %d, want 0", stop, code)
		}
	}
}
