//go:build e2e

package e2e_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"basegate/internal/loopback"
	"basegate/internal/poll"
	"basegate/mockvllm"
)

var updateBadDay = flag.Bool("update-bad-day", false, "rewrite the outputs of docs/operations/bad-day.md")

const badDayPage = "../docs/operations/bad-day.md"

// TestEveryCommandOfTheBadDayWorks runs the console blocks of the page, one incident after another, against real gateways
// and mocks. What the commands print must be what the page shows, except for times, ids and figures.
func TestEveryCommandOfTheBadDayWorks(t *testing.T) {
	text, err := os.ReadFile(badDayPage)
	must(t, err)
	sections := strings.Split(string(text), "\n## ")
	ran := map[string]bool{}
	t.Run("incidents", func(t *testing.T) { // returns after the parallel subtests
		for i, section := range sections {
			title, _, _ := strings.Cut(section, "\n")
			if !strings.Contains(section, "```") {
				continue
			}
			begin, known := badDayIncidents[title]
			if !known {
				t.Errorf("no incident of the test runs the commands of %q", title)
				continue
			}
			ran[title] = true
			t.Run(title, func(t *testing.T) {
				t.Parallel()
				sections[i] = begin(t).runSection(section)
			})
		}
	})
	for title := range badDayIncidents {
		if !ran[title] {
			t.Errorf("the page has no commands for %q", title)
		}
	}
	if *updateBadDay {
		must(t, os.WriteFile(badDayPage, []byte(strings.Join(sections, "\n## ")), 0o644))
	}
}

// badDayIncidents are the incidents by their headings. Each function brings a gateway into the state in which the section
// begins.
var badDayIncidents = map[string]func(*testing.T) *incident{
	"09:12 The disk is full":                       beginFullDisk,
	"10:40 A key leaks while the file is edited":   beginLeakedKey,
	"12:05 vLLM serves another checkpoint":         beginWrongCheckpoint,
	"14:30 The database is damaged":                beginDamagedDatabase,
	"16:00 The certificate expired":                beginExpiredCertificate,
	"17:45 A machine with two backends disappears": beginLostBackend,
}

// incident is a gateway of the page and what stands for its machine.
type incident struct {
	t       *testing.T
	env     *environment
	gateway *gateway
	bin     string // folder of the commands that stand for those of the machine
	certs   string
	backups string
	logs    []string // files of all processes of the gateway
	gpu     map[string]*mockvllm.Process
	addr    map[string]string // of the mocks, also of those that have ended
	extra   []string          // environment variables
}

const badDayConfig = `server:
  listen: 127.0.0.1:0
  admin_listen: 127.0.0.1:0%s
database:
  path: %s
probe: {interval: 100ms, timeout: 20s}
models:
  - id: llama-3-8b
    checkpoint: meta-llama/Llama-3.1-8B
    backends:
      - {name: gpu1, url: "http://%s"}
      - {name: gpu2, url: "http://%s"}
  - id: pythia
    checkpoint: EleutherAI/pythia-12b
    backends:
      - {name: gpu3, url: "http://%s"}
`

// badDayModels are the checkpoints of the mocks.
var badDayModels = map[string]string{
	"gpu1": "meta-llama/Llama-3.1-8B", "gpu2": "meta-llama/Llama-3.1-8B", "gpu3": "EleutherAI/pythia-12b",
}

// newIncident starts the mocks and writes the configuration.
func newIncident(t *testing.T, server, database string) *incident {
	t.Helper()
	dir := t.TempDir()
	in := &incident{
		t: t, bin: filepath.Join(dir, "bin"), backups: filepath.Join(dir, "backups"),
		gpu: map[string]*mockvllm.Process{}, addr: map[string]string{},
	}
	for _, folder := range []string{in.bin, in.backups, filepath.Join(dir, "etc"), filepath.Join(dir, "var")} {
		must(t, os.Mkdir(folder, 0o700))
	}
	if database == "" {
		database = filepath.Join(dir, "var", "basegate.db")
	}
	t.Cleanup(func() {
		for name := range in.gpu {
			in.stopGPU(name)
		}
	})
	for name := range badDayModels {
		in.startGPU(name, badDayModels[name])
	}
	in.env = &environment{t: t, dir: dir, config: filepath.Join(dir, "etc", "config.yaml"), email: "ada@example.org", database: database}
	writeFile(t, in.env.config, fmt.Sprintf(badDayConfig, server, database, in.addr["gpu1"], in.addr["gpu2"], in.addr["gpu3"]))
	in.env.run("account", "create", in.env.email)
	in.gateway = in.env.serveWithKey(in.env.createKey("laptop"))
	in.tool("basegate", "exec "+binary+` "$@"`)
	in.noteLog()
	return in
}

