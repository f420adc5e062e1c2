//go:build e2e

package e2e_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"basegate/mockvllm"
)

func TestSIGHUPReadsTheCertificate(t *testing.T) {
	cert, key, roots := certificate(t)
	g, mock := startGateway(t, settings{server: fmt.Sprintf(", tls: {cert: %q, key: %q}", cert, key)}, mockvllm.Options{})
	if err := handshake(g, roots); err != nil {
		t.Fatal(err)
	}
	// The key of another certificate.
	_, wrongKey, _ := certificate(t)
	must(t, os.Rename(wrongKey, key))
	g.signal(syscall.SIGHUP)
	g.waitForOutput(g.stderr, `certificate refused, the old one stays.*private key does not match`)
	if err := handshake(g, roots); err != nil {
		t.Errorf("after a bad certificate: %v", err)
	}
	if got := g.sample("basegate_tls_certificate_last_reload_successful"); got != "0" {
		t.Errorf("after a bad certificate: basegate_tls_certificate_last_reload_successful is %s, want 0", got)
	}

	// A reload takes a certificate from other paths.
	other, otherKey, otherRoots := certificate(t)
	g.writeConfig(settings{server: fmt.Sprintf(", tls: {cert: %q, key: %q}", other, otherKey)}, mock.URL())
	g.signal(syscall.SIGHUP)
	g.waitForOutput(g.stderr, "certificate replaced")
	if err := handshake(g, otherRoots); err != nil {
		t.Errorf("after the reload: %v", err)
	}
	if got := g.sample("basegate_tls_certificate_last_reload_successful"); got != "1" {
		t.Errorf("after the reload: basegate_tls_certificate_last_reload_successful is %s, want 1", got)
	}
}

// handshake connects to the gateway, whose certificate must be one of the roots.
func handshake(g *gateway, roots *x509.CertPool) error {
	c, err := tls.Dial("tcp", strings.TrimPrefix(g.url, "http://"), &tls.Config{RootCAs: roots})
	if err != nil {
		return err
	}
	return c.Close()
}
