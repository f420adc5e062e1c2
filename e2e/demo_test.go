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
	"time"

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

// startDemo starts the demo and returns its base URL and its key.
func startDemo(t *testing.T) (p *process, base, secret string) {
	t.Helper()
	p = startProcess(t, demoArgs(t, t.TempDir())...)
	found := p.waitForOutput(p.stdout, `base URL +(\S+)\s+key +(\S+)(?s:.*)Ctrl-C`)
	return p, found[1], found[2]
}

func TestDemoServesACompletion(t *testing.T) {
	start := time.Now()
	_, base, secret := startDemo(t)
	g := &gateway{t: t, secret: secret}
	got := g.do(g.request(t.Context(), http.MethodPost, base+"/completions",
		`{"model": "llama-8b", "prompt": "The capital of France is", "max_tokens": 4}`))
	if got.status != http.StatusOK {
		t.Fatalf("got %d %s, want 200", got.status, got.body)
	}
	t.Logf("the first completion came %v after the start", time.Since(start).Round(time.Millisecond)) // 10 seconds are promised
}

func TestDemoPrintsWorkingCurlCommands(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl is not installed")
	}
	p, _, _ := startDemo(t)
	lines := p.waitForOutput(p.stdout, `(?m)^  (curl -s .*)$(?s:.*)^  (curl -sN .*)$`)

	out, err := exec.CommandContext(t.Context(), "sh", "-c", lines[1]).CombinedOutput()
	var got struct{ Choices []struct{ Text string } }
	if err != nil || json.Unmarshal(out, &got) != nil || len(got.Choices) != 1 || got.Choices[0].Text == "" {
		t.Errorf("%s\ngot %v: %s", lines[1], err, out)
	}
	out, err = exec.CommandContext(t.Context(), "sh", "-c", lines[2]).CombinedOutput()
	if err != nil || !strings.HasSuffix(string(out), "data: [DONE]\n\n") {
		t.Errorf("%s\ngot %v: %s", lines[2], err, out)
	}
}

func TestDemoServesTheModelsOfTheDocumentation(t *testing.T) {
	_, base, secret := startDemo(t)
	g := &gateway{t: t, secret: secret}
	var models struct {
		Data []struct{ ID, Checkpoint, Status string }
	}
	if err := json.Unmarshal([]byte(g.get(base, "/models").body), &models); err != nil {
		t.Fatal(err)
	}
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
}

func TestOtherCommandsWorkWithTheDemosConfiguration(t *testing.T) {
	dir := t.TempDir()
	p := startProcess(t, demoArgs(t, dir)...)
	config := p.waitForOutput(p.stdout, regexp.QuoteMeta(binary)+` key list --config (\S+)`)[1]
	if want := filepath.Join(dir, "config.yaml"); config != want {
		t.Errorf("configuration in %s, want %s", config, want)
	}
	if out, stderr, code := runCommand(t, "key", "list", "--config", config); code != 0 || !strings.Contains(out, "demo@example.org") {
		t.Errorf("key list: exit code %d\n%s%s", code, out, stderr)
	}
	if out, stderr, code := runCommand(t, "check", "--config", config); code != 0 {
		t.Errorf("check: exit code %d\n%s%s", code, out, stderr)
	}
}

func TestDemoExitsOnInterrupt(t *testing.T) {
	p, _, _ := startDemo(t)
	p.signal(syscall.SIGINT)
	if code := p.waitExit(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}

func TestDemoRestartsOnItsExistingData(t *testing.T) {
	args := demoArgs(t, t.TempDir())
	var secrets []string
	for range 2 {
		p := startProcess(t, args...)
		found := p.waitForOutput(p.stdout, `address +(\S+)(?s:.*?)key +(\S+)(?s:.*)Ctrl-C`)
		secrets = append(secrets, found[2])
		for _, secret := range secrets {
			got, err := post(found[1], secret, `{"model": "trinity-base", "prompt": "Once", "max_tokens": 1}`)
			if err != nil || got.status != http.StatusOK {
				t.Errorf("got %v, %d %s, want 200", err, got.status, got.body)
			}
		}
		p.signal(syscall.SIGTERM)
		if code := p.waitExit(); code != 0 {
			t.Errorf("exit code %d, want 0", code)
		}
	}
}

func TestDemoSignsIntoTheConsole(t *testing.T) {
	p, _, _ := startDemo(t)
	found := p.waitForOutput(p.stdout, `console +(\S+)\n +sign in +(\S+) +(\S+)`)
	form := url.Values{"email": {found[2]}, "password": {found[3]}}
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	browser := &http.Client{Jar: jar, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := browser.PostForm(found[1]+"sign-in", form)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(page), "<h1>Dashboard</h1>") {
		t.Errorf("want the dashboard, got %d, %v: %s", resp.StatusCode, err, page)
	}
}
