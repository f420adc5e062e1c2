package config

import (
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"os"
)

// Load reads the certificate and its key, which must match. The digest is of the content of both files, also of those
// that are no certificate and key; it is zero if they cannot be read.
func (t TLS) Load() (digest [sha256.Size]byte, pair *tls.Certificate, err error) {
	certificate, err := os.ReadFile(t.Cert)
	if err != nil {
		return digest, nil, fmt.Errorf("server.tls.cert: %w", err)
	}
	key, err := os.ReadFile(t.Key)
	if err != nil {
		return digest, nil, fmt.Errorf("server.tls.key: %w", err)
	}
	hash := sha256.New()
	fmt.Fprintf(hash, "%d\n%s%s", len(certificate), certificate, key)
	hash.Sum(digest[:0])
	loaded, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return digest, nil, fmt.Errorf("server.tls: %s and %s: %w", t.Cert, t.Key, err)
	}
	return digest, &loaded, nil
}
