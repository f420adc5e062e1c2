package main_test

import (
	"os"
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
