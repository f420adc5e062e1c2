package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"basegate/gateway/config"
)

const validModels = `models: [{id: m, checkpoint: c, backends: [{url: "http://127.0.0.1:1"}]}]` + "\n"

func loadPartial(t *testing.T, text string) *config.Partial {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := config.LoadPartial(path)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestDatabaseIsReadInSpiteOfMistakesElsewhere(t *testing.T) {
	const section = "database: {path: /data/x.db}\n"
	for name, text := range map[string]string{
		"no mistake":                    section + validModels,
		"an unknown key":                section + "nonsense: 1\n" + validModels,
		"a bad value":                   section + "limits: {concurrency_per_key: none}\n" + validModels,
		"no models":                     section,
		"an open bracket before":        "server: {listen: \"127.0.0.1:0\"\n" + section + validModels,
		"an open quote after":           section + "server:\n  public_url: \"http://x\n" + validModels,
		"a tab":                         "limits:\n\tconcurrency_per_key: 8\n" + section + validModels,
		"several lines and a comment":   "# top\nlimits: [\ndatabase:\n  # the file\n  path: /data/x.db\n" + validModels,
		"a quoted key after open quote": "log: {level: 'info}\n\"database\":\n  path: /data/x.db\n" + validModels,
		"Windows' line ends":            "limits: [\r\ndatabase:\r\n  path: /data/x.db\r\n",
		"not UTF-8":                     section + "precision: \xff\n" + validModels,
	} {
		p := loadPartial(t, text)
		if got, err := p.Config("database"); err != nil || got.Database.Path != "/data/x.db" {
			t.Errorf("%s: got %+v, error %v, want /data/x.db", name, got, err)
		}
		if hasMistake := name != "no mistake"; (p.Mistakes() != nil) != hasMistake {
			t.Errorf("%s: got the mistakes %v", name, p.Mistakes())
		}
	}
}

// A wrong database would be worse than none: a key would seem to be paused.
func TestDatabaseIsRefusedIfItIsDoubtful(t *testing.T) {
	for name, text := range map[string]string{
		"an unknown key in the section": "database: {pth: x.db}\n" + validModels,
		"a bad path":                    "database: {path: [x.db]}\n" + validModels,
		"not a section":                 "database: x.db\n" + validModels,
		"the section twice":             "database: {path: a.db}\ndatabase: {path: b.db}\n" + validModels,
		"twice in a text not YAML":      "server: {\ndatabase: {path: a.db}\ndatabase: {path: b.db}\n",
		"a misspelt section":            "databse: {path: x.db}\n" + validModels,
		"misspelt in a text not YAML":   "databse: {path: x.db}\nserver: {\n",
		"the mistake is in the section": "database: {path: x.db\n" + validModels,
		"indented in a text not YAML":   "server: {\n database: {path: x.db}\n",
		"all in braces":                 "{database: {path: x.db}, server: {\n",
		"a second document":             validModels + "---\ndatabase: {path: x.db}\n",
		"a list":                        "- database: {path: x.db}\n",
	} {
		if got, err := loadPartial(t, text).Config("database"); err == nil {
			t.Errorf("%s: got %q, want an error", name, got.Database.Path)
		}
	}
}

func TestDatabaseHasItsDefaultIfTheFileDoesNotNameIt(t *testing.T) {
	for _, text := range []string{"nonsense: 1\n" + validModels, "server: {\n" + validModels} {
		got, err := loadPartial(t, text).Config("database")
		if err != nil || got.Database != config.Default().Database {
			t.Errorf("%q: got %+v, error %v, want the default", text, got, err)
		}
	}
}

func TestMistakesOfATextThatIsNotYAMLHaveTheirLines(t *testing.T) {
	p := loadPartial(t, "log: {level: [}\n\n\nlimits: {concurrency_per_key: none}\n"+validModels)
	for _, want := range []string{"config.yaml:1: ", "config.yaml:4: limits.concurrency_per_key: "} {
		if got := p.Mistakes(); got == nil || !strings.Contains(got.Error(), want) {
			t.Errorf("got %v, want one with %q", got, want)
		}
	}
}

func TestListenIsReadInSpiteOfMistakesElsewhere(t *testing.T) {
	p := loadPartial(t, "server: {listen: \"127.0.0.1:1\", tls: {cert: a, key: b}, admin_listen: nowhere}\nlimits: {\n")
	got, err := p.Config("server.listen", "server.tls")
	if err != nil || got.Server.Listen != "127.0.0.1:1" || got.Server.TLS.Cert != "a" {
		t.Errorf("got %+v, error %v", got, err)
	}
	if got, err := p.Config("server.listen", "server.admin_listen"); err == nil {
		t.Errorf("a bad address: got %s, want an error", got.Server.AdminListen)
	}
}

func FuzzLoadPartial(f *testing.F) {
	f.Add("server: {\ndatabase: {path: x}\n")
	f.Add("\"database\": {path: ${X}}\nlog: [\n")
	f.Fuzz(func(t *testing.T, text string) {
		p := loadPartial(t, text)
		got, err := p.Config("database")
		if (err == nil) != (got != nil) || got != nil && got.Database.Path == "" {
			t.Errorf("got %+v, error %v", got, err)
		}
	})
}
