package mail

import (
	"context"
	"errors"
	"net/netip"
	"testing"
)

func TestNameOfThisMachineIsQualified(t *testing.T) {
	for _, c := range []struct{ host, canonical, want string }{
		{"gate.example.org", "", "gate.example.org"},
		{"gate", "gate.example.org.", "gate.example.org"},
		{"gate", "gate.", ""},
		{"gate", "", ""},
		{"gate", "localhost.localdomain", ""},
		{"my_gate", "my_gate.example.org", ""},
		{"4f2a9c", "4f2a9c", ""},
		{"10.0.0.1", "", ""},
	} {
		lookUp := func(context.Context, string) (string, error) {
			if c.canonical == "" {
				return "", errors.New("no such host")
			}
			return c.canonical, nil
		}
		if got := qualify(t.Context(), c.host, lookUp); got != c.want {
			t.Errorf("%s with the canonical name %q: got %q, want %q", c.host, c.canonical, got, c.want)
		}
	}
}

func TestAddressLiterals(t *testing.T) {
	for address, want := range map[string]string{
		"192.0.2.1": "[192.0.2.1]", "::ffff:192.0.2.1": "[192.0.2.1]", "2001:db8::1": "[IPv6:2001:db8::1]", "fe80::1%eth0": "[IPv6:fe80::1]",
	} {
		if got := addressLiteral(netip.MustParseAddr(address)); got != want {
			t.Errorf("%s: got %s, want %s", address, got, want)
		}
	}
}
