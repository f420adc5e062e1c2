//go:build containers

package containers_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"basegate/internal/poll"
)

// basegateFails runs a command in the gateway's container, which must fail, and returns its output.
func (p *project) basegateFails(args ...string) string {
	p.t.Helper()
	out, err := p.tryCompose(append([]string{"exec", "-T", "gateway", "basegate"}, args...)...)
	if err == nil {
		p.t.Fatalf("basegate %s: no error: %s", strings.Join(args, " "), out)
	}
	return err.Error()
}

// restore stops the gateway, restores a backup in a container of its own, and starts the gateway. The backup - is read
// from the stream.
func (p *project) restore(backup string, stream io.Reader) {
	p.t.Helper()
	p.compose("stop", "gateway")
	p.stdin = stream
	p.compose("run", "--rm", "-T", "gateway", "restore", backup)
	p.stdin = nil
	p.compose("up", "-d", "--wait")
}

// accepts reports whether the gateway accepts a key.
func (g *gateway) accepts(secret string) bool {
	g.t.Helper()
	r := g.request("")
	r.Method, r.URL.Path = http.MethodGet, "/v1/models"
	r.Header.Set("Authorization", "Bearer "+secret)
	return send(g.t, r).status == http.StatusOK
}

// Backups go to the volume for them, or to the host by a pipe, and back, by the image alone: it has no shell, and what
// `docker compose cp` copies would belong to root.
func TestComposeBackupIsRestored(t *testing.T) {
	p := newProject(t, "e2e/containers/testdata/disk.override.yml")
	g := p.up()
	p.basegate("backup", "/backup/one.db")
	stream, err := p.tryCompose("exec", "-T", "gateway", "basegate", "backup", "-")
	if err != nil {
		t.Fatal(err)
	}
	later := parseSecret(t, p.basegate("key", "create", "--account", "ada@example.org", "--name", "later"))
	poll.Until(t, "the gateway accepts the later key", func() bool { return g.accepts(later) })
	if out := p.basegateFails("restore", "/backup/one.db"); !strings.Contains(out, "serves as a gateway, listening on") {
		t.Errorf("a restore while the gateway serves: %s", out)
	}
	if !g.accepts(later) {
		t.Error("the refused restore has changed the database")
	}
	for _, from := range []string{"/backup/one.db", "-"} {
		p.restore(from, strings.NewReader(stream))
		g.url = "http://" + p.compose("port", "gateway", "8080")
		if !g.accepts(g.secret) || g.accepts(later) {
			t.Errorf("after the restore of %s: accepts the key of the backup: %t, the later key: %t", from, g.accepts(g.secret), g.accepts(later))
		}
		later = parseSecret(t, p.basegate("key", "create", "--account", "ada@example.org", "--name", "even later"))
		poll.Until(t, "the gateway accepts the new key", func() bool { return g.accepts(later) })
	}
}
