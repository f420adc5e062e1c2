//go:build e2e

package e2e_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"basegate/internal/poll"
	"basegate/mockvllm"
)

// loadedProbe is a timeout of probes that a backend meets on a loaded machine too: check asks once.
const loadedProbe = "20s"

// check runs basegate check and returns its table and exit code.
func (e *environment) check() (table string, code int) {
	e.t.Helper()
	table, _, code = runCommand(e.t, "check", "--config", e.config)
	return table, code
}

// certificateUntil creates a certificate that expires at the given time, and its key.
func certificateUntil(t *testing.T, end time.Time) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: end}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	must(t, err)
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	must(t, err)
	cert, key = filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	writeFile(t, cert, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	writeFile(t, key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded})))
	return cert, key
}

func TestCheckReportsBadCertificates(t *testing.T) {
	now := time.Now()
	good, goodKey := certificateUntil(t, now.Add(90*24*time.Hour))
	soon, soonKey := certificateUntil(t, now.Add(20*24*time.Hour))
	old, oldKey := certificateUntil(t, now.Add(-time.Hour))
	mock := startMock(t, mockvllm.Options{})
	env := newEnvironment(t, settings{}, mock.URL())
	for _, test := range []struct {
		cert, key, want string
		code            int
	}{
		{good, goodKey, `certificate +ok +.*valid until`, 0},
		{soon, soonKey, `certificate +warning +.*expires in 19 days`, 0},
		{old, oldKey, `certificate +failed +.*has expired`, 1},
		{good, oldKey, `certificate +failed +.*private key does not match`, 1},
		{good, "/no/such/key.pem", `certificate +failed +server\.tls\.key: .*no such file`, 1},
	} {
		env.writeConfig(settings{server: fmt.Sprintf(", tls: {cert: %q, key: %q}", test.cert, test.key), probeTimeout: loadedProbe}, mock.URL())
		if table, code := env.check(); code != test.code || !regexp.MustCompile(test.want).MatchString(table) {
			t.Errorf("got exit code %d and\n%swant %d and %s", code, table, test.code, test.want)
		}
	}
}

func TestCheckWarnsOfSecretsThatOthersCanRead(t *testing.T) {
	env := newEnvironment(t, settings{probeTimeout: loadedProbe}, startMock(t, mockvllm.Options{}).URL())
	if table, code := env.check(); code != 0 || strings.Contains(table, "permissions") {
		t.Errorf("without a reason: exit code %d, %s", code, table)
	}
	secrets := filepath.Join(env.dir, ".env")
	writeFile(t, secrets, "VLLM_API_KEY=x\n")
	for path, mode := range map[string]os.FileMode{secrets: 0o644, env.database: 0o646, env.config: 0o646, env.dir: 0o757} {
		must(t, os.Chmod(path, mode))
	}
	table, code := env.check()
	if code != 0 {
		t.Errorf("exit code %d, want 0: warnings do not fail the check", code)
	}
	for _, want := range []string{"chmod o-r " + secrets, "chmod o-rw " + env.database, "chmod o-w " + env.config, "chmod o-w " + env.dir} {
		if !strings.Contains(table, want+"\n") {
			t.Errorf("there is no %q in\n%s", want, table)
		}
	}
}

// fakeModels is a backend that reports the model of the test.
func fakeModels(t *testing.T) (url string, model *atomic.Pointer[string]) {
	t.Helper()
	model = new(atomic.Pointer[string])
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			io.WriteString(w, `{"object":"list","data":[`+*model.Load()+`]}`)
		case "/version":
			io.WriteString(w, `{"version":"0.24.0"}`)
		case "/tokenize":
			io.WriteString(w, `{"count":1,"tokens":[1]}`)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL, model
}

// A backend that serves other weights under the right name would change every result without a sign.
func TestBackendWithAnotherCheckpointIsReported(t *testing.T) {
	url, model := fakeModels(t)
	set := func(id, root string) {
		text := fmt.Sprintf(`{"id":%q,"root":%q,"max_model_len":4096}`, id, root)
		model.Store(&text)
	}
	set(checkpoint, checkpoint)
	strict := fmt.Sprintf(`{id: m, checkpoint: %s, root: %s, backends: [{name: b, url: %q}]}`, checkpoint, checkpoint, url)
	g := newEnvironment(t, settings{probeTimeout: loadedProbe, models: strict}).serve()
	metric := func(value string) func() bool {
		return func() bool {
			return strings.Contains(g.get(g.admin, "/metrics").body, `basegate_backend_wrong_checkpoint{backend="b",model="m"} `+value+"\n")
		}
	}
	ready := func() bool {
		return strings.Contains(g.get(g.admin, "/metrics").body, `basegate_backend_ready{backend="b",model="m"} 1`+"\n")
	}
	for _, other := range [][2]string{{checkpoint, "Qwen/Qwen3-0.6B-Base"}, {"Qwen/Qwen3-0.6B-Base", "Qwen/Qwen3-0.6B-Base"}} {
		set(checkpoint, checkpoint)
		poll.Until(t, "the backend is ready", func() bool { return ready() && metric("0")() })
		before := strings.Count(g.stderr.String(), "serves another checkpoint")
		set(other[0], other[1])
		poll.Until(t, "the backend is not ready", func() bool { return !ready() && metric("1")() })
		if table, code := g.check(); code != 1 || !strings.Contains(table, "start it with the configured model") {
			t.Errorf("%s: check: exit code %d: %s", other, code, table)
		}
		if got := strings.Count(g.stderr.String(), "serves another checkpoint") - before; got != 1 {
			t.Errorf("%s: logged %d times, want once", other, got)
		}
	}
	set(checkpoint, checkpoint)
	poll.Until(t, "the backend is ready again", func() bool { return ready() && metric("0")() })

	// Without a configured root, weights of another name may be a mirror, and are only reported.
	g.writeConfig(settings{probeTimeout: loadedProbe}, url)
	set(checkpoint, "mirror/Llama-3.1-8B")
	if table, code := g.check(); code != 0 || !strings.Contains(table, "set root: mirror/Llama-3.1-8B") {
		t.Errorf("a mirror: check: exit code %d: %s", code, table)
	}
	set(checkpoint, "/models/llama")
	if table, _ := g.check(); strings.Contains(table, "set root") {
		t.Errorf("a path: check: %s", table)
	}
}
