package config

import (
	"errors"
	"net"
	"net/url"
	"slices"
	"strings"

	"basegate/database/postgres"
)

// Postgres reports whether the database is PostgreSQL's, which several gateways may share.
func (d *Database) Postgres() bool { return d.URL != Secret{} }

// Location returns the path of the file, or the URL without its password, for people.
func (d *Database) Location() string {
	if !d.Postgres() {
		return d.Path
	}
	u, err := url.Parse(d.URL.Reveal())
	if err != nil {
		return masked
	}
	return redactURL(u)
}

// redactURL returns a URL with its passwords masked. Parameters are shown if they are known to hold none.
func redactURL(u *url.URL) string {
	shown := *u
	if _, has := u.User.Password(); has {
		shown.User = url.UserPassword(u.User.Username(), masked)
	}
	query := u.Query()
	for name := range query {
		if !slices.Contains(publicParameters, name) {
			query.Set(name, masked)
		}
	}
	shown.RawQuery = query.Encode()
	return strings.NewReplacer(url.QueryEscape(masked), masked).Replace(shown.String())
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

// databaseURL decodes the URL of a PostgreSQL database. Empty means none. It may hold a password, so no diagnostic quotes it.
func databaseURL(to *Secret) decodeFunc {
	return func(v value) {
		s, ok := v.url(wantDatabase)
		if !ok || s.text == "" {
			return
		}
		u, err := postgres.ParseURL(s.text)
		switch {
		case errors.Is(err, postgres.ErrURL):
			v.errorf("want %s", wantDatabase)
			return
		case err != nil:
			v.errorf("%v", err)
			return
		}
		if !isSecureDatabase(u) {
			v.errorf("the connection leaves this machine: want sslmode=%s in the URL, so that the server's certificate is verified", verifyFull)
		}
		_, password := u.User.Password()
		v.doc.holdsSecrets = v.doc.holdsSecrets || (password || u.Query().Has("password") || u.Query().Has("sslpassword")) && !s.expanded
		*to = NewSecret(u.String())
	}
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
		if host != "" && !strings.HasPrefix(host, "/") && !isLoopback(strings.Trim(host, "[]")) {
			return false
		}
	}
	return true
}

// checkDatabase reports settings that contradict the engine of the database.
func (c *Config) checkDatabase(v value) {
	database, files := v.child("database"), v.child("files")
	if !c.Database.Postgres() {
		if c.Database.KeepRequests != 0 {
			database.child("keep_requests").errorf("SQLite keeps all requests: want forever, or database.url")
		}
		return
	}
	if c.Database.Path != Default().Database.Path {
		database.child("path").errorf("database.url selects PostgreSQL: remove path, or url for SQLite")
	}
	if c.Database.Flush != 0 {
		database.child("flush").errorf("database.url selects PostgreSQL, whose synchronous_commit decides this: remove flush")
	}
	_, inBucket := c.Files.Bucket()
	switch {
	case c.Files.URL == nil && c.Files.Shared:
		files.child("shared").errorf("want files.url with the folder that all gateways share")
	case c.Files.URL == nil:
		database.child("url").warnf("files.url is empty, and on PostgreSQL there is no folder beside the database: files and batches are not served")
	case !inBucket && !c.Files.Shared:
		files.child("url").errorf("gateways on one PostgreSQL database read each other's files: want s3://…, or files.shared: true " +
			"if all of them have this folder, as on NFS")
	}
}
