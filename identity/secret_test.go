package identity_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.uber.org/zap"

	"basegate/identity"
	"basegate/internal/databasetest"
)

func TestSecretsAndIDsAreUniqueAndWellFormed(t *testing.T) {
	s := startStoreWithAda(t)
	form := regexp.MustCompile(`^acs-bm-[0-9A-Za-z]{43}$`)
	seen := map[string]bool{}
	for i := range 200 {
		key, secret := createKey(t, s, fmt.Sprint("key ", i))
		if !form.MatchString(secret) || seen[secret] || seen[key.ID] || !strings.HasPrefix(secret, key.Prefix) {
			t.Fatalf("got secret %q of key %+v, want a new one that matches %s and begins with the prefix", secret, key, form)
		}
		seen[secret], seen[key.ID] = true, true
	}
}

func TestSecretIsNotWrittenToDisk(t *testing.T) {
	databasetest.SkipPostgres(t, "the files of its server belong to all databases")
	path := newPath(t)
	s := startStore(t, openDatabase(t, path), zap.NewNop())
	_, err := s.Accounts.Create(t.Context(), identity.Account{Email: ada})
	must(t, err)
	_, secret := createKey(t, s, "laptop")
	files, err := filepath.Glob(path + "*")
	must(t, err)
	prefixFound := false
	for _, name := range files {
		content, err := os.ReadFile(name)
		must(t, err)
		prefixFound = prefixFound || bytes.Contains(content, []byte(secret[:13]))
		for i := 0; i+14 <= len(secret); i++ { // the prefix has 13 characters, so 14 of any part are too many
			if bytes.Contains(content, []byte(secret[i:i+14])) {
				t.Fatalf("%s contains characters %d to %d of the secret", name, i, i+14)
			}
		}
	}
	if !prefixFound {
		t.Error("no file contains the prefix: the test does not read the database's files")
	}
}

// A user may pass most of a secret in place of an id.
func TestErrorsContainNoSecret(t *testing.T) {
	s := startStoreWithAda(t)
	_, secret := createKey(t, s, "laptop")
	for _, ref := range []string{secret[:40], secret + "x", "acs-bm-" + strings.Repeat("Z", 43)} {
		if _, err := s.Keys.Pause(t.Context(), ref); err == nil || strings.Contains(err.Error(), ref[:15]) {
			t.Errorf("got error %v, want one without %q", err, ref[:15])
		}
	}
}
