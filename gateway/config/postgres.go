package config

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"

	"basegate/database/postgres"
)

// Postgres reports whether the database is PostgreSQL's, which several gateways may share.
func (d *Database) Postgres() bool { return d.URL != Secret{} }

// Location returns the path of the file, or the URL, for people. Of the URL, the password is masked, and so are the
// parameters that are not known to hold none.
func (d *Database) Location() string {
	if !d.Postgres() {
		return d.Path
	}
	u, err := url.Parse(d.URL.Reveal())
	if err != nil {
		return masked
	}
	if _, has := u.User.Password(); has {
		u.User = url.UserPassword(u.User.Username(), masked)
	}
	query := u.Query()
	for name := range query {
		if !slices.Contains(publicParameters, name) {
			query.Set(name, masked)
		}
	}
	u.RawQuery = query.Encode()
	return strings.ReplaceAll(u.String(), url.QueryEscape(masked), masked)
}

// publicParameters are the parameters of a connection that hold no secret, and are often set.
var publicParameters = []string{
	"host", "port", "user", "dbname", "sslmode", "sslrootcert", "sslcert", "sslkey", "connect_timeout", "application_name",
	"target_session_attrs",
}

const (
	wantDatabase = postgres.WantURL + ", or nothing"
	verifyFull   = "verify-full"
)

// parseDatabase parses the URL of a PostgreSQL database, which may hold a password.
func parseDatabase(s *scalar) (any, error) {
	u, err := postgres.ParseURL(s.text)
	switch {
	case errors.Is(err, postgres.ErrURL):
		return nil, errUnwanted
	case err != nil:
		return nil, err
	case !isSecureDatabase(u):
		err = fmt.Errorf("the connection leaves this machine: want sslmode=%s in the URL, so that the server's certificate is verified", verifyFull)
	}
	_, password := u.User.Password()
	s.secret = password || u.Query().Has("password") || u.Query().Has("sslpassword")
	return NewSecret(u.String()), err
}

// isSecureDatabase reports whether all servers of a URL are on this machine, or their certificates are verified.
func isSecureDatabase(u *url.URL) bool {
	query := u.Query()
	if query.Get("sslmode") == verifyFull {
		return true
	}
	hosts := strings.Split(u.Host, ",")
	if query.Has("host") { // it overrides the others
		hosts = strings.Split(query.Get("host"), ",")
	}
	for _, host := range hosts {
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		if host != "" && !strings.HasPrefix(host, "/") && !IsLoopback(strings.Trim(host, "[]")) {
			return false
		}
	}
	return true
}
