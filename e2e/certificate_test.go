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

func TestRenewedCertificateIsServedWithoutARestart(t *testing.T) {
	cert, key, roots := certificate(t)
	g, mock := startGateway(t, settings{server: fmt.Sprintf(", tls: {cert: %q, key: %q}", cert, key)}, mockvllm.Options{})
	if err := handshake(g, roots); err != nil {
		t.Fatal(err)
	}
	// certbot replaces the files, and nobody signals the gateway.
	renewed, renewedKey, renewedRoots := certificate(t)
	must(t, os.Rename(renewedKey, key))
	must(t, os.Rename(renewed, cert))
	g.waitForOutput(g.stderr, "certificate replaced")
	if err := handshake(g, renewedRoots); err != nil {
		t.Errorf("after the renewal: %v", err)
	}

	// The key of another certificate.
	_, otherKey, _ := certificate(t)
	must(t, os.Rename(otherKey, key))
	g.signal(syscall.SIGHUP)
	g.waitForOutput(g.stderr, `certificate refused, the old one stays.*private key does not match`)
	if err := handshake(g, renewedRoots); err != nil {
		t.Errorf("after a bad certificate: %v", err)
	}
	if got := g.sample("basegate_tls_certificate_last_reload_successful"); got != "0" {
		t.Errorf("after a bad certificate: basegate_tls_certificate_last_reload_successful is %s, want 0", got)
	}

	// A reload takes a certificate from other paths.
	third, thirdKey, thirdRoots := certificate(t)
	g.writeConfig(settings{server: fmt.Sprintf(", tls: {cert: %q, key: %q}", third, thirdKey)}, mock.URL())
	g.signal(syscall.SIGHUP)
	g.waitForOutput(g.stderr, `certificate replaced[^\n]*\n(.*\n)*.*certificate replaced`)
	if err := handshake(g, thirdRoots); err != nil {
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
