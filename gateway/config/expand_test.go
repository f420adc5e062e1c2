package config_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"basegate/gateway/config"
)

// vars looks up variables in a map.
func vars(values map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { value, set := values[name]; return value, set }
}

// hard is a password with all characters that have a meaning in a URL.
const hard = "p@ss:/?#[]w%41+&=;, ü"

// The driver parses the URL by itself, so it must find what the variables brought.
func TestVariablesWithinADatabaseURLAreEncoded(t *testing.T) {
	env := vars(map[string]string{"PW": hard, "USER": "lab@site", "HOST": "127.0.0.1", "HOSTS": "127.0.0.1:5433,localhost:5434", "DB": "base", "SOCKET": "/run/postgresql"})
	for text, want := range map[string]struct {
		user, password, host, database string
		hosts                          int
	}{
		"postgres://u:${PW}@127.0.0.1:5432/base":         {"u", hard, "127.0.0.1", "base", 1},
		"postgres://${USER}:${PW}@${HOST}:5432/${DB}":    {"lab@site", hard, "127.0.0.1", "base", 1},
		"postgres://u:${PW}@${HOSTS}/base":               {"u", hard, "127.0.0.1", "base", 2},
		"postgres://u@127.0.0.1/base?password=${PW}":     {"u", hard, "127.0.0.1", "base", 1},
		"postgres:///base?user=${USER}&host=${SOCKET}":   {"lab@site", "", "/run/postgresql", "base", 1},
		"postgres://u:p%40s@127.0.0.1/base?user=${USER}": {"lab@site", "p@s", "127.0.0.1", "base", 1},
		"postgres://u:p@s@127.0.0.1/base":                {"u", "p@s", "127.0.0.1", "base", 1}, // parsers disagree on this one
	} {
		c, err := config.Parse("config.yaml", fmt.Appendf(nil, "database: {url: %q}\n%s", text+tlsOff(text), aModel), env)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		got, err := pgx.ParseConfig(c.Database.URL.Reveal())
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		hosts := map[string]bool{got.Host + fmt.Sprint(got.Port): true}
		for _, f := range got.Fallbacks {
			hosts[f.Host+fmt.Sprint(f.Port)] = true
		}
		if got.User != want.user || got.Password != want.password || got.Host != want.host || got.Database != want.database || len(hosts) != want.hosts {
			t.Errorf("%s: got %q, %q, %q, %q and %d hosts, want %+v", text, got.User, got.Password, got.Host, got.Database, len(hosts), want)
		}
		for _, secret := range []string{"p@s", "p%40s", "w%41"} {
			if want.password != "" && strings.Contains(c.Database.Location(), secret) {
				t.Errorf("%s: the location is %s", text, c.Database.Location())
			}
		}
	}
}

// tlsOff returns the parameter that makes the URL have one attempt for each host.
func tlsOff(text string) string {
	if strings.Contains(text, "?") {
		return "&sslmode=disable"
	}
	return "?sslmode=disable"
}

func TestVariableThatIsTheWholeURLStaysAsItIs(t *testing.T) {
	const whole = "postgres://u:p%40ss@127.0.0.1/base?sslmode=disable"
	c, err := config.Parse("config.yaml", []byte("database: {url: \"${URL}\"}\n"+aModel), vars(map[string]string{"URL": whole}))
	if err != nil || c.Database.URL.Reveal() != whole {
		t.Errorf("got %v, error %v; want %s", c, err, whole)
	}
}