// startGPU starts a mock, at its former address if it ran before.
func (in *incident) startGPU(name, model string) {
	in.t.Helper()
	address := in.addr[name]
	if address == "" {
		address = loopback.Address(in.t)
	}
	var mock *mockvllm.Process
	poll.Until(in.t, "the mock's address is free", func() (free bool) { // a child has its former socket until it executes its program
		var err error
		if mock, err = mockvllm.Start(in.t.Context(), address, mockvllm.Options{Models: []string{model}}); errors.Is(err, syscall.EADDRINUSE) {
			return false
		}
		must(in.t, err)
		return true
	})
	in.gpu[name], in.addr[name] = mock, strings.TrimPrefix(mock.URL(), "http://")
}

// stopGPU stops a mock.
func (in *incident) stopGPU(name string) {
	in.t.Helper()
	must(in.t, in.gpu[name].Close())
	delete(in.gpu, name)
}

// tool writes a command that stands for one of the machine.
func (in *incident) tool(name, script string) {
	in.t.Helper()
	must(in.t, os.WriteFile(filepath.Join(in.bin, name), []byte("#!/bin/sh\n"+script+"\n"), 0o700))
}

// noteLog makes journalctl print the log of the gateway's process too.
func (in *incident) noteLog() {
	in.logs = append(in.logs, in.gateway.stderr.file.Name())
	in.tool("journalctl", "cat "+strings.Join(in.logs, " "))
}

// start starts the gateway again.
func (in *incident) start() {
	in.t.Helper()
	in.gateway = in.env.serveWithKey(in.gateway.secret)
	in.noteLog()
}

func (in *incident) stop() {
	in.t.Helper()
	in.gateway.signal(syscall.SIGTERM)
	in.gateway.waitExit()
}

func beginFullDisk(t *testing.T) *incident {
	t.Helper()
	dir := tmpfsDir(t)
	in := newIncident(t, "", filepath.Join(dir, "basegate.db"))
	in.extra = []string{"DISK=" + dir}
	os.WriteFile(filepath.Join(dir, "core.1207"), make([]byte, 32<<20), 0o600) // as much as fits
	return in
}

func beginLeakedKey(t *testing.T) *incident {
	t.Helper()
	in := newIncident(t, "", "")
	in.gateway.complete(strings.Replace(smallRequest, `"m"`, `"llama-3-8b"`, 1))
	text, err := os.ReadFile(in.env.config)
	must(t, err)
	writeFile(t, in.env.config, strings.Replace(string(text), "probe:", "limits: {concurency_per_key: 8}\nprobe:", 1))
	in.gateway.signal(syscall.SIGHUP)
	in.gateway.waitForOutput(in.gateway.stderr, "reload refused")
	return in
}

func beginWrongCheckpoint(t *testing.T) *incident {
	t.Helper()
	in := newIncident(t, "", "")
	in.stopGPU("gpu3")
	in.startGPU("gpu3", "EleutherAI/pythia-1.4b")
	in.gateway.waitForOutput(in.gateway.stderr, "another checkpoint")
	return in
}

func beginDamagedDatabase(t *testing.T) *incident {
	t.Helper()
	in := newIncident(t, "", "")
	in.gateway.complete(strings.Replace(smallRequest, `"m"`, `"llama-3-8b"`, 1))
	in.env.run("backup", filepath.Join(in.backups, "basegate-2026-11-22.db"))
	in.stop()
	text, err := os.ReadFile(in.env.database)
	must(t, err)
	for i := range text[4096:] { // all pages but the first
		text[4096+i] = 0xa5
	}
	must(t, os.WriteFile(in.env.database, text, 0o600))
	in.gateway.process = startProcess(t, "serve", "--config", in.env.config)
	if code := in.gateway.waitExit(); code != 1 {
		t.Fatalf("the gateway starts with a damaged database: exit code %d", code)
	}
	in.noteLog()
	return in
}

