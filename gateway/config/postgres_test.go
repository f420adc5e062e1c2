package config_test

import (
	"fmt"
	"strings"
	"testing"

	"basegate/gateway/config"
)

const aModel = "models: [{id: a, checkpoint: a, backends: [{url: \"http://127.0.0.1:1\"}]}]\n"

func parsePostgres(t *testing.T, url string) (*config.Config, error) {
	t.Helper()
	text := fmt.Sprintf("database: {url: %q}\nfiles: {url: \"s3://lab\"}\n%s", url, aModel)
	return config.Parse("config.yaml", []byte(text), noVariables)
}

func TestDatabaseURLsOffThisMachineNeedVerifyFull(t *testing.T) {
	for url, allowed := range map[string]bool{
		"postgres://u:p@127.0.0.1:5432/base":                                true,
		"postgresql://u@localhost/base?sslmode=disable":                     true,
		"postgres://u@[::1]:5432/base":                                      true,
		"postgres:///base?host=/run/postgresql":                             true,
		"postgres://u@/base?host=/tmp/x":                                    true,
		"postgres://u@db.example.org/base?sslmode=verify-full":              true,
		"postgres://u@a.example.org,b.example.org/base?sslmode=verify-full": true,
		"postgres://u@db.example.org/base":                                  false,
		"postgres://u@db.example.org/base?sslmode=verify-ca":                false,
		"postgres://u@localhost,db.example.org/base":                        false,
		"postgres://u@localhost/base?host=db.example.org":                   false,
		"postgres://u@[2001:db8::1]/base?sslmode=disable":                   false,
	} {
		c, err := parsePostgres(t, url)
		switch {
		case allowed && err != nil:
			t.Errorf("%s: got %v, want no error", url, err)
		case allowed && (!c.Database.Postgres() || c.Database.URL.Reveal() != url):
			t.Errorf("%s: the URL was not kept", url)
		case !allowed && (err == nil || !strings.Contains(err.Error(), "verify-full")):
			t.Errorf("%s: got %v, want an error that names verify-full", url, err)
		}
	}
}

func TestDisplayedDatabaseURLsHaveNoPassword(t *testing.T) {
	for _, url := range []string{
		"postgres://basegate:LETMEIN@127.0.0.1:5432/base?sslmode=disable",
		"postgres://basegate@127.0.0.1:5432/base?password=LETMEIN&sslmode=disable",
		"postgres://basegate@127.0.0.1:5432/base?sslpassword=LETMEIN&sslmode=disable",
	} {
		c, err := parsePostgres(t, url)
		if err != nil {
			t.Fatal(err)
		}
		if !c.HoldsSecrets {
			t.Errorf("%s: the file is not known to hold a secret", url)
		}
		shown := settingsOf(t, c)["database.url"]
		for name, text := range map[string]string{
			"the description": shown.Value, "the location": c.Database.Location(), "%+v": fmt.Sprintf("%+v", c), "%#v": fmt.Sprintf("%#v", c.Database),
		} {
			if strings.Contains(text, "LETMEIN") {
				t.Errorf("%s shows the password: %s", name, text)
			}
		}
		for _, part := range []string{"postgres://basegate", "127.0.0.1:5432/base", "sslmode=disable", "***"} {
			if !strings.Contains(shown.Value, part) || !shown.Changed {
				t.Errorf("got %+v, want %s in it, and changed", shown, part)
			}
		}
	}
}

func TestPostgresWithoutAPlaceForFilesIsServedWithAWarning(t *testing.T) {
	c, err := config.Parse("config.yaml", []byte("database: {url: \"postgres:///base\"}\n"+aModel), noVariables)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0].Text, "files and batches are not served") {
		t.Errorf("got warnings %v, want one that says that files are not served", c.Warnings)
	}
	if c.HoldsSecrets {
		t.Error("a URL without a password counts as a secret")
	}
}
