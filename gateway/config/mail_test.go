package config_test

import (
	"fmt"
	"testing"

	"basegate/gateway/config"
)

func TestMailNamesAreCheckedAsServersWould(t *testing.T) {
	for _, c := range []struct {
		key, value string
		good       bool
	}{
		{"from", "gate@example.org", true},
		{"from", "Basegate <gate@example.org>", true},
		{"from", `"Lab, Inc." <gate@example.org>`, true},
		{"from", "Größte GPU <gate@example.org>", true},
		{"from", "", true},
		{"from", "Lab, Inc. <gate@example.org>", false},
		{"from", "gate@example.org, other@example.org", false},
		{"from", "Basegate gate@example.org", false},
		{"from", "Basegate <gate>", false},
		{"from", "Basegate <gate@exämple.org>", false},
		{"from", "Base\r\nBcc: x <gate@example.org>", false},
		{"helo", "gate.example.org", true},
		{"helo", "gate", true},
		{"helo", "[192.0.2.1]", true},
		{"helo", "[IPv6:2001:db8::1]", true},
		{"helo", "", true},
		{"helo", "192.0.2.1", false},
		{"helo", "[2001:db8::1]", false},
		{"helo", "[IPv6:192.0.2.1]", false},
		{"helo", "[192.0.2.1", false},
		{"helo", "gate_1.example.org", false},
		{"helo", "gate.example.org\r\nMAIL", false},
	} {
		text := fmt.Sprintf("mail: {%s: %q}\nmodels: [{id: a, checkpoint: x, backends: [{url: \"http://127.0.0.1:1\"}]}]\n", c.key, c.value)
		if _, err := config.Parse("config.yaml", []byte(text), noVariables); (err == nil) != c.good {
			t.Errorf("%s %q: got error %v, want good: %t", c.key, c.value, err, c.good)
		}
	}
}