func beginExpiredCertificate(t *testing.T) *incident {
	t.Helper()
	cert, key := serverCertificate(t, time.Now().Add(-time.Hour))
	in := newIncident(t, fmt.Sprintf("\n  tls: {cert: %s, key: %s}", cert, key), "")
	renewed, renewedKey := serverCertificate(t, time.Now().Add(90*24*time.Hour))
	roots := filepath.Join(t.TempDir(), "roots.pem")
	var all []byte
	for _, path := range []string{cert, renewed} {
		text, err := os.ReadFile(path)
		must(t, err)
		all = append(all, text...)
	}
	must(t, os.WriteFile(roots, all, 0o600))
	in.certs = filepath.Dir(cert)
	in.extra = []string{"CURL_CA_BUNDLE=" + roots}
	in.tool("certbot", fmt.Sprintf("mv %s %s && mv %s %s", renewedKey, key, renewed, cert))
	in.gateway.url = strings.Replace(in.gateway.url, "http:", "https:", 1)
	return in
}

// serverCertificate returns the files of a certificate of this machine that is valid until the given time.
func serverCertificate(t *testing.T, end time.Time) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(end.Unix()), Subject: pkix.Name{CommonName: "gate " + end.String()}, NotAfter: end,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	must(t, err)
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	must(t, err)
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	writeFile(t, cert, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	writeFile(t, key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded})))
	return cert, key
}

func beginLostBackend(t *testing.T) *incident {
	t.Helper()
	in := newIncident(t, "", "")
	for _, name := range []string{"gpu2", "gpu3"} {
		in.stopGPU(name)
	}
	in.gateway.waitForOutput(in.gateway.stderr, "unreachable")
	return in
}

// systemctl does what systemd would do.
func (in *incident) systemctl(verb, unit string) {
	in.t.Helper()
	switch verb + " " + unit {
	case "reload basegate":
		in.gateway.signal(syscall.SIGHUP)
	case "start basegate":
		in.start()
	case "restart vllm-pythia":
		in.stopGPU("gpu3")
		in.startGPU("gpu3", badDayModels["gpu3"])
	default:
		in.t.Fatalf("the test knows no systemctl %s %s", verb, unit)
	}
}

// names returns what the page calls the addresses and folders of the test, in pairs of the page's and the real name.
func (in *incident) names() [][2]string {
	host := strings.TrimPrefix(strings.TrimPrefix(in.gateway.url, "http://"), "https://")
	all := [][2]string{
		{"/var/lib/basegate", filepath.Dir(in.env.database)},
		{"/etc/basegate", filepath.Dir(in.env.config)},
		{"/backup", in.backups},
		{"https://gate.example.org", "https://" + host},
		{"127.0.0.1:8080", host},
		{"127.0.0.1:9090", strings.TrimPrefix(in.gateway.admin, "http://")},
		{"acs-bm-xJj7qU", in.gateway.secret[:len("acs-bm-xJj7qU")]},
	}
	if in.certs != "" {
		all = append(all, [2]string{"/etc/letsencrypt/live", in.certs})
	}
	for name, address := range in.addr {
		all = append(all, [2]string{name + ":8000", address})
	}
	return all
}

// runSection runs the commands of a section and returns it with their outputs.
func (in *incident) runSection(section string) string {
	in.t.Helper()
	parts := strings.Split(section, "```console\n")
	for i, part := range parts[1:] {
		block, rest, found := strings.Cut(part, "```")
		if !found {
			in.t.Fatal("a block has no end")
		}
		var out strings.Builder
		for _, command := range regexp.MustCompile(`(?m)^\$ `).Split(block, -1)[1:] {
			line, want, _ := strings.Cut(command, "\n")
			fmt.Fprintf(&out, "$ %s\n%s", line, in.runLine(line, want))
		}
		parts[i+1] = out.String() + "```" + rest
	}
	return strings.Join(parts, "```console\n")
}

// repeatable matches commands that change nothing. They are repeated until they print what the page shows, because a
// gateway needs a moment to see a change.
var repeatable = regexp.MustCompile(`^(curl|journalctl|basegate (gateway|check|model list|key list|usage))\b`)