func TestVariablesWithinOtherURLsAreEncoded(t *testing.T) {
	env := vars(map[string]string{
		"TOKEN": "T0/B0/a?b#c%d e&f", "BASE": "https://hooks.example.org/x?y", "HOST": "gpu:8001", "PATH": "/srv/files", "BUCKET": "lab", "ENDPOINT": "http://127.0.0.1:9000",
	})
	parse := func(text string) *config.Config {
		t.Helper()
		c, err := config.Parse("config.yaml", []byte(text), env)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		return c
	}
	token, _ := env("TOKEN")
	base := parse("notifications: {webhook: \"https://hooks.example.org/${TOKEN}?key=${TOKEN}\"}\n" + aModel)
	if u := base.Notifications.Webhook; u.Path != "/"+token || u.Query().Get("key") != token || len(u.Query()) != 1 || u.Fragment != "" {
		t.Errorf("the webhook is %s", u)
	}
	if u := parse("console: {feedback_webhook: \"${BASE}\"}\n" + aModel).Console.FeedbackWebhook; u.RawQuery != "y" {
		t.Errorf("the webhook is %s, want the variable as it is", u)
	}
	if u := parse("models: [{id: a, checkpoint: a, backends: [{url: \"http://${HOST}/v\"}]}]").Models[0].Backends[0].URL; u.Host != "gpu:8001" {
		t.Errorf("the backend is %s", u)
	}
	if u := parse("files: {url: \"file://${PATH}/b\"}\n" + aModel).Files.URL; u.Path != "/srv/files/b" {
		t.Errorf("the folder is %s", u)
	}
	c := parse("files: {url: \"s3://${BUCKET}/p?endpoint=${ENDPOINT}\"}\n" + aModel)
	if b, ok := c.Files.Bucket(); !ok || b.Name != "lab" || b.Endpoint != "127.0.0.1:9000" {
		t.Errorf("the bucket is %+v, %v", b, ok)
	}
	if u := parse("console: {oidc: {issuer: \"https://id.example.org/${BUCKET}\", client_id: x}}\n" + aModel).Console.OIDC.Issuer; u.Path != "/lab" {
		t.Errorf("the issuer is %s", u)
	}
}

func TestEncodedValueOfAVariableWithinAURLIsNamed(t *testing.T) {
	c, err := config.Parse("config.yaml", []byte("database: {url: \"postgres://u:${PW}@127.0.0.1/base\"}\n"+aModel), vars(map[string]string{"PW": "s%40cret"}))
	if err != nil {
		t.Fatal(err)
	}
	found := ""
	for _, w := range c.Warnings {
		found += w.Error() + "\n"
	}
	if !strings.Contains(found, "the variable PW") || strings.Contains(found, "cret") {
		t.Errorf("got %s, want a warning that names the variable alone", found)
	}
}

// A part of a password that a URL ends at must not be taken for the host, which messages name.
func TestDatabaseURLsWithAnAmbiguousPasswordAreRefused(t *testing.T) {
	for _, text := range []string{
		"postgres://u:p@SECRET/w@127.0.0.1/base", "postgres://u:1/SECRET@127.0.0.1/base", "postgres://u:1?SECRET@127.0.0.1/base",
		"postgres://u:p/SECRET@127.0.0.1/base", "postgres://u:p#SECRET@127.0.0.1/base", "postgres://u:p%SECRET@127.0.0.1/base",
		"postgres://${ALL}/base", "http://u:SECRET@127.0.0.1/base", "postgres://u:SECRET@127.0.0.1/base?sslmode=disable&sslmode=verify-full",
		"postgres://u:SECRET@127.0.0.1/base?target_session_attrs=standby",
	} {
		for key, quoted := range map[string]string{
			"database": fmt.Sprintf("database: {url: %q}", text),
			"files":    fmt.Sprintf("files: {url: %q}", text),
			"webhook":  fmt.Sprintf("notifications: {webhook: %q}", "ftp"+text),
			"smtp":     fmt.Sprintf("mail: {smtp: %q}", text),
			"oidc":     fmt.Sprintf("console: {oidc: {issuer: %q}}", text),
			"server":   fmt.Sprintf("server: {public_url: %q}", text),
		} {
			_, err := config.Parse("config.yaml", []byte(quoted+"\n"+aModel), vars(map[string]string{"ALL": "u:SECRET@127.0.0.1"}))
			if err == nil || strings.Contains(err.Error(), "SECRET") && strings.Contains(text, "@") {
				t.Errorf("%s: %s: got %v, want an error without the password", key, text, err)
			}
		}
	}
}
