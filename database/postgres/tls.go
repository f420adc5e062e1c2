package postgres

import (
	"crypto/tls"
	"errors"
	"net"
	"strings"

	"github.com/jackc/pgx/v5"
)

// ErrUnverified is returned by Open for a server on another machine whose certificate would not be verified: the connection
// carries hashes of keys and passwords.
var ErrUnverified = errors.New("the server is not on this machine: want sslmode=verify-full in the URL")

// checkTLS refuses connections to other machines without a verified certificate, whichever of the URL and the environment
// (PGHOST, PGSSLMODE) has decided on them.
func checkTLS(c *pgx.ConnConfig) error {
	if !isVerified(c.Host, c.TLSConfig) {
		return ErrUnverified
	}
	for _, f := range c.Fallbacks {
		if !isVerified(f.Host, f.TLSConfig) {
			return ErrUnverified
		}
	}
	return nil
}

func isVerified(host string, c *tls.Config) bool {
	if strings.HasPrefix(host, "/") || host == "localhost" {
		return true
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsLoopback() {
		return true
	}
	return c != nil && !c.InsecureSkipVerify
}
