package gateway

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/zap"

	"basegate/gateway/config"
)

// newCertificate returns a certificate and its key in PEM.
func newCertificate(t *testing.T) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded})
}

// A renewal replaces one file after the other; a poll in between must not raise an alarm.
func TestCertificateIsRefusedOnlyIfTwoPollsFindItBad(t *testing.T) {
	dir := t.TempDir()
	files := config.TLS{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	write := func(path string, text []byte) {
		t.Helper()
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cert, key := newCertificate(t)
	write(files.Cert, cert)
	write(files.Key, key)
	c, err := loadCertificate(files, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	first := c.current.Load()

	renewed, renewedKey := newCertificate(t)
	write(files.Key, renewedKey)
	c.poll()
	if c.state.successful() != 1 || c.current.Load() != first {
		t.Error("between the two files: the certificate was refused or replaced")
	}
	write(files.Cert, renewed)
	c.poll()
	second := c.current.Load()
	if c.state.successful() != 1 || second == first {
		t.Error("after both files: the certificate was not replaced")
	}

	write(files.Key, key)
	c.poll()
	c.poll()
	if c.state.successful() != 0 || c.current.Load() != second {
		t.Error("a key that stays wrong: want the certificate refused and the old one in force")
	}
	write(files.Key, renewedKey)
	c.poll()
	if c.state.successful() != 1 {
		t.Error("the right key again: want the certificate accepted")
	}
}
