package config

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// The check methods report problems that no single value shows: duplicate names, and values that contradict each other.
// They run after the section has been decoded.

func (c *Config) check(v value) {
	postgres := c.Database.Postgres()
	bucket, inBucket := c.Files.Bucket()
	mistake := func(found bool, key, text string) {
		if found {
			v.child(key).errorf("%s", text)
		}
	}
	mistake((c.Server.TLS.Cert == "") != (c.Server.TLS.Key == ""), "server.tls",
		"cert and key go together: give both, or neither")
	mistake(c.Server.Listen == c.Server.AdminListen && !strings.HasSuffix(c.Server.Listen, ":0"), "server.admin_listen",
		"want an address other than server.listen's, got "+quote(c.Server.Listen)+" for both")
	mistake(c.Console.OIDC.Issuer != nil && c.Console.OIDC.ClientID == "", "console.oidc",
		"issuer needs client_id, as registered at the provider")
	mistake(c.Dialects.Eternalai && !c.Receipts.Enabled, "dialects.eternalai",
		"its responses carry receipts: set receipts.enabled to true")
	mistake(postgres && c.Files.URL == nil && c.Replay.Enabled, "replay.enabled",
		"responses are kept where files are: want files.url too")
	mistake(!postgres && c.Database.KeepRequests != 0, "database.keep_requests",
		"SQLite keeps all requests: want forever, or database.url")
	mistake(postgres && c.Database.Path != Default().Database.Path, "database.path",
		"database.url selects PostgreSQL: remove path, or url for SQLite")
	mistake(postgres && c.Database.Flush != 0, "database.flush",
		"database.url selects PostgreSQL, whose synchronous_commit decides this: remove flush")
	mistake(postgres && c.Files.URL == nil && c.Files.Shared, "files.shared",
		"want files.url with the folder that all gateways share")
	mistake(postgres && c.Files.URL != nil && !inBucket && !c.Files.Shared, "files.url",
		"gateways on one PostgreSQL database read each other's files: want s3://…, or files.shared: true "+
			"if all of them have this folder, as on NFS")
	if postgres && c.Files.URL == nil && !c.Files.Shared {
		v.child("database.url").warnf(
			"files.url is empty, and on PostgreSQL there is no folder beside the database: files and batches are not served")
	}
	if inBucket && bucket.Plaintext && !bucket.isLocal() {
		v.child("files.url").warnf("files travel to %s without TLS, prompts and completions among them", bucket.Endpoint)
	}
	c.checkModelNames(v)
}

// checkModelNames reports ids and aliases that occur twice, in one model or in two, and adapters with the name of a checkpoint.
func (c *Config) checkModelNames(v value) {
	first := map[string]int{}
	for i, m := range c.Models {
		v.child(fmt.Sprintf("models[%d].id", i)).checkUnique(first, m.ID, i, "two models of one id: %s is models[%d] already")
	}
	for i, m := range c.Models {
		for n, alias := range m.Aliases {
			v.child(fmt.Sprintf("models[%d].aliases[%d]", i, n)).checkUnique(first, alias, i,
				"an alias that is taken: %s is an id or alias of models[%d] already")
		}
	}
	for i, m := range c.Models {
		if len(m.Adapters) > m.MaxAdapters {
			v.child(fmt.Sprintf("models[%d].adapters", i)).errorf("want at most max_adapters, %d, got %d", m.MaxAdapters, len(m.Adapters))
		}
		for n, a := range m.Adapters {
			id := v.child(fmt.Sprintf("models[%d].adapters[%d].id", i, n))
			id.checkUnique(first, a.ID, i, "an adapter of a name that is taken: %s is an id, alias or adapter of models[%d] already")
			if taken := slices.IndexFunc(c.Models, func(m Model) bool { return m.IsServedAs(a.ID) }); taken >= 0 {
				id.errorf("an adapter of a name that is taken: models[%d] is served as %s", taken, quote(a.ID))
			}
		}
	}
}

// CheckAlias returns an error for what is no further name of a model, nor the id of an adapter.
func CheckAlias(id string) error {
	_, err := kinds["alias"].parse(&scalar{text: id, got: quote(id), isText: true})
	return err
}

// IsServedAs reports whether vLLM serves the model under a name, or loads it by that name.
func (m *Model) IsServedAs(name string) bool { return name == m.Checkpoint || name == m.Root }

// checkUnique reports a name that another item has already, in the words of format. first has the index of the item in
// which each name stands first.
func (v value) checkUnique(first map[string]int, name string, index int, format string) {
	if earlier, taken := first[name]; taken && name != "" {
		v.errorf(format, quote(name), earlier)
		return
	}
	first[name] = index
}

func (l *Limits) check(v value) {
	if !v.has("concurrency_per_account") {
		l.ConcurrencyPerAccount = min(keysWorth*l.ConcurrencyPerKey, math.MaxInt32)
	}
}

func (m *Model) check(v value) {
	first := map[string]int{}
	for i := range m.Backends {
		for _, b := range m.Backends[i].Expand() {
			v.child(fmt.Sprintf("backends[%d].name", i)).checkUnique(first, b.Name, i, "two backends of one name: %s is backends[%d] already")
		}
	}
	if !m.Chat && !m.Completions {
		v.child("completions").errorf("the model serves nothing: want chat: true with completions: false")
	}
	if len(m.WarmWindows) > 0 && !m.Managed() {
		v.child("warm_windows").warnf("no backend of this model has launch or sleep, so nothing can be kept warm")
	}
}

// ModelIDs returns the ids of the models.
func (c *Config) ModelIDs() []string {
	ids := make([]string, len(c.Models))
	for i := range c.Models {
		ids[i] = c.Models[i].ID
	}
	return ids
}

// Managed reports whether the gateway can start, stop or wake a backend of the model.
func (m *Model) Managed() bool {
	return slices.ContainsFunc(m.Backends, func(b Backend) bool { return b.Launch != nil || b.Sleep != nil })
}

func (b *Backend) check(v value) {
	if b.Name == "" && b.URL != nil {
		b.Name = b.URL.Host
	}
	if b.Replicas != nil && b.Launch == nil {
		v.child("replicas").errorf("want a launch section too, which starts them")
	}
}

func (r *Replicas) check(v value) {
	if r.Min > r.Max {
		v.child("min").errorf("want at most max, %d, got %d", r.Max, r.Min)
	}
}

func (l *Launch) check(v value) {
	for _, name := range []string{"start", "stop"} {
		if program, isText := v.child(name + "[0]").node.(*ast.StringNode); isText && program.Value == "" {
			v.child(name).errorf("want a program first, got an empty text")
		}
	}
	if l.BootTimeout < l.BootEstimate {
		v.child("boot_timeout").warnf("a boot times out (%s) before it is expected to end (%s)", l.BootTimeout, l.BootEstimate)
	}
}

func (w *Window) check(v value) {
	if w.From == w.To && v.child("from").isSound() && v.child("to").isSound() {
		v.child("to").errorf("the window ends when it begins; for the whole day write from 00:00 to 24:00")
	}
}
