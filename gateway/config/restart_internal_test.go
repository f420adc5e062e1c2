package config

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// restartKeys returns the keys that need a restart.
func restartKeys(path string, section reflect.Value) (names []string) {
	for _, k := range keysOf(section) {
		name := strings.TrimPrefix(path+"."+k.name, ".")
		if k.tag.Get("restart") != "" {
			names = append(names, name)
		} else if _, isScalar := k.kind(); !isScalar && k.field.Kind() == reflect.Struct {
			names = append(names, restartKeys(name, k.field)...)
		}
	}
	return names
}

// The list in the documentation lacked three settings.
func TestSettingsThatNeedARestartAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/operations/run.md")
	if err != nil {
		t.Fatal(err)
	}
	_, list, found := strings.Cut(string(page), "These settings need a restart")
	list, _, _ = strings.Cut(list, "\n\n")
	if !found {
		t.Fatal("docs/operations/run.md has no list of the settings that need a restart")
	}
	names := restartKeys("", reflect.ValueOf(Default()).Elem())
	if !slices.Contains(names, "database.path") || !slices.Contains(names, "log") {
		t.Errorf("got %v, want a key and a section among them", names)
	}
	for _, name := range append(names, "server.tls") {
		if !strings.Contains(list, "`"+name+"`") {
			t.Errorf("docs/operations/run.md does not list %s", name)
		}
	}
}

func TestChangesThatNeedARestartAreFoundAtEveryDepth(t *testing.T) {
	old, next := Default(), Default()
	if got := next.NeedsRestart(old); len(got) > 0 {
		t.Errorf("equal configurations: got %v, want nothing", got)
	}
	next.Log.Level, next.Database.URL, next.Server.AdminHosts = "debug", NewSecret("postgres://lab"), []string{"gate"}
	next.Limits.KeysPerAccount++ // which a reload applies
	if got, want := next.NeedsRestart(old), []string{"server.admin_hosts", "database.url", "log"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