// runLine runs a command, whose output must be as wanted, and returns what to write on the page.
func (in *incident) runLine(line, want string) string {
	in.t.Helper()
	if words := strings.Fields(line); words[0] == "systemctl" {
		in.systemctl(words[1], words[2])
		return want
	}
	pattern := outputPattern(want)
	got := ""
	ok := func() bool {
		got = in.shell(line)
		return pattern.MatchString(squeeze(got))
	}
	limit := 5 * time.Minute // also for a machine whose disk stalls
	switch {
	case *updateBadDay && want == "":
		limit = time.Second
	case *updateBadDay:
		limit = time.Minute
	}
	if tryUntil(ok, limit, repeatable.MatchString(line)) {
		return want
	}
	if !*updateBadDay {
		in.t.Errorf("$ %s\ngot:\n%s\nthe page shows:\n%s", line, got, want)
		return want
	}
	return got
}

// tryUntil calls ok until it returns true or the limit has passed, or only once.
func tryUntil(ok func() bool, limit time.Duration, again bool) bool {
	deadline := time.Now().Add(limit)
	pause := time.NewTicker(100 * time.Millisecond)
	defer pause.Stop()
	for !ok() {
		if !again || time.Now().After(deadline) {
			return false
		}
		<-pause.C
	}
	return true
}

// shell runs a line and returns what it prints, with the names of the page.
func (in *incident) shell(line string) string {
	in.t.Helper()
	names := in.names()
	for _, n := range names {
		line = strings.ReplaceAll(line, n[0], n[1])
	}
	cmd := exec.CommandContext(in.t.Context(), "bash", "-c", line)
	cmd.Dir = in.env.dir
	cmd.Env = append(os.Environ(), append(in.extra, "PATH="+in.bin+":"+os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC",
		"KEY="+in.gateway.secret, "BASEGATE_CONFIG="+in.env.config)...)
	out, err := cmd.CombinedOutput()
	if err != nil && !errors.As(err, new(*exec.ExitError)) {
		in.t.Fatal(err)
	}
	// The warning of check about a Docker socket depends on the machine that runs the test.
	text := regexp.MustCompile(`(?m)^docker +warning .*\n`).ReplaceAllString(string(out), "")
	slices.SortStableFunc(names, func(a, b [2]string) int { return len(b[1]) - len(a[1]) })
	for _, n := range names {
		text = strings.ReplaceAll(text, n[1], n[0])
	}
	text = regexp.MustCompile(`acs-bm-\w{20,}`).ReplaceAllString(text, "acs-bm-…")
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return text
}

// squeeze removes the alignment of tables.
func squeeze(text string) string {
	return regexp.MustCompile(`[ \t]+`).ReplaceAllString(strings.TrimSpace(text), " ")
}

// variables match what differs from run to run: times, ids and numbers of processes. All else is written as "…".
var variables = []string{
	`[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2})?(?:\.[0-9]+)?Z?`,
	`[0-9]{4}-[0-9]{2}-[0-9]{2}`, `[0-9]{8}T[0-9]{6}Z`,
	`acs-bm-\w+`, `req_[0-9A-Za-z_-]+`, `acc_[0-9A-Za-z]+`, `key_[0-9A-Za-z]+`, `process [0-9]+`, `in [0-9]+ days?`,
}

var anyVariable = regexp.MustCompile(strings.Join(variables, "|"))

// outputPattern returns the pattern of an output that the page shows.
func outputPattern(want string) *regexp.Regexp {
	var pattern strings.Builder
	literal := func(text string) {
		pattern.WriteString(strings.ReplaceAll(regexp.QuoteMeta(text), "…", ".*"))
	}
	want = squeeze(want)
	last := 0
	for _, at := range anyVariable.FindAllStringIndex(want, -1) {
		literal(want[last:at[0]])
		for _, v := range variables {
			if regexp.MustCompile("^(?:" + v + ")$").MatchString(want[at[0]:at[1]]) {
				pattern.WriteString(v)
				break
			}
		}
		last = at[1]
	}
	literal(want[last:])
	return regexp.MustCompile(`(?s)^` + pattern.String() + `$`)
}
