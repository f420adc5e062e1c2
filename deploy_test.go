package main_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// systemd gives up for good after five starts in ten seconds unless the section Unit says otherwise; in another section it ignores
// the setting.
func TestSystemdStartsTheGatewayAgainHoweverOften(t *testing.T) {
	text, err := os.ReadFile("deploy/systemd/basegate.service")
	if err != nil {
		t.Fatal(err)
	}
	unit, service, found := strings.Cut(string(text), "\n[Service]\n")
	if !found || !strings.Contains(unit, "\n[Unit]\n") || !strings.Contains(unit, "\nStartLimitIntervalSec=0\n") {
		t.Error("the section Unit has no StartLimitIntervalSec=0")
	}
	if !strings.Contains(service, "\nRestart=always\n") {
		t.Error("the section Service has no Restart=always")
	}
}

// The changelog's newest section that has a date, and the image of the Helm chart, are those of the file VERSION.
func TestVersionIsTheSameEverywhere(t *testing.T) {
	want, err := os.ReadFile("VERSION")
	if err != nil {
		t.Fatal(err)
	}
	for file, pattern := range map[string]string{
		"CHANGELOG.md":                    `(?m)^## (\S+) - \d{4}-\d\d-\d\d$`,
		"deploy/helm/basegate/Chart.yaml": `(?m)^appVersion: (\S+)`,
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(pattern).FindSubmatch(text)
		if found == nil || string(found[1]) != strings.TrimSpace(string(want)) {
			t.Errorf("%s: got the version %q, want %q", file, found, want)
		}
	}
}
